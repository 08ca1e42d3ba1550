"""The laws of every replicated type, and what each of them means."""

import dataclasses
import functools
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits
from protocol.crdt import (
    Counter,
    GrowCounter,
    GrowSet,
    LwwMap,
    LwwRegister,
    Share,
    TwoPhaseSet,
    covers,
)
from protocol.errors import DecodeError
from protocol.hybrid_clock import HybridClock, Stamp
from protocol.or_set import Context, Dot, OrSet, Tag
from protocol.wire import decode, encode
from tests.protocol.crdt_strategies import STATES, WRITERS, values

A, B, C, D = WRITERS
every_type = pytest.mark.parametrize("kind", STATES, ids=lambda kind: kind.__name__)


@every_type
@given(data=st.data())
def test_merge_is_commutative_associative_idempotent_and_covers(kind, data):
    a, b, c = (data.draw(STATES[kind]) for _ in range(3))
    assert a.merge(b) == b.merge(a)
    assert a.merge(b.merge(c)) == a.merge(b).merge(c) == a.merge(b, c)
    assert a.merge(a) == a.merge() == a
    assert covers(a.merge(b), a)
    assert covers(a.merge(b), b)


@every_type
@given(data=st.data())
def test_merge_is_the_least_that_covers_both(kind, data):
    """Without it, a merge that invents something would pass."""
    a, b, c = (data.draw(STATES[kind]) for _ in range(3))
    bound = a.merge(b, c)
    assert covers(bound, a.merge(b))
    assert covers(a, b) == (a.merge(b) == a)
    if covers(a, b) and covers(b, a):
        assert a == b


@every_type
@given(data=st.data())
def test_state_has_one_encoding(kind, data):
    state = data.draw(STATES[kind])
    assert decode(kind, encode(state)) == state
    assert state.merge(kind()) == state, "nothing is below everything"


def _swapped(data: st.DataObject, state: object) -> object | None:
    """The state with two neighbours of one of its lists exchanged, unchecked; None without any."""
    lists = [
        field.name
        for field in dataclasses.fields(state)  # type: ignore[arg-type]
        if isinstance(getattr(state, field.name), tuple) and len(getattr(state, field.name)) > 1
    ]
    if not lists:
        return None
    name = data.draw(st.sampled_from(lists))
    items = list(getattr(state, name))
    at = data.draw(st.integers(0, len(items) - 2))
    items[at : at + 2] = reversed(items[at : at + 2])
    other = object.__new__(type(state))
    for field in dataclasses.fields(state):  # type: ignore[arg-type]
        value = tuple(items) if field.name == name else getattr(state, field.name)
        object.__setattr__(other, field.name, value)
    return other


@pytest.mark.parametrize("kind", [LwwMap, GrowSet, GrowCounter, Context, OrSet])
@given(data=st.data())
def test_bytes_in_another_order_are_refused(kind, data):
    swapped = _swapped(data, data.draw(STATES[kind]))
    if swapped is not None:
        with pytest.raises(DecodeError):
            decode(kind, encode(swapped))


SECOND_FORMS = {
    "cloud adjoins": lambda: Context(upto=(Dot(A, 1),), cloud=(Dot(A, 2),)),
    "first dot in the cloud": lambda: Context(cloud=(Dot(A, 1),)),
    "one writer twice": lambda: Context(upto=(Dot(A, 1), Dot(A, 2))),
    "unseen dot": lambda: OrSet(tags=(Tag(b"a", Dot(A, 2)),), context=Context(upto=(Dot(A, 1),))),
    "one member twice": lambda: GrowSet(members=(b"a", b"a")),
}


@pytest.mark.parametrize("wrong", SECOND_FORMS.values(), ids=SECOND_FORMS)
def test_second_form_of_a_state_is_refused(wrong):
    with pytest.raises(ValueError, match=r"ascend|adjoins|not seen"):
        wrong()


def test_state_beyond_its_bounds_merges_but_is_not_encoded():
    def numbers(first: int) -> GrowSet:
        return GrowSet.of(n.to_bytes(4, "big") for n in range(first, first + 40_000))

    both = numbers(0).merge(numbers(40_000))
    assert len(both.members) == 80_000 > limits.CRDT_ITEMS_MAX
    with pytest.raises(DecodeError, match="length 80000"):
        encode(both)


# Replicas that change, and tell each other of it by deltas.

Step = tuple[int, str, int]
steps = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["put", "take", "hear"]), st.integers(0, 5)),
    max_size=14,
)
VALUES = [b"", b"a", b"b", b"c", b"d", b"e"]


