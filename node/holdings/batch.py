"""What must survive of a batch of actions, before any of it is carried out (R12)."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.holdings.journal import Journal
from node.holdings.receipts import listed_commits
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.messages import SealCertificate, SignedMessage


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Seals and signatures that a core's actions rest on. `own` are the signatures among them."""

    links: tuple[SealCertificate, ...]
    listed: tuple[SignedMessage, ...]
    steps: tuple[ev.Advance | ev.FallBack, ...]
    signed: tuple[SignedMessage, ...]
    own: tuple[SignedMessage, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.links or self.steps or self.signed)

    def write(self, journal: Journal) -> None:
        """On the disk when it returns. Raises OSError."""
        # The chain first: a signature of a round that it does not reach could not be used.
        if self.links:
            journal.extend_chain(self.links, self.listed)
        for step in self.steps:
            if isinstance(step, ev.Advance):
                journal.extend_branch(step.certificate)
            else:
                journal.leave_branch()
        if self.signed:
            journal.record(self.signed)


_NOTHING = JournalBatch((), (), (), (), ())


def _only_send(actions: Sequence[ev.CoreAction]) -> bool:
    for action in actions:  # noqa: SIM110 - asked behind each event: no generator
        if not isinstance(action, ev.Send | ev.SendAll):
            return False
    return True


def batch_of(
    core: NodeCore, actions: Sequence[ev.CoreAction], *, logged_round: int
) -> JournalBatch:
    """What these actions rest on; the chain is on the disk up to `logged_round`."""
    is_longer = core.chain[-1].value.round > logged_round
    if not is_longer and _only_send(actions):
        return _NOTHING  # As nearly always.
    links = [link for link in core.chain if link.value.round > logged_round] if is_longer else []
    listed = listed_commits(core.views(), links) if links else []
    steps: list[ev.Advance | ev.FallBack] = []
    signed: list[SignedMessage] = []
    own: list[SignedMessage] = []
    for action in actions:
        if isinstance(action, ev.RecordSlot):
            own.append(action.message)
            signed.append(action.message)
        elif isinstance(action, ev.RecordProof):
            signed += action.messages
        elif isinstance(action, ev.Advance | ev.FallBack):
            steps.append(action)
        elif isinstance(action, ev.Confirm):
            listed += action.commits
    return JournalBatch(tuple(links), tuple(listed), tuple(steps), tuple(signed), tuple(own))
