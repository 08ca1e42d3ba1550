"""Stamps ascend, whatever the wall clock does."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from protocol.hybrid_clock import HybridClock
from protocol.wire import INT_MAX


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
    assert HybridClock().next(1e30) == INT_MAX
