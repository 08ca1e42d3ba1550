"""FedCompass: unequal clients come together."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from sim.methods.compass import Assigned, Compass

LOW, HIGH, SLACK = 20, 100, 1.2


def played(step_s: list[float], rounds: int) -> tuple[list[float], list[tuple[int, float]], int]:
    """How long each wait was, the sizes of groups and when they ended, and arrivals that were late.

    Everybody begins with all steps, alone, as the paper's first round; then by the compass.
    """
    compass = Compass(steps_min=LOW, steps_max=HIGH, slack=SLACK)
    for client, took_s in enumerate(step_s):
        compass.observed(client, took_s)
    due: list[tuple[float, int, Assigned]] = []
    for client, took_s in enumerate(step_s):
        given_to = compass.assign(client, 0.0)
        heapq.heappush(due, (given_to.steps * took_s, client, given_to))
    waits: list[float] = []
    ended: list[tuple[int, float]] = []
    late, here = 0, {}
    while len(ended) < rounds:
        now_s, client, one = heapq.heappop(due)
        assert LOW <= one.steps <= HIGH
        in_time = compass.arrived(client, one.group, now_s)
        late += not in_time
        here[client] = (now_s, one.group)
        over = compass.ended(now_s)
        free = [c for c, (_, group) in here.items() if group in over or group not in compass.groups]
        if over:
            ended.append((len(free), now_s))
        for other in sorted(free, key=lambda c: step_s[c]):
            arrived_s, _ = here.pop(other)
            waits.append((now_s - arrived_s) / one.group.ends_s)
            assigned = compass.assign(other, now_s)
            heapq.heappush(due, (now_s + assigned.steps * step_s[other], other, assigned))
    return waits, ended, late


def test_equal_speeds_are_one_group_in_lock_step() -> None:
    waits, ended, late = played([0.5] * 5, rounds=20)
    assert {size for size, _ in ended} == {5}
    assert max(waits) == 0.0
    assert late == 0


def test_speeds_of_one_to_four_arrive_together() -> None:
    """Q9's speeds: 1:1:2:4 of a step; within the bounds of the steps all of them come at once."""
    _, ended, late = played([1.0, 1.0, 0.5, 0.25], rounds=30)
    assert late == 0
    assert [size for size, _ in ended][-10:] == [4] * 10


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8))
def test_bounds_hold_and_nobody_waits_beyond_the_slack(step_s: list[float]) -> None:
    compass = Compass(steps_min=LOW, steps_max=HIGH, slack=SLACK)
    for client, took_s in enumerate(step_s):
        compass.observed(client, took_s)
    for client, took_s in enumerate(step_s):
        one = compass.assign(client, 0.0)
        assert LOW <= one.steps <= HIGH
        # Arriving as planned it is in time, and its group ends within the slack of its plan.
        arrives_s = one.steps * took_s
        assert arrives_s <= one.group.ends_s + 1e-9
        waits_s = one.group.ends_s - arrives_s
        assert waits_s <= (SLACK - 1.0) * one.group.arrives_s + took_s + 1e-9


def test_late_one_counts_alone_and_speed_is_learned() -> None:
    compass = Compass(steps_min=LOW, steps_max=HIGH, slack=SLACK)
    compass.observed("a", 1.0)
    one = compass.assign("a", 0.0)
    assert one.steps == HIGH, "the first takes all it may"
    assert not compass.arrived("a", one.group, 121.0)
    assert compass.ended(121.0) == [one.group]
    compass.observed("a", 3.0)
    compass.observed("b", 2.0)
    assert compass.assign("b", 200.0).group.arrives_s == 400.0
    assert compass.assign("a", 200.0).steps == 100, "2 s a step by now"


def test_bounds_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 to 4 steps"):
        Compass(steps_min=5, steps_max=4)


def test_new_group_ends_so_that_the_latest_open_one_can_come_to_it():
    """By the speed of its own fastest client, not of one that is elsewhere."""
    compass = Compass(steps_min=2, steps_max=10)
    for client, step_s in (("middle", 1.0), ("slow", 6.0), ("elsewhere", 0.1)):
        compass.observed(client, step_s)
    assert compass.assign("middle", 0.0).steps == 10
    # It is open until 12, and may take ten steps of a second more: of six there are three.
    assert compass.assign("slow", 0.0).steps == 3
