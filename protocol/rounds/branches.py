"""Branches of a friends run (R4): what is final, who may go on without a quorum, which head wins.

Pure deciders over seal values, explored by themselves (`sim/exploration/branches.py`). RoundMachine
asks them through `protocol.rounds.standing` and `protocol.rounds.standing`, NodeCore through
`protocol.rounds.standing`.

A *branch* is what follows the last final seal without being final: provisional seals. Several
peers may stand on several branches; they all share the chain of final seals. What a branch leaves
that loses is in `branch_tree.py`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from blake3 import blake3

from protocol.errors import StateError
from protocol.identity import PeerId, Signer
from protocol.messages import Kind, Roster, SealValue, Slot
from protocol.rounds import roster as rosters
from protocol.rounds.chain import is_own_seal
from protocol.rounds.roster import has_quorum, voters

# Branch tree --------------------------------------------------------------------------------------
#
# The seals that a node knows, final or not, and what the branches leave that lose (R4).
#
# Pure. Drifts are not listed yet: what a lost branch summed is dropped. See
# `protocol/rounds/branches.py`.

_DRIFT_DOMAIN = b"barnraise/drift/1"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What a lost branch had summed: from the seal where it forked off to its last one.

    An object of its own, never part of a COMMIT: so it is equal at every loser, and dropping it
    changes nothing that was signed.
    """

    fork: bytes
    head: bytes

    @cached_property
    def digest(self) -> bytes:
        """Names the drift in a LIST."""
        return blake3(_DRIFT_DOMAIN + self.fork + self.head).digest()


@dataclass(slots=True)
class Tree:
    """The seals that a node knows, final or not, and the drifts of branches that it saw lost.

    Every seal but `root` stands on another one of the tree, so any two have a common ancestor.
    """

    root: SealValue
    _seals: dict[bytes, SealValue] = field(default_factory=dict)
    _drifts: dict[bytes, Drift] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seals[self.root.digest] = self.root

    def add(self, value: SealValue) -> None:
        """Take in a seal. Raises StateError if the seal before it is not here or does not fit."""
        before = self._seals.get(value.before)
        if before is None or before.round + 1 != value.round:
            raise StateError(f"the seal of round {value.round} stands on no known seal")
        self._seals[value.digest] = value

    def add_drift(self, drift: Drift) -> None:
        """Take in a drift. Raises StateError unless its head is a known seal that continues its
        fork."""
        if not {drift.fork, drift.head} <= self._seals.keys() or not self.continues(
            drift.head, drift.fork
        ):
            raise StateError("a drift between seals that are not both known, one behind the other")
        self._drifts[drift.digest] = drift

    def seal(self, digest: bytes) -> SealValue:
        """The seal of that digest. Raises StateError if it is not known."""
        try:
            return self._seals[digest]
        except KeyError:
            raise StateError("unknown seal") from None

    def drift(self, digest: bytes) -> Drift | None:
        """The drift of that name, if it is known."""
        return self._drifts.get(digest)

    def continues(self, head: bytes, seal: bytes) -> bool:
        """Whether `seal` is `head` or one before it."""
        low = self.seal(seal).round
        while self.seal(head).round > low:
            head = self.seal(head).before
        return head == seal

    def fork(self, one: bytes, other: bytes) -> bytes:
        """The last seal that both heads continue."""
        while one != other:
            if self.seal(one).round >= self.seal(other).round:
                one = self.seal(one).before
            else:
                other = self.seal(other).before
        return one

    def branch(self, head: bytes, stop: bytes) -> list[SealValue]:
        """The seals behind `stop` up to `head`, oldest first."""
        found = []
        while head != stop:
            found.append(self.seal(head))
            head = found[-1].before
        return found[::-1]

    def contributions(self, head: bytes, stop: bytes) -> Iterator[bytes]:
        """COMMIT digests that the seals behind `stop` up to `head` count, those of drifts too."""
        for value in self.branch(head, stop):
            yield from value.commits
            for name in value.drifts:
                drift = self.drift(name)
                if drift is None:
                    raise StateError("a seal counts an unknown drift")
                yield from self.contributions(drift.head, drift.fork)


