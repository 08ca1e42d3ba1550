"""Any states of the replicated types, reachable or not, drawn so that they collide often."""

from typing import Any

from hypothesis import strategies as st

from protocol.crdt import (
    NOBODY,
    Counter,
    GrowCounter,
    GrowSet,
    LwwCell,
    LwwMap,
    LwwRegister,
    Share,
    TwoPhaseSet,
)
from protocol.hybrid_clock import Stamp
from protocol.identity import PeerId
from protocol.or_set import Context, Dot, OrSet, Tag

WRITERS = [PeerId(bytes([number]) * 32) for number in range(1, 5)]

values = st.sampled_from([b"", b"a", b"b", b"c"])
stamps = st.integers(0, 3).map(Stamp)
writers = st.sampled_from([NOBODY, *WRITERS])
counts = st.integers(1, 5)
dots = st.builds(Dot, writers, counts)

registers = st.builds(LwwRegister, value=values, stamp=stamps, writer=writers)
cells = st.builds(
    LwwCell, key=values, value=values, is_removed=st.booleans(), stamp=stamps, writer=writers
)
maps = st.lists(cells, max_size=6).map(LwwMap.of)
grow_sets = st.lists(values, max_size=4).map(GrowSet.of)
two_phase_sets = st.builds(TwoPhaseSet, added=grow_sets, removed=grow_sets)
grow_counters = st.lists(st.builds(Share, writer=writers, count=counts), max_size=5).map(
    GrowCounter.of
)
counters = st.builds(Counter, up=grow_counters, down=grow_counters)
contexts = st.lists(dots, max_size=8).map(Context.of)


def _or_set(tags: list[Tag], seen: list[Dot]) -> OrSet:
    context = Context.of([*seen, *(tag.dot for tag in tags)])
    return OrSet(tags=tuple(sorted(set(tags))), context=context)


# One dot may mark two values here, as only a liar would have it: the laws hold all the same.
or_sets = st.builds(
    _or_set, st.lists(st.builds(Tag, values, dots), max_size=5), st.lists(dots, max_size=6)
)

STATES: dict[type[Any], st.SearchStrategy[Any]] = {
    LwwRegister: registers,
    LwwMap: maps,
    GrowSet: grow_sets,
    TwoPhaseSet: two_phase_sets,
    GrowCounter: grow_counters,
    Counter: counters,
    Context: contexts,
    OrSet: or_sets,
}

_DOT = Dot(WRITERS[0], 1)
_COUNTED = GrowCounter().add(WRITERS[1], 300)

EXAMPLES = (
    LwwRegister(value=b"barn", stamp=Stamp(2**50), writer=WRITERS[0]),
    LwwMap().set(b"k", b"v", Stamp(9), WRITERS[0]),
    GrowSet.of([b"a", b"b"]),
    TwoPhaseSet.of([b"a", b"b"], [b"b"]),
    _COUNTED,
    Counter(up=_COUNTED),
    Context.of([_DOT, Dot(WRITERS[0], 5)]),
    OrSet(tags=(Tag(b"a", _DOT),), context=Context.of([_DOT])),
)
