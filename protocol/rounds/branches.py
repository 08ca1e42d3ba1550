"""Branches of a friends run (R4): who may go on without a quorum, and which head wins.

Pure deciders over seal values. RoundMachine and NodeCore ask them through
`protocol.rounds.standing`; the machines with them are explored in
`sim/exploration/running_branches.py`.

A *branch* is what follows the last final seal without being final: provisional seals. Several
peers may stand on several branches; they all share the chain of final seals. What a branch that
loses had summed is dropped.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from protocol.errors import StateError
from protocol.identity import PeerId
from protocol.messages import Roster, SealValue
from protocol.rounds.roster import has_quorum, voters


@dataclass(slots=True)
class Tree:
    """The seals that a node knows, final or not.

    Every seal but `root` stands on another one of the tree, so any two have a common ancestor.
    """

    root: SealValue
    _seals: dict[bytes, SealValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seals[self.root.digest] = self.root

    def add(self, value: SealValue) -> None:
        """Take in a seal. Raises StateError if the seal before it is not here or does not fit."""
        before = self._seals.get(value.before)
        if before is None or before.round + 1 != value.round:
            raise StateError(f"the seal of round {value.round} stands on no known seal")
        self._seals[value.digest] = value

    def seal(self, digest: bytes) -> SealValue:
        """The seal of that digest. Raises StateError if it is not known."""
        try:
            return self._seals[digest]
        except KeyError:
            raise StateError("unknown seal") from None

    def continues(self, head: bytes, seal: bytes) -> bool:
        """Whether `seal` is `head` or one before it."""
        low = self.seal(seal).round
        while self.seal(head).round > low:
            head = self.seal(head).before
        return head == seal

    def branch(self, head: bytes, stop: bytes) -> list[SealValue]:
        """The seals behind `stop` up to `head`, oldest first."""
        found = []
        while head != stop:
            found.append(self.seal(head))
            head = found[-1].before
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Lock:
    """A voter SEALed this LIST in this attempt of the round that follows the final seal `basis`."""

    basis: bytes
    attempt: int
    list_digest: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """Where a peer stands: its last final seal, and the head of the branch that continues it.

    Without a branch both are the same seal. Each names the round behind it; with two rounds in
    flight (R5) another one does, the seal before it: `electing` that behind the final seal, and so
    who votes there, `seating` that behind the head, and so who contributes to it.
    """

    final: SealValue
    head: SealValue
    electing: SealValue | None = None
    seating: SealValue | None = None

    @property
    def voting(self) -> Roster:
        """Whose voters make the next round final."""
        return (self.electing or self.final).roster

    @property
    def seated(self) -> Roster:
        """Who has a seat in the round behind the head."""
        return (self.seating or self.head).roster


@dataclass(frozen=True, slots=True)
class Opening:
    """The round to work in: the seal that names its roster, and whether its seal can be final."""

    basis: SealValue
    is_provisional: bool


# --- Who goes on.


def next_round(
    position: Position, reachable: Collection[PeerId], *, trust: str, survive: str
) -> Opening | None:
    """The round that the reachable peers, this one among them, can work in; None: they pause.

    With a quorum of the voters named by the *final* chain, the round behind its last seal: a branch
    is not continued then but goes through R2 again (`Standing.bound`). Without one, and only where
    the manifest says `survive = "any"`, a provisional round on the head. A branch's own roster says
    who contributes there; a head whose roster names nobody reachable is left for the last final
    seal, or nobody could contribute to its rounds nor name a joiner.
    """
    if has_quorum(position.voting, reachable, trust=trust):
        return Opening(position.final, is_provisional=False)
    if trust != "friends" or survive != "any" or not provisional_sealers(position, reachable):
        return None
    has_member = any(peer in reachable for peer in position.seated.members)
    return Opening(position.head if has_member else position.final, is_provisional=True)


def provisional_sealers(position: Position, reachable: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Whose PVOTEs and PSEALs a provisional round needs: of all of these, ascending.

    All reachable voters of the round that is final next, whom the last final seal names, or with
    two rounds in flight the one before it; where there are none, all its reachable members. Never
    those of the branch: else two sides that each dropped the other would each be complete.
    """
    roster = position.voting
    electorate = tuple(peer for peer in voters(roster) if peer in reachable)
    return electorate or tuple(peer for peer in roster.members if peer in reachable)


# --- When branches meet.


def highest_lock(final: bytes, locks: Iterable[Lock]) -> Lock | None:
    """The lock of the latest attempt in the round behind `final`.

    Locks of one attempt are on one LIST, since its certificate needs a quorum; the digest only
    makes the choice total.
    """
    here = [lock for lock in locks if lock.basis == final]
    return min(here, key=lambda lock: (-lock.attempt, lock.list_digest), default=None)


def better_head(tree: Tree, positions: Iterable[Position], locks: Collection[Lock]) -> Position:
    """Where all who meet should stand. Depends on who meets, never on the order in which they do.

    The longer final chain; then the head that continues the highest lock known there, if none does
    its last final seal; then more sealed tokens along the whole chain; then more rounds, or a round
    that listed nobody could lose to the seal that it stands on; then the lower digest. Locks come
    before tokens: the LIST of a lock may be final already, for somebody out of reach.
    """
    known = list(positions)
    final = max((position.final for position in known), key=lambda value: value.round)
    heads = [position.head for position in known if _continues(tree, position.head, final)]
    lock = highest_lock(final.digest, locks)
    if lock is not None:
        heads = [head for head in heads if _continues_lock(tree, head, lock)]
    best = min(
        heads, key=lambda head: (-head.clock.tokens, -head.round, head.digest), default=final
    )
    return Position(final, best)


def _continues(tree: Tree, head: SealValue, final: SealValue) -> bool:
    return tree.continues(head.digest, final.digest)


def _continues_lock(tree: Tree, head: SealValue, lock: Lock) -> bool:
    rest = tree.branch(head.digest, lock.basis)
    return bool(rest) and rest[0].list_digest == lock.list_digest