class Replicas:
    """Four replicas of one type; every change is kept as its delta."""

    def __init__(self, kind):
        self.kind, self.deltas, self.stamp = kind, [], 0
        self.states = [kind() for _ in WRITERS]

    def run(self, steps_):
        for at, verb, number in steps_:
            if verb == "hear":
                self.states[at] = self.states[at].merge(self.states[number % len(WRITERS)])
                continue
            delta = self.delta(self.states[at], at, verb == "put", number)
            self.deltas.append(delta)
            self.states[at] = self.states[at].merge(delta)
            assert covers(self.states[at], delta)

    def delta(self, state, at, is_put, number):
        self.stamp += 1
        value, writer, stamp = VALUES[number], WRITERS[at], Stamp(self.stamp // 2)
        match state:
            case LwwRegister():
                return LwwRegister(value=value, stamp=stamp, writer=writer)
            case LwwMap() if is_put:
                return state.set(value, b"of %d" % number, stamp, writer)
            case LwwMap():
                return state.remove(value, stamp, writer)
            case GrowSet():
                return GrowSet.of([value])
            case TwoPhaseSet():
                return TwoPhaseSet.of([value], [] if is_put else [value])
            case GrowCounter():
                return state.add(writer, number)
            case Counter():
                return state.add(writer, number if is_put else -number)
            case OrSet():
                return state.add(value, writer) if is_put else state.remove(value)
            case _:
                return Context.of([state.next(writer)])


@every_type
@given(steps_=steps, seed=st.integers(0, 2**32), data=st.data())
def test_deltas_in_any_order_and_grouping_with_duplicates_give_the_full_merge(
    kind, steps_, seed, data
):
    replicas = Replicas(kind)
    replicas.run(steps_)
    whole = kind().merge(*replicas.states)
    rng = random.Random(seed)
    deltas = replicas.deltas + [d for d in replicas.deltas if rng.random() < 0.5]
    rng.shuffle(deltas)
    size = data.draw(st.integers(1, 5))
    groups = [kind().merge(*deltas[at : at + size]) for at in range(0, len(deltas), size)]
    assert functools.reduce(lambda a, b: a.merge(b), groups, kind()) == whole


@given(steps_=steps)
def test_counters_count_each_addition_once(steps_):
    replicas = Replicas(Counter)
    replicas.run(steps_)
    total = sum(n if verb == "put" else -n for _, verb, n in steps_ if verb != "hear")
    assert Counter().merge(*replicas.states).value == total


@given(steps_=steps)
def test_or_set_holds_what_was_added_and_not_removed_by_who_had_seen_it(steps_):
    """Against a model that remembers every addition, and who had seen it, for ever."""
    replicas = Replicas(OrSet)
    added: dict[int, bytes] = {}
    seen: list[set[int]] = [set() for _ in WRITERS]
    gone: list[set[int]] = [set() for _ in WRITERS]
    for number, step in enumerate(steps_):
        replicas.run([step])
        at, verb, which = step
        if verb == "hear":
            seen[at] |= seen[which % len(WRITERS)]
            gone[at] |= gone[which % len(WRITERS)]
            continue
        same = {one for one in seen[at] if added[one] == VALUES[which]}
        gone[at] |= same
        if verb == "put":
            added[number] = VALUES[which]
            seen[at].add(number)
    for at, state in enumerate(replicas.states):
        assert state.members == tuple(sorted({added[one] for one in seen[at] - gone[at]}))


def test_concurrent_addition_wins_over_removal_and_leaves_no_tombstone():
    first = OrSet().add(b"barn", A)
    removed = first.merge(first.remove(b"barn"))
    again = first.merge(first.add(b"barn", B))
    assert removed.members == ()
    assert removed.merge(again).members == (b"barn",)
    state = OrSet()
    for number in range(200):
        state = state.merge(state.add(b"%d" % number, A))
        state = state.merge(state.remove(b"%d" % number))
    assert len(encode(state)) < 50


def test_removal_of_a_two_phase_set_is_for_good_and_may_come_first():
    removed = TwoPhaseSet.of(removed=[b"token"])
    assert removed.merge(TwoPhaseSet.of(added=[b"token"])).members == ()
    assert removed.merge(TwoPhaseSet.of(added=[b"other"])).members == (b"other",)


def test_later_stamp_wins_then_writer_then_value():
    def register(stamp, writer, value):
        return LwwRegister(value=value, stamp=Stamp(stamp), writer=writer)

    ranked = [
        LwwRegister(),
        register(1, A, b"z"),
        register(1, B, b"a"),
        register(1, B, b"b"),
        register(2, A, b""),
    ]
    for low, high in itertools.pairwise(ranked):
        assert low.merge(high) == high.merge(low) == high


@given(value=values)
def test_removal_from_a_map_wins_over_a_value_of_the_same_stamp_and_writer(value):
    here = LwwMap().set(b"k", value, Stamp(3), A)
    assert here.values == {b"k": value}
    assert here.merge(here.remove(b"k", Stamp(3), A)).values == {}
    assert here.merge(here.remove(b"k", Stamp(2), D)).values == {b"k": value}


def test_share_of_another_writer_stays_as_it_is():
    state = GrowCounter.of([Share(writer=A, count=5), Share(writer=C, count=2)])
    assert state.merge(state.add(C, 3)).value == 10
    assert state.add(D, 0) == GrowCounter()
    with pytest.raises(AssertionError):
        state.add(A, -1)


@given(st.lists(st.floats(-3600, 3600), min_size=1, max_size=50))
def test_clock_ascends_whatever_the_wall_clock_does(jumps):
    clock, wall_s, stamps = HybridClock(), 1.7e9, []
    for jump_s in jumps:
        wall_s += jump_s
        stamps.append(clock.next(wall_s))
    assert stamps == sorted(set(stamps))


def test_clock_hears_what_is_near_and_refuses_what_is_far_ahead():
    clock, other = HybridClock(), HybridClock()
    near = other.next(1000.0 + 59.0)
    assert clock.hear(near, 1000.0)
    assert clock.next(1000.0) > near
    far = other.next(1000.0 + 61.0)
    assert not clock.hear(far, 1000.0)
    assert clock.next(1000.0) < far


def test_clock_counts_past_its_counter_and_the_end_of_time():
    clock = HybridClock()
    stamps = [clock.next(1.0) for _ in range(70_000)]
    assert all(a < b for a, b in itertools.pairwise(stamps))
    assert HybridClock().next(-5.0) == 1
    assert encode(LwwRegister(stamp=HybridClock().next(1e30)))
