"""What a restarted node brings along (R12), and how it is filed in the views of its rounds. Pure.

`node.holdings.recovery` makes a Restart from the disk.
"""

from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.messages import Kind, Seal, SealCertificate, SealValue, SignedMessage, decode_body
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.round_view import RoundView

_PROVISIONAL = (Kind.PVOTE, Kind.PSEAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Where a node goes on. Nothing of it stands for a node that never ran.

    `chain` begins with genesis; the state of its last seal is in the store, and that of the last
    one of `branch`, the provisional seals behind it (R4). `messages` are of the rounds before and
    behind the last final seal; `results` names the LISTs whose results are in the store.
    In no round up to `silent_through` may this node sign, because it cannot know what it signed
    there. `is_lost` says that signatures are missing: others must be asked. `begun` is the
    digest of a seal whose state was being fetched, and how many bytes of it are on the disk.
    """

    chain: tuple[SealCertificate, ...]
    branch: tuple[SealCertificate, ...] = ()
    messages: tuple[SignedMessage, ...] = ()
    results: frozenset[bytes] = field(default_factory=frozenset)
    silent_through: int = 0
    is_lost: bool = False
    begun: tuple[bytes, int] = (b"", 0)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing of what this node signed, or of the seals before it."""
        return not self.is_lost and not self.silent_through

    @property
    def has_run(self) -> bool:
        """Whether this node did anything before."""
        return self.is_lost or bool(self.messages or self.branch) or len(self.chain) > 1


def refill(view: RoundView, restart: Restart, *, now_s: float) -> None:
    """File in a round's view what this node said and heard of it before it went down.

    Of its results only those are here still which `resume` names.
    """
    for message in restart.messages:
        slot = message.slot
        if (slot.round, slot.basis) != (view.index, view.basis):
            continue
        is_own = message.sender == view.me
        view.ballots.add(BallotEntry(message, decode_body(message)), is_own=is_own)
        if not is_own:
            continue
        if slot.kind is Kind.COMMIT:
            view.own_commit = message.digest
        # It begins as an ordinary round: what it said provisionally is of an attempt before (R4).
        attempt = slot.attempt + (slot.kind in _PROVISIONAL)
        if attempt > view.attempt:
            view.attempt, view.entered_s, view.opened_s = attempt, now_s, now_s
    _relock(view)


def recall_results(view: RoundView, results: frozenset[bytes]) -> None:
    """Note which results are in the store, by LIST."""
    for digest in results:
        if view.ballots.list_of(digest) is not None:
            view.results[digest] = set(range(view.num_cells))


def _relock(view: RoundView) -> None:
    """R12: the lock is the latest own SEAL of the round."""
    for attempt in view.ballots.attempts(Kind.SEAL):
        entry = view.ballots.of(Kind.SEAL, attempt, view.before).get(view.me)
        if entry is not None:
            assert isinstance(entry.body, Seal)
            view.lock = (attempt, entry.body.list_digest)
            return


def own_seal(restart: Restart, head: SealValue, me: PeerId) -> bytes:
    """The own SEAL or PSEAL of a head, of whatever attempt: the next COMMIT carries it (R1)."""
    for message in restart.messages:
        if message.sender == me and message.slot.kind in (Kind.SEAL, Kind.PSEAL):
            body = decode_body(message)
            if isinstance(body, Seal) and body.value == head.digest:
                return message.encoded
    return b""


def was_listed(restart: Restart, me: PeerId) -> bool:
    """Whether the own contribution is in the head's seal (R6)."""
    commits = (*restart.chain, *restart.branch)[-1].value.commits
    return any(
        message.sender == me and message.slot.kind is Kind.COMMIT and message.digest in commits
        for message in restart.messages
    )
