"""What the records of all nodes together tell: the common ground of the checks.

A check is given every record after the history has taken it in. It yields a sentence for each
promise that the record breaks, and changes nothing but itself.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from node.reporting.tracing import (
    Adopted,
    Advanced,
    Began,
    Confirmed,
    FellBack,
    Record,
    Signed,
    Synced,
)
from protocol.identity import PeerId
from protocol.messages import (
    Body,
    Commit,
    Kind,
    Roster,
    SealValue,
    SignedMessage,
    Slot,
    decode_body,
)

BODIES_NEEDED = frozenset({Kind.COMMIT, Kind.VOTE, Kind.SEAL, Kind.PVOTE, Kind.PSEAL})
"""All other rules are about slots; reading every body would cost more than the rest together."""

ROUNDS_OF_COMMITS = 4
"""COMMITs of so many rounds behind the last seal stay: a node that lags adopts what they are in."""


Kinds = tuple[type[Record], ...]


class Check:
    """One invariant, fed with the records of its `kinds`; `name` is one of I1 to I9."""

    name: str = ""
    kinds: Kinds = ()

    def saw(self, record: Record) -> Iterator[str]:
        """What is broken by this record."""
        raise NotImplementedError

    def finish(self) -> Iterator[str]:
        """What is broken by nothing more having come."""
        return iter(())


class Electorate:
    """Who votes on what follows one seal, and what a quorum of them is (R1).

    Written from the law, not from `protocol.rounds.roster`: a wrong quorum there must not pass
    here.
    """

    def __init__(self, roster: Roster, trust: str) -> None:
        seats = [seat for seat in roster.seats if seat.voter_since >= 0]
        self.voters: frozenset[PeerId] = frozenset(seat.peer for seat in seats)
        self._is_open = trust == "open"
        self._eldest = min(seats, key=lambda seat: (seat.voter_since, seat.peer)).peer

    def is_quorum(self, peers: AbstractSet[PeerId]) -> bool:
        """Whether the voters among `peers` decide."""
        agreeing, count = len(self.voters & peers), len(self.voters)
        if self._is_open and count >= 4:
            return 3 * agreeing >= 2 * count
        return 2 * agreeing > count or (2 * agreeing == count and self._eldest in peers)


@dataclass(frozen=True, slots=True)
class TracedSignature:
    """A signature of a traced node, and in which of its lives it gave it."""

    message: SignedMessage
    body: Body | None
    life: int


class History:
    """Seals, electorates and signatures, from records in the order of time."""

    def __init__(self, trust: str, *, lag: int = 1) -> None:
        """`lag` is L of R1: two seals before a round is the one that names it, where L is 2."""
        self._trust, self._lag = trust, lag
        self.values: dict[bytes, SealValue] = {}
        self.heads: dict[PeerId, SealValue] = {}
        """The last final seal that each node has told to be durable on it."""
        self.branches: dict[PeerId, list[SealValue]] = {}
        """The provisional seals behind it that each node stands on (R4)."""
        self.left: dict[PeerId, set[bytes]] = {}
        """Provisional seals that each node has given up."""
        self.previous: SealValue | None = None
        """The head, before this record, of the node whose record is looked at."""
        self.lives: dict[PeerId, int] = {}
        self.slots: dict[tuple[PeerId, Slot], bytes] = {}
        self.conflict = False
        """Whether the Signed that is looked at fills a slot anew, with something else."""
        self.seals: dict[bytes, TracedSignature] = {}
        """Every SEAL that a traced node has signed, by its encoding."""
        self.commits: dict[bytes, TracedSignature] = {}
        self.bent: set[PeerId] = set()
        """Who breaks rules on purpose, or computes wrongly: what they say is no promise."""
        self.restarted: dict[bytes, set[PeerId]] = {}
        """By seal: who came back in the round behind it, or in the next. Such a node may have been
        killed between a signature's journal and its record, and serve it all the same."""
        self.final: SealValue | None = None
        self.said: TracedSignature | None = None
        """What the Signed that is looked at says; None where it only repeats an earlier one."""
        self._told: set[bytes] = set()
        self._places: dict[PeerId, dict[bytes, list[tuple[Slot, bytes]]]] = {}
        """The latest rounds that each node has signed in, as many as are in flight, and what."""
        self._electorates: dict[bytes, Electorate] = {}
        self._commits_of: dict[int, list[bytes]] = {}

    def saw(self, record: Record) -> None:
        """Take a record in; called before any check sees it."""
        match record:
            case Signed(peer=peer, message=message):
                self._signed(peer, message)
            case Began(peer=peer, head=head):
                self.previous = self.heads.get(peer)
                self.lives[peer] = self.lives.get(peer, 0) + 1
                self._reached(peer, head.value)
                self._left(peer)
                if self.lives[peer] > 1:
                    for basis in (self.basis_behind(head.value), head.value.basis):
                        self.restarted.setdefault(basis, set()).add(peer)
            case Adopted(peer=peer, certificate=head) | Synced(peer=peer, certificate=head):
                self.previous = self.heads.get(peer)
                self._left(peer)
                self._reached(peer, head.value)
            case Advanced(peer=peer, certificate=head):
                self._went_on(peer, head.value)
            case Confirmed(peer=peer, certificate=head):
                self.previous = self.heads.get(peer)
                del self.branches[peer][:1]
                self._reached(peer, head.value)
            case FellBack(peer=peer):
                self._left(peer)
            case _:
                pass

    def basis_behind(self, value: SealValue) -> bytes:
        """What the slots of the round behind a seal are named by."""
        return value.digest if self._lag == 1 else value.before

    def bases_behind(self, value: SealValue) -> set[bytes]:
        """The same of all rounds that may be under way behind it (R5)."""
        return {self.basis_behind(value), value.digest}

    def behind(self, value: SealValue) -> Electorate | None:
        """Who votes in the round behind a seal."""
        return self.electorate(self.basis_behind(value))

    def named(self, value: SealValue) -> SealValue | None:
        """The seal that names a round, where two are in flight (R5), and None else."""
        return self.values.get(value.basis) if self._lag > 1 else None

    def electorate(self, basis: bytes) -> Electorate | None:
        """Who votes in the round that `basis` opened; None if nobody has told of that seal."""
        if basis not in self._electorates and basis in self.values:
            self._electorates[basis] = Electorate(self.values[basis].roster, self._trust)
        return self._electorates.get(basis)

    def forget_head(self, peer: PeerId) -> None:
        """What was durable on this node is gone, and nobody can blame it."""
        self.heads.pop(peer, None)
        self._places.pop(peer, None)

    def signed_in(self, peer: PeerId, basis: bytes) -> list[tuple[Slot, bytes]]:
        """Slots that a node has told to be filled in the round that `basis` opened."""
        return self._places.get(peer, {}).get(basis, [])

    def _signed(self, peer: PeerId, message: SignedMessage) -> None:
        place, kind = (peer, message.slot), message.slot.kind
        self.conflict = self.slots.setdefault(place, message.digest) != message.digest
        if not self.conflict and message.digest in self._told:
            # A node that comes back tells again what its journal has.
            self.said = None
            return
        self._told.add(message.digest)
        rounds = self._places.setdefault(peer, {})
        if message.slot.basis not in rounds:
            for basis in list(rounds)[: len(rounds) + 1 - self._lag]:
                del rounds[basis]
        rounds.setdefault(message.slot.basis, []).append((message.slot, message.digest))
        body = decode_body(message) if kind in BODIES_NEEDED else None
        self.said = TracedSignature(message, body, self.lives.get(peer, 0))
        if kind is Kind.SEAL:
            self.seals[message.encoded] = self.said
        elif kind is Kind.COMMIT:
            assert isinstance(body, Commit)
            self.commits[message.digest] = self.said
            self._commits_of.setdefault(message.slot.round, []).append(message.digest)

    def stand(self, peer: PeerId) -> SealValue | None:
        """The head that a node trains on: the last of its branch, or final."""
        branch = self.branches.get(peer)
        return branch[-1] if branch else self.heads.get(peer)

    def _went_on(self, peer: PeerId, value: SealValue) -> None:
        value = self.values.setdefault(value.digest, value)
        self.branches.setdefault(peer, []).append(value)

    def _left(self, peer: PeerId) -> None:
        lost = self.branches.pop(peer, [])
        self.left.setdefault(peer, set()).update(value.digest for value in lost)

    def _reached(self, peer: PeerId, value: SealValue) -> None:
        # One object per seal: what is computed from it once is then there for all.
        value = self.values.setdefault(value.digest, value)
        if value.round == 0:
            # What stands before genesis, and names the first of two rounds in flight (R5).
            self.values.setdefault(value.before, value)
        self.heads[peer] = value
        if self.final is None or value.round > self.final.round:
            self.final = value
            for index in [i for i in self._commits_of if i < value.round - ROUNDS_OF_COMMITS]:
                for digest in self._commits_of.pop(index):
                    del self.commits[digest]
