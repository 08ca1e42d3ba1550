"""Branches of a friends run (R4): what is final, who may go on without a quorum, which head wins.

Pure deciders over seal values, explored by themselves (`sim/exploration/branches.py`). RoundMachine
asks them through `protocol.rounds.reach` and `protocol.rounds.standing`, NodeCore through
`protocol.rounds.meeting`.

A *branch* is what follows the last final seal without being final: provisional seals. Several
peers may stand on several branches; they all share the chain of final seals. What a branch leaves
that loses is in `branch_tree.py`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from protocol.identity import PeerId, Signer
from protocol.messages import Kind, Roster, SealValue, Slot
from protocol.rounds import roster as rosters
from protocol.rounds.branch_tree import Tree
from protocol.rounds.chain import is_own_seal
from protocol.rounds.roster import has_quorum, voters


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
