"""Where a node stands (R4): last final seal, branch behind it, a view of each round. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from protocol import limits
from protocol.errors import DecodeError, ProofError
from protocol.events import Send
from protocol.frames import Branch, WantBranch
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Body,
    Kind,
    Roster,
    Seal,
    SealCertificate,
    SealValue,
    SignedMessage,
    decode_message,
    is_signed,
)
from protocol.rounds.branches import (
    Lock,
    Opening,
    Position,
    Tree,
    better_head,
    next_round,
    provisional_sealers,
)
from protocol.rounds.round_config import RoundConfig
from protocol.rounds.round_view import RoundView

NewView = Callable[[SealCertificate], RoundView]


@dataclass(slots=True)
class Standing:
    """The chain's end and what stands on it.

    `views[0]` is of the round behind `final`, the next of the round behind `branch[0]`, and so on:
    one more than there are seals in `branch`. `ahead` are seals behind the head to which others
    went on, and this node follows. `given_up` holds the views of branches that were left, by basis:
    what was signed in them stays signed, should the node come back there.
    """

    final: SealCertificate
    views: list[RoundView]
    branch: list[SealCertificate] = field(default_factory=list)
    ahead: tuple[SealCertificate, ...] = ()
    given_up: dict[bytes, RoundView] = field(default_factory=dict)
    beside: RoundView | None = None
    """The round behind `top`, where two are in flight (R5): the head names it, whatever the round
    before it comes to. So the second round of a branch is the same one on all branches."""

    _own_words: dict[bytes, int] = field(default_factory=dict)
    """By digest the rounds of own messages on branches that cannot become final any more."""

    @property
    def base(self) -> RoundView:
        """The round that is final next."""
        return self.views[0]

    @property
    def top(self) -> RoundView:
        """The round behind the head: the one that is trained for."""
        return self.views[-1]

    @property
    def head(self) -> SealCertificate:
        """The last seal of the branch, or the final one."""
        return self.branch[-1] if self.branch else self.final

    @property
    def position(self) -> Position:
        """Final seal and head."""
        return Position(
            self.final.value, self.head.value, self.base.seals.named, self.top.seals.named
        )

    @property
    def bound(self) -> bytes:
        """The LIST that the own branch, or the one that is followed, made of the next round."""
        path = self.branch or self.ahead
        return path[0].value.list_digest if path else b""

    @property
    def under_way(self) -> list[RoundView]:
        """All rounds under way, and those of the branch."""
        return self.views if self.beside is None else [*self.views, self.beside]

    @property
    def worked_for(self) -> list[RoundView]:
        """The rounds that a contribution may be for."""
        return [self.top] if self.beside is None else [self.top, self.beside]

    def on(self, basis: bytes) -> RoundView | None:
        """The view of the round that this names."""
        for view in self.under_way:
            if view.basis == basis:
                return view
        return None

    def about(self, subject: bytes) -> RoundView | None:
        """The view of the round that a COMMIT or LIST is of, the newest first."""
        return next((view for view in reversed(self.under_way) if view.is_about(subject)), None)

    def others(self, view: RoundView) -> Iterator[RoundView]:
        """All views but this one."""
        return (other for other in self.under_way if other is not view)

    @property
    def shared(self) -> list[RoundView]:
        """The rounds that final seals name: the same ones on all branches."""
        return self.views[: 1 + self.base.is_overlapped]

    @property
    def followed(self) -> bytes:
        """The LIST from which those that are followed went on behind the head; empty if none."""
        return self.ahead[0].value.list_digest if self.ahead else b""

    def advance(self, certificate: SealCertificate, new_view: NewView) -> None:
        """Go on from a provisional seal on the head."""
        assert certificate.value.before == self.top.seals.before
        self.branch.append(certificate)
        self._follow(certificate)
        self.views.append(self._behind(certificate, new_view))

    def confirm(self, certificate: SealCertificate) -> None:
        """The first seal of the branch is final."""
        assert certificate.value.digest == self.branch[0].value.digest
        self.final = certificate
        del self.branch[0], self.views[0]
        self.base.decide_final()
        for view in self.under_way:
            view.set_final(self.base.seals.named)
        self._forget()

    def fall_back(self) -> list[RoundView]:
        """Give the branch up; the rounds that stood on seals of it, and stand on none now (R5)."""
        left = self.views[1:]
        floating = left if self.base.is_overlapped else []
        for view in floating:
            view.give_up_head()
        if self.beside is not None and self.branch:
            left = [*left, self.beside]
        if floating:
            # The last final seal names it, too: it is under way beside the next one again.
            self.beside = left.pop(0)
        self.given_up |= {view.basis: view for view in left}
        del self.branch[:], self.views[1:]
        self.ahead = ()
        return floating

    def resynced(self) -> None:
        """The trainer begins anew (R6): what it gave for these rounds it does not hold any more,
        and COMMITs of a branch that comes back are of that."""
        for view in (*self.under_way, *self.given_up.values()):
            view.own.is_out_of_hand = bool(view.own.commit)

    def adopt(self, certificate: SealCertificate, new_view: NewView) -> None:
        """Stand on another final seal; there is no branch."""
        assert not self.branch
        self._follow(certificate)
        self.final = certificate
        self.views = [self._behind(certificate, new_view)]
        self.base.decide_final()
        self._forget()

    def _follow(self, certificate: SealCertificate) -> None:
        is_ahead = self.ahead and self.ahead[0].value.digest == certificate.value.digest
        self.ahead = self.ahead[1:] if is_ahead else ()

    def _behind(self, certificate: SealCertificate, new_view: NewView) -> RoundView:
        """The round behind a seal: the one that it names, which may come back; or with two in
        flight that which was beside the round before (R5)."""
        beside, self.beside = self.beside, None
        value = certificate.value
        basis = value.before if self.base.is_overlapped else value.digest
        if beside is not None and beside.basis == basis:
            return beside
        return self.returned(basis) or new_view(certificate)

    def returned(self, basis: bytes) -> RoundView | None:
        """The view of a round that was left, and comes back."""
        view = self.given_up.pop(basis, None)
        if view is not None:
            view.set_final(self.base.seals.named)
            view.outcome.followed, view.outcome.is_diverged = b"", False
            # Contributions of rounds that were left are not kept: they have to be asked for again.
            view.cells.parts.clear()
            view.cells.asked.clear()
        return view

    def has_signed(self, message: SignedMessage) -> bool:
        """Whether an own message is of a round on a branch that was left."""
        view = self.given_up.get(message.slot.basis)
        is_there = view is not None and view.ballots.find(message.digest) is not None
        return is_there or message.digest in self._own_words

    def _forget(self) -> None:
        """Rounds that stand on no seal which may still become final are over.

        What was signed in them may come back from whoever was on that branch as well, as long as
        rounds of that number are ahead.
        """
        known = {self.final.value.digest, *(link.value.digest for link in self.branch)}
        kept = {}
        for basis, view in sorted(self.given_up.items(), key=lambda item: item[1].index):
            if view.seals.head.before in known:
                known.add(basis)
                kept[basis] = view
            else:
                own = (message for message in view.ballots.messages() if message.sender == view.me)
                self._own_words |= {message.digest: message.slot.round for message in own}
        self.given_up = kept
        past = [digest for digest, number in self._own_words.items() if number < self.base.index]
        for digest in past:
            del self._own_words[digest]


# Reach --------------------------------------------------------------------------------------------
#
# Whether the quorum is in reach, and who goes on where it is not (R4).


@dataclass(slots=True)
class Reach:
    """For how long the quorum is out of reach; one per RoundMachine.

    Nobody branches off because a link broke for a moment, nor in its first moments: a node that
    was just started has not met anybody yet.
    """

    config: RoundConfig
    me: PeerId
    lost_s: float | None = None
    """Since when no quorum is in reach."""

    def sealers(
        self, position: Position, suspects: Collection[PeerId], *, now_s: float
    ) -> tuple[Opening, frozenset[PeerId]]:
        """The round to work in, and who has to seal it; nobody in particular where it is ordinary.

        An ordinary round whose quorum is out of reach waits for it.
        """
        ordinary = Opening(position.final, is_provisional=False)
        known = {*position.voting.members, *position.seated.members, self.me}
        reachable = known - (set(suspects) - {self.me})
        opening = next_round(
            position, reachable, trust=self.config.trust, survive=self.config.survive
        )
        if opening is None or not opening.is_provisional:
            self.lost_s = None
            return ordinary, frozenset()
        if self.lost_s is None:
            self.lost_s = now_s
        if now_s < self.due_s:
            return ordinary, frozenset()
        return opening, frozenset(provisional_sealers(position, reachable))

    def has_all(self, roster: Roster, suspects: Collection[PeerId]) -> bool:
        """Whether the round is an ordinary one without another look, as nearly always: every voter
        of the round that is final next is in reach, or nobody may branch."""
        if self.config.may_branch:
            if not roster.voter_set.isdisjoint(suspects):
                return False
            self.lost_s = None
        return True

    def has_member(self, roster: Roster, suspects: Collection[PeerId]) -> bool:
        """Whether anybody in reach has a seat there; who went on to a round in which nobody has one
        would leave it at once."""
        return any(peer == self.me or peer not in suspects for peer in roster.members)

    @property
    def due_s(self) -> float:
        """When the grace is over; in the past or never where there is none."""
        return 0.0 if self.lost_s is None else self.lost_s + self.config.grace_s


# Meeting ------------------------------------------------------------------------------------------
#
# Branches meet (R4): where each linked peer stands, and where all who met should.
#
# A heartbeat says on which head its sender stands. Who does not know that head asks for the seals
# up to it; with them and the highest lock known, `branches.better_head` gives the same answer to
# all.

Path = tuple[SealCertificate, ...]

ASK_AFTER_S, ASK_AGAIN_S = 0.5, 2.0
"""A seal behind the own head is mostly one that this node is about to make itself."""

WAIT_S = 4.0
"""A closer waits so long at most for the branch of a peer that it has just met."""

UNTOLD_MAX = 8
"""Who was asked for so many branches, and each time named another one instead of an answer, is
waited for no longer."""

PATHS_MAX = 64
"""Branches of others that are kept at a time."""


@dataclass(slots=True)
class _Peer:
    """What a linked peer said of itself: its last final round and its head, and since when."""

    final: int
    head: bytes
    since_s: float
    untold: int = 0
    """So many heads it has left one after the other without an answer for any."""

    asked_s: float | None = None
    is_told: bool = False
    """Whether it has answered for this head."""
    arriving: list[SealCertificate] = field(default_factory=list)


class Meeting:
    """The branches of the linked peers; one per NodeCore."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._peers: dict[PeerId, _Peer] = {}
        self._paths: dict[bytes, Path] = {}
        """By head: the provisional seals behind the final one."""
        self._locks: set[Lock] = set()
        self._final = b""

    def heard(self, peer: PeerId, final: int, head: bytes, *, now_s: float) -> bool:
        """A heartbeat told where its sender stands; whether that is new. An empty `head` stands for
        its last final seal, whichever that is."""
        known = self._peers.get(peer)
        is_new = known is None or known.final != final or known.head != head
        if is_new:
            is_untold = known is not None and known.asked_s is not None and not known.is_told
            untold = known.untold + 1 if known is not None and is_untold else 0
            is_evading = known is not None and untold >= UNTOLD_MAX
            since_s = known.since_s if known is not None and is_evading else now_s
            self._peers[peer] = _Peer(final, head, since_s, untold)
        return is_new

    def is_open(self, standing: Standing, *, now_s: float) -> bool:
        """Whether a linked peer on this final seal stands on a branch that was heard of just now:
        who would close a round waits a moment, or would not know what it could take up.

        Not for strangers, who come under a new key or by a new link as often as they like: on each
        branch is somebody whom the last final seal seats.
        """
        own, final = standing.head.value.digest, standing.final.value
        return any(
            known.final == final.round
            and known.head not in (own, final.digest, b"")
            and known.head not in self._paths
            and now_s < known.since_s + WAIT_S
            and standing.base.may_speak(peer)
            for peer, known in self._peers.items()
        )

    def left(self, peer: PeerId) -> None:
        """A link is gone."""
        self._peers.pop(peer, None)

    def is_behind(self, final: SealValue, doubted: Collection[PeerId] = ()) -> bool:
        """Whether a linked peer has a later final seal, one that is not doubted to have it."""
        return any(
            known.final > final.round and peer not in doubted for peer, known in self._peers.items()
        )

    def ask(self, standing: Standing, *, now_s: float) -> Iterator[Send]:
        """Questions that are due: of peers on this final seal whose branch or lock is not known.

        Nobody is asked while nobody is on a branch, as nearly always.
        """
        self._rebase(standing)
        final = standing.final.value
        own = standing.head.value.digest
        is_calm = own == final.digest and all(
            (known.head or own) == own
            for known in self._peers.values()
            if known.final == final.round
        )
        for peer, known in sorted(self._peers.items()) if not is_calm else ():
            is_there = (known.head or final.digest) == own
            if known.final != final.round or known.is_told or is_there:
                continue
            wait_s = 0.0 if own == final.digest else ASK_AFTER_S
            is_due = now_s >= (
                known.since_s + wait_s if known.asked_s is None else known.asked_s + ASK_AGAIN_S
            )
            if is_due:
                known.asked_s, known.arriving = now_s, []
                yield Send(peer, WantBranch(final=final.digest))

    @staticmethod
    def answer(standing: Standing, peer: PeerId, final: bytes) -> Iterator[Send]:
        """The own branch and the highest lock, to a peer that asks."""
        if final != standing.final.value.digest:
            return
        lock = next(
            (m.encoded for m in standing.base.ballots.locks(standing.base.seals.before)), b""
        )
        for link in standing.branch:
            yield Send(peer, Branch(final=final, seals=(link,), lock=b""))
        yield Send(peer, Branch(final=final, seals=(), lock=lock))

    def arrived(self, peer: PeerId, frame: Branch, standing: Standing) -> None:
        """A piece of a peer's branch. Raises ProofError for what cannot be one."""
        known, final = self._peers.get(peer), standing.final.value
        if known is None or known.asked_s is None or frame.final != final.digest:
            return
        for link in frame.seals:
            last = known.arriving[-1].value if known.arriving else final
            if link.value.before != last.digest:
                # It changed its branch meanwhile, or two answers overtook each other.
                known.arriving = []
                return
            _check_link(link, last, standing, self._signer)
            known.arriving.append(link)
            if len(known.arriving) > limits.BRANCH_ROUNDS_MAX:
                raise ProofError("a branch that is too long")
        if frame.seals:
            return
        if frame.lock:
            self._locks.add(_lock_of(frame.lock, standing, self._signer))
        path = tuple(known.arriving)
        head = path[-1].value.digest if path else final.digest
        if head != (known.head or final.digest):
            return  # An older answer, or its last piece alone.
        if len(self._paths) < PATHS_MAX:
            self._paths[head] = path
        known.is_told, known.arriving = True, []

    def _rebase(self, standing: Standing) -> None:
        """Paths begin at the own final seal."""
        final = standing.final.value
        if final.digest == self._final:
            return
        self._final = final.digest
        self._locks.clear()
        paths, self._paths = self._paths, {}
        for path in paths.values():
            digests = [link.value.digest for link in path]
            if final.digest in digests:
                rest = path[digests.index(final.digest) + 1 :]
                self._paths[rest[-1].value.digest if rest else final.digest] = rest
        for known in self._peers.values():
            known.arriving = []
            known.is_told = known.is_told and (known.head or final.digest) in self._paths

    def choose(self, standing: Standing) -> Path | None:
        """The seals to stand on behind the final one; None where nobody knows better.

        Only those count who are linked: what nobody in reach stands on can be had from nobody.
        """
        final, own = standing.final.value, tuple(standing.branch)
        stands = {
            known.head or final.digest
            for known in self._peers.values()
            if known.final == final.round
        }
        heads = stands.intersection(self._paths)
        target = own + standing.ahead
        if not heads and not standing.ahead:
            return None
        locks = {lock for lock in self._locks if lock.basis == final.digest} | set(
            _own_locks(standing)
        )
        paths = {standing.head.value.digest: own}
        paths |= {head: self._paths[head] for head in sorted(heads)}
        tree = Tree(final)
        for path in paths.values():
            for link in path:
                tree.add(link.value)
        positions = [Position(final, path[-1].value if path else final) for path in paths.values()]
        best = paths.get(better_head(tree, positions, locks).head.digest, ())
        # The same seals, whoever's PSEALs they come with.
        is_same = [a.value.digest for a in best] == [a.value.digest for a in target]
        return None if is_same else best


