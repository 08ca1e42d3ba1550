"""One round machine among scripted peers."""

from protocol import events as ev
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Seal, SealValue
from protocol.rounds.chain import seal_value
from tests.node.builders import (
    CONFIG,
    Voice,
    contributed,
    digest_of,
    head_of,
    machine_of,
    peers_named,
    signed,
    view_of,
)

PEERS = peers_named(3)
HEAD = head_of(PEERS)
FIRST, SECOND, ME = (view_of(PEERS[0], HEAD).closer(attempt) for attempt in range(3))
one, two = Voice(FIRST, HEAD.value), Voice(SECOND, HEAD.value)
OTHERS = [one.commit(), two.commit()]


class Script:
    """The machine of ME, the closer of attempt 2, and what it did so far."""

    def __init__(self, me=ME) -> None:
        self.machine = machine_of(me, HEAD)
        self.done: list[ev.RoundAction] = []

    def tell(self, *events, now_s: float = 0.0) -> list[ev.RoundAction]:
        """Hand events on; the actions that came of them."""
        found = [action for event in events for action in self.machine.handle(event, now_s)]
        self.done += found
        return found

    def begin(self) -> list[ev.Heard]:
        """All three have committed; their COMMITs, ascending by sender."""
        own = signed(self.tell(contributed(5)), Kind.COMMIT)[0]
        self.tell(*OTHERS)
        entry = self.machine.view.ballots.find(own.digest)
        assert entry is not None
        heard = [*OTHERS, ev.Heard(entry.message, entry.body)]
        return sorted(heard, key=lambda event: event.message.sender)

    def value(self, commits) -> SealValue:
        """What a seal of these commits says; the machine must hold its state."""
        view = self.machine.view
        found = seal_value(view, digest_of(HEAD.value, commits), KeyedHashSigner(ME), CONFIG.clock)
        assert found is not None
        return found

    def is_muted(self) -> bool:
        return self.machine.is_muted

    def signed(self, kind: Kind):
        return [(m.slot.attempt, m) for m in signed(self.done, kind)]

    def seals(self) -> list[tuple[int, bytes]]:
        bodies = [self.machine_body(m) for _, m in self.signed(Kind.SEAL)]
        attempts = [attempt for attempt, _ in self.signed(Kind.SEAL)]
        return [(a, b.list_digest) for a, b in zip(attempts, bodies, strict=True)]

    def machine_body(self, message) -> Seal:
        for view in (self.machine.view, self.machine.previous):
            entry = view.ballots.find(message.digest) if view else None
            if entry is not None:
                assert isinstance(entry.body, Seal)
                return entry.body
        raise AssertionError("signed, but not filed")

    def adopted(self) -> list[ev.Adopt]:
        return [action for action in self.done if isinstance(action, ev.Adopt)]


def lists_of(commits):
    """X is without ME, Y is everybody."""
    return [heard for heard in commits if heard.message.sender != ME], commits


def faults(actions):
    return [action.reason for action in actions if isinstance(action, ev.Fault)]
