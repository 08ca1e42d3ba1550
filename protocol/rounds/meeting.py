"""Branches meet (R4): where each linked peer stands, and where all who met should. Pure.

A heartbeat says on which head its sender stands. Who does not know that head asks for the seals up
to it; with them and the highest lock known, `branches.better_head` gives the same answer to all.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from protocol import limits
from protocol.errors import DecodeError, ProofError
from protocol.events import Send
from protocol.frames import Branch, WantBranch
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Body,
    Kind,
    Seal,
    SealCertificate,
    SealValue,
    SignedMessage,
    decode_message,
    is_signed,
)
from protocol.rounds.branch_tree import Tree
from protocol.rounds.branches import Lock, Position, better_head
from protocol.rounds.standing import Standing

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
        lock = next((m.encoded for m in standing.base.ballots.locks(standing.base.before)), b"")
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
        heads = stands & self._paths.keys()
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
    for message in standing.base.ballots.locks(standing.base.before):
        body = decode_message(message.encoded)[1]
        assert isinstance(body, Seal)
        yield Lock(standing.base.before, message.slot.attempt, body.list_digest)


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
    is_place = (slot.kind, slot.basis, slot.subject) == (Kind.SEAL, base.basis, base.before)
    is_seal = is_place and isinstance(body, Seal) and message.sender in base.member_set
    if not is_seal or not is_signed(message, signer):
        raise ProofError("a lock that is no SEAL of a member")
    assert isinstance(body, Seal)
    return Lock(base.before, slot.attempt, body.list_digest)


def _decoded(data: bytes) -> tuple[SignedMessage, Body]:
    try:
        return decode_message(data)
    except DecodeError as error:
        raise ProofError(f"malformed SEAL of a branch: {error}") from error
