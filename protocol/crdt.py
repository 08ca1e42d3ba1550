"""State that replicas merge without asking anybody: registers, sets and counters. Pure.

Every type is a join semilattice: `merge` is total, commutative, associative and idempotent, and
its result covers both sides. What changes a value gives a *delta*, a small value of the same type;
deltas merged in any order and grouping, as often as they come, give what whole values would.
Source: Almeida, Shoker and Baquero, "Delta State Replicated Data Types", 2018.

Values are structs of `protocol.wire`: one state has one encoding, and bytes that break an order or
a bound are a DecodeError. `merge` itself never refuses: a state that has outgrown the bounds of the
wire is refused where its owner encodes it. The add-wins set is in `protocol.or_set`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, Self, TypeVar

from protocol import limits
from protocol.hybrid_clock import Stamp, WireStamp
from protocol.identity import PEER_ID_BYTES, PeerId
from protocol.wire import Range, Size

Writer = Annotated[PeerId, Size(PEER_ID_BYTES, PEER_ID_BYTES)]
Value = Annotated[bytes, Size(0, limits.CRDT_VALUE_BYTES_MAX)]
Count = Annotated[int, Range(1, 2**62)]

NOBODY = PeerId(bytes(PEER_ID_BYTES))
"""The writer of what was never written: lower than every key."""

_NEVER = Stamp(0)


class Mergeable(Protocol):
    """What all replicated types do."""

    def merge(self, *others: Self) -> Self:
        """The least value that covers this one and all others."""
        ...


M = TypeVar("M", bound=Mergeable)


def covers(state: M, other: M) -> bool:
    """Whether `other` says nothing that `state` does not say."""
    return state.merge(other) == state


def _raise_unless_ascending(keys: Sequence[object], what: str) -> None:
    if list(keys) != sorted(set(keys)):  # type: ignore[type-var]  # bytes, or tuples of them
        raise ValueError(f"{what} must ascend, none twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class LwwRegister:
    """One value for all; the latest stamp wins, then the higher writer, then the higher value.

    The last step makes the order total even for a writer who stamps two values alike.
    """

    value: Value = b""
    stamp: WireStamp = _NEVER
    writer: Writer = NOBODY

    @property
    def rank(self) -> tuple[int, bytes, bytes]:
        """The highest wins."""
        return self.stamp, self.writer, self.value

    def merge(self, *others: "LwwRegister") -> "LwwRegister":
        """The one of the highest rank."""
        return max((self, *others), key=lambda register: register.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class LwwCell:
    """What was last said under one key of an LwwMap: a value, or that there is none."""

    key: Value
    value: Value
    is_removed: bool
    stamp: WireStamp
    writer: Writer

    @property
    def rank(self) -> tuple[int, bytes, bool, bytes]:
        """The highest wins under its key."""
        return self.stamp, self.writer, self.is_removed, self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class LwwMap:
    """A last-writer-wins register per key; a removal is a value like any other.

    So a removed key keeps its cell: whoever forgets it must know that nothing older still travels.
    """

    cells: Annotated[tuple[LwwCell, ...], Size(0, limits.CRDT_ITEMS_MAX)] = ()

    def __post_init__(self) -> None:
        _raise_unless_ascending([cell.key for cell in self.cells], "keys")

    @classmethod
    def of(cls, cells: Iterable[LwwCell]) -> "LwwMap":
        """The join of maps of one cell each."""
        best: dict[bytes, LwwCell] = {}
        for cell in cells:
            held = best.get(cell.key)
            if held is None or cell.rank > held.rank:
                best[cell.key] = cell
        return cls(cells=tuple(best[key] for key in sorted(best)))

    def set(self, key: bytes, value: bytes, stamp: Stamp, writer: PeerId) -> "LwwMap":
        """The delta that puts `value` under `key`."""
        return LwwMap(
            cells=(LwwCell(key=key, value=value, is_removed=False, stamp=stamp, writer=writer),)
        )

    def remove(self, key: bytes, stamp: Stamp, writer: PeerId) -> "LwwMap":
        """The delta that takes away what is under `key`, if nothing later is."""
        return LwwMap(
            cells=(LwwCell(key=key, value=b"", is_removed=True, stamp=stamp, writer=writer),)
        )

    def merge(self, *others: "LwwMap") -> "LwwMap":
        """Per key the cell of the highest rank."""
        return LwwMap.of(cell for one in (self, *others) for cell in one.cells)

    @property
    def values(self) -> dict[bytes, bytes]:
        """Key to value, ascending, without what was removed."""
        return {cell.key: cell.value for cell in self.cells if not cell.is_removed}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowSet:
    """A set that nothing leaves."""

    members: Annotated[tuple[Value, ...], Size(0, limits.CRDT_ITEMS_MAX)] = ()

    def __post_init__(self) -> None:
        _raise_unless_ascending(self.members, "members")

    @classmethod
    def of(cls, members: Iterable[bytes]) -> "GrowSet":
        """The set of these members; also the delta that adds them."""
        return cls(members=tuple(sorted(set(members))))

    def merge(self, *others: "GrowSet") -> "GrowSet":
        """The union."""
        return GrowSet.of(member for one in (self, *others) for member in one.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPhaseSet:
    """A set in which a removal is for good, also one that is heard of before its addition.

    For what must never come back because somebody was slow to hear: revocations.
    """

    added: GrowSet = GrowSet()
    removed: GrowSet = GrowSet()

    @classmethod
    def of(cls, added: Iterable[bytes] = (), removed: Iterable[bytes] = ()) -> "TwoPhaseSet":
        """The delta that adds and removes these."""
        return cls(added=GrowSet.of(added), removed=GrowSet.of(removed))

    def merge(self, *others: "TwoPhaseSet") -> "TwoPhaseSet":
        """The union of both halves."""
        return TwoPhaseSet(
            added=self.added.merge(*(one.added for one in others)),
            removed=self.removed.merge(*(one.removed for one in others)),
        )

    @property
    def members(self) -> tuple[bytes, ...]:
        """What was added and never removed, ascending."""
        return tuple(sorted(set(self.added.members) - set(self.removed.members)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one writer has counted."""

    writer: Writer
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowCounter:
    """A counter that only grows: the highest count of each writer, summed when it is read.

    Additions themselves never travel: heard twice, they would count twice.
    """

    shares: Annotated[tuple[Share, ...], Size(0, limits.CRDT_ITEMS_MAX)] = ()

    def __post_init__(self) -> None:
        _raise_unless_ascending([share.writer for share in self.shares], "writers")

    @classmethod
    def of(cls, shares: Iterable[Share]) -> "GrowCounter":
        """The join of counters of one share each."""
        best: dict[PeerId, Share] = {}
        for share in shares:
            held = best.get(share.writer)
            if held is None or share.count > held.count:
                best[share.writer] = share
        return cls(shares=tuple(best[writer] for writer in sorted(best)))

    def share(self, writer: PeerId) -> int:
        """What `writer` has counted so far."""
        return next((one.count for one in self.shares if one.writer == writer), 0)

    def add(self, writer: PeerId, amount: int) -> "GrowCounter":
        """The delta by which `writer`, and nobody else, counts `amount` (0 or more) further."""
        assert amount >= 0, "a counter only grows"
        count = self.share(writer) + amount
        return GrowCounter(shares=(Share(writer=writer, count=count),) if count else ())

    def merge(self, *others: "GrowCounter") -> "GrowCounter":
        """The highest share of each writer."""
        return GrowCounter.of(share for one in (self, *others) for share in one.shares)

    @property
    def value(self) -> int:
        """The sum of all shares."""
        return sum(share.count for share in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A counter that goes both ways: two that only grow."""

    up: GrowCounter = GrowCounter()
    down: GrowCounter = GrowCounter()

    def add(self, writer: PeerId, amount: int) -> "Counter":
        """The delta by which `writer`, and nobody else, counts `amount` further, up or down."""
        if amount < 0:
            return Counter(down=self.down.add(writer, -amount))
        return Counter(up=self.up.add(writer, amount))

    def merge(self, *others: "Counter") -> "Counter":
        """Both halves, merged."""
        return Counter(
            up=self.up.merge(*(one.up for one in others)),
            down=self.down.merge(*(one.down for one in others)),
        )

    @property
    def value(self) -> int:
        """What went up, less what went down."""
        return self.up.value - self.down.value
