"""The seals that a node knows, final or not, and what the branches leave that lose (R4).

Pure. Drifts are not listed yet: what a lost branch summed is dropped. See
`protocol/rounds/branches.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from blake3 import blake3

from protocol.errors import StateError
from protocol.messages import SealValue

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