def _own_locks(standing: Standing) -> Iterable[Lock]:
    for message in standing.base.ballots.locks(standing.base.seals.before):
        body = decode_message(message.encoded)[1]
        assert isinstance(body, Seal)
        yield Lock(standing.base.seals.before, message.slot.attempt, body.list_digest)


def _check_link(link: SealCertificate, last: SealValue, standing: Standing, signer: Signer) -> None:
    """Raise ProofError unless `link` is a provisional seal on `last`, by seats of that branch."""
    value, base = link.value, standing.base
    basis = last.before if base.is_overlapped else last.digest
    seats = base.member_set | standing.final.value.roster.member_set | last.roster.member_set
    if (value.run, value.shard) != (last.run, last.shard):
        raise ProofError("a branch of another run or shard")
    if value.basis != basis:
        raise ProofError("a provisional seal whose roster another seal named")
    if value.round != last.round + 1 or not link.seals:
        raise ProofError(f"a provisional seal of round {value.round} that nobody sealed")
    is_seated = False
    for data in link.seals:
        message, body = _decoded(data)
        slot = message.slot
        is_place = (slot.kind, slot.basis, slot.subject) == (Kind.PSEAL, basis, last.digest)
        if not is_place or not isinstance(body, Seal) or body.value != value.digest:
            raise ProofError("a provisional seal with another PSEAL")
        if not is_signed(message, signer):
            raise ProofError("a PSEAL that its sender did not sign")
        is_seated |= message.sender in seats
    if not is_seated:
        raise ProofError("PSEALs of nobody who has a seat")


def _lock_of(data: bytes, standing: Standing, signer: Signer) -> Lock:
    message, body = _decoded(data)
    slot, base = message.slot, standing.base
    is_place = (slot.kind, slot.basis, slot.subject) == (Kind.SEAL, base.basis, base.seals.before)
    is_seal = is_place and isinstance(body, Seal) and message.sender in base.member_set
    if not is_seal or not is_signed(message, signer):
        raise ProofError("a lock that is no SEAL of a member")
    assert isinstance(body, Seal)
    return Lock(base.seals.before, slot.attempt, body.list_digest)


def _decoded(data: bytes) -> tuple[SignedMessage, Body]:
    try:
        return decode_message(data)
    except DecodeError as error:
        raise ProofError(f"malformed SEAL of a branch: {error}") from error