def lost_drift(tree: Tree, old: SealValue, new: SealValue) -> Drift | None:
    """What a peer loses that goes over from one head to another; None where it loses nothing."""
    fork = tree.fork(old.digest, new.digest)
    if not any(True for _ in tree.contributions(old.digest, fork)):
        return None
    return Drift(fork=fork, head=old.digest)


def may_list(tree: Tree, basis: bytes, commits: Sequence[bytes], drifts: Sequence[bytes]) -> bool:
    """Whether a LIST on `basis` may name these drifts: known ones, ascending, each once, none of
    whose contributions counts on the chain up to `basis`, in the LIST, or in another one of them.
    """
    if list(drifts) != sorted(set(drifts)):
        return False
    taken = set(commits)
    for name in drifts:
        drift = tree.drift(name)
        if drift is None:
            return False
        parts = set(tree.contributions(drift.head, drift.fork))
        if parts & taken or not _is_new(tree, basis, drift, parts):
            return False
        taken |= parts
    return True


def choose_drifts(
    tree: Tree, basis: bytes, commits: Sequence[bytes], pending: Iterable[bytes]
) -> tuple[bytes, ...]:
    """The drifts that a closer lists beside `commits`: the one with the most tokens first, then
    what still fits. Ascending, as a LIST names them."""

    def order(name: bytes) -> tuple[int, bytes]:
        drift = tree.drift(name)
        return (-drift_tokens(tree, drift) if drift else 0, name)

    chosen: tuple[bytes, ...] = ()
    for name in sorted(set(pending), key=order):
        longer = tuple(sorted((*chosen, name)))
        if may_list(tree, basis, commits, longer):
            chosen = longer
    return chosen


def kept_drifts(tree: Tree, head: bytes, pending: Iterable[bytes]) -> frozenset[bytes]:
    """The drifts still worth keeping for who stands on `head`: what counts there in part is
    dropped whole. If that branch is lost too, its own drift brings the part back."""
    kept = set()
    for name in pending:
        drift = tree.drift(name)
        if drift is not None:
            parts = set(tree.contributions(drift.head, drift.fork))
            if _is_new(tree, head, drift, parts):
                kept.add(name)
    return frozenset(kept)


def drift_tokens(tree: Tree, drift: Drift) -> int:
    """The tokens that a LIST with this drift adds to the clock for it."""
    return tree.seal(drift.head).clock.tokens - tree.seal(drift.fork).clock.tokens


def _is_new(tree: Tree, head: bytes, drift: Drift, parts: AbstractSet[bytes]) -> bool:
    """Whether none of the drift's contributions counts up to `head`.

    Up to the common ancestor of `head` and the fork none can: the lost branch stood on that chain.
    """
    common = tree.fork(head, drift.fork)
    return not any(commit in parts for commit in tree.contributions(head, common))


# Branches -----------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class SealSeen:
    """A SEAL or PSEAL that was heard: who signed it, of which kind, in which attempt."""

    sender: PeerId
    kind: Kind
    attempt: int


# --- Who goes on, and what it is called.


def next_round(
    position: Position, reachable: Collection[PeerId], *, trust: str, survive: str
) -> Opening | None:
    """The round that the reachable peers, this one among them, can work in; None: they pause.

    With a quorum of the voters named by the *final* chain, the round behind its last seal: a branch
    is not continued then but goes through R2 again (`next_list`). Without one, and only where the
    manifest says `survive = "any"`, a provisional round on the head. A branch's own roster says who
    contributes there; a head whose roster names nobody reachable is left for the last final seal,
    or nobody could contribute to its rounds nor name a joiner.
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


def provisional_closer(position: Position, basis: bytes, attempt: int) -> PeerId:
    """Who proposes the LIST in this attempt of a provisional round.

    Takes turns among all voters of the last final seal, then its other members, whoever is
    reachable: so that each attempt has one closer, the same for everybody. An unreachable one costs
    an attempt.
    """
    return rosters.provisional_closer(position.voting, basis, attempt)


def contributors(opening: Opening, reachable: Collection[PeerId]) -> tuple[PeerId, ...]:
    """Who may COMMIT in the round: the reachable members of the roster that its basis names."""
    return tuple(peer for peer in opening.basis.roster.members if peer in reachable)


def next_attempt(entered: Iterable[int]) -> int:
    """The attempt to enter on a basis, by the attempts that the reachable have entered on it.

    Provisional and ordinary attempts on one basis share one count. Their LISTs share one kind of
    slot, and an attempt number is never used again (R2).
    """
    return 1 + max(entered, default=-1)


def slot_of(before: SealValue, kind: Kind, attempt: int = 0) -> Slot:
    """The place of a COMMIT, VOTE, PVOTE, SEAL or PSEAL in the round on `before`.

    The seal that named the roster stands in the slot, so whoever signed on a branch may sign for
    the same round of another branch. PVOTE and PSEAL have slots of their own: a peer that PSEALed
    one LIST may still VOTE for another one, even in a later attempt on the same basis.
    """
    return Slot(
        run=before.run,
        shard=before.shard,
        round=before.round + 1,
        basis=before.digest,
        attempt=attempt,
        kind=kind,
        subject=before.digest if kind in (Kind.SEAL, Kind.PSEAL) else b"",
    )


# --- What is final, and what binds.


def is_final(
    position: Position, value: SealValue, sealed: Iterable[SealSeen], *, trust: str
) -> bool:
    """Whether `value` is final behind the final seal of `position`, by what was heard for it.

    The seal before it must be final, and a quorum of the voters that the final chain names must
    have SEALed it in one attempt. PSEALs are no SEALs, attempts never add up, and standing on a
    branch says nothing.
    """
    if value.before != position.final.digest:
        return False
    by_attempt: dict[int, set[PeerId]] = {}
    for seen in sealed:
        if seen.kind is Kind.SEAL:
            by_attempt.setdefault(seen.attempt, set()).add(seen.sender)
    roster = position.voting
    return any(has_quorum(roster, peers, trust=trust) for peers in by_attempt.values())


def lock_after(held: Lock | None, kind: Kind, signing: Lock) -> Lock | None:
    """The lock of a peer that held `held` and signs SEAL or PSEAL for the LIST of `signing`.

    PSEAL locks nobody: a lock protects what a quorum may have made final, and no number of PSEALs
    makes anything final.
    """
    return signing if kind is Kind.SEAL else held


def highest_lock(final: bytes, locks: Iterable[Lock]) -> Lock | None:
    """The lock of the latest attempt in the round behind `final`.

    Locks of one attempt are on one LIST, since its certificate needs a quorum; the digest only
    makes the choice total.
    """
    here = [lock for lock in locks if lock.basis == final]
    return min(here, key=lambda lock: (-lock.attempt, lock.list_digest), default=None)


def next_list(
    tree: Tree, position: Position, opening: Opening, locks: Iterable[Lock]
) -> bytes | None:
    """The digest of the LIST that the round must take up; None leaves its closer free.

    Right behind the last final seal, final round or provisional: the highest lock in reach. Without
    a lock an ordinary round takes up the branch's first LIST, so that the branch becomes final
    round by round, or gives way where its bytes cannot be had.
    """
    final = position.final.digest
    if opening.basis.digest != final:
        return None
    lock = highest_lock(final, locks)
    if lock is not None:
        return lock.list_digest
    rest = tree.branch(position.head.digest, final)
    return rest[0].list_digest if rest and not opening.is_provisional else None


def is_proof(data: bytes, sender: PeerId, basis: SealValue, signer: Signer) -> bool:
    """Whether a COMMIT on `basis` carries its sender's own SEAL or PSEAL of `basis` (R1).

    PSEALs prove as well: the rosters of a branch are part of its seals, which become final later,
    and where nobody could prove anything its voters would lose their votes one by one.
    """
    return is_own_seal(data, sender, basis, signer)


# --- When branches meet.


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


def head_behind(tree: Tree, head: SealValue, final: SealValue) -> SealValue:
    """Where a peer stands that learns a final seal: on its branch if that continues it."""
    return head if _continues(tree, head, final) else final
