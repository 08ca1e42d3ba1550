"""The calendar of a world gives its events in the order of time, and of number where equal."""

import random
from heapq import heappop, heappush
from math import inf

import pytest

from sim.world.timeline import DAYS_PER_S, LAST_S, CalendarQueue, Due


def due(at_s: float, number: int) -> Due:
    return at_s, number, None, None, ()


def test_events_come_in_the_order_of_a_heap_whatever_is_put_in_meanwhile(seed: int) -> None:
    luck = random.Random(seed)
    calendar, heap, now_s = CalendarQueue(), list[Due](), 0.0
    for number in range(20_000):
        # At once, within the day, on a day to come, and on the very edge of one.
        delay_s = luck.choice([0.0, luck.random() / DAYS_PER_S, 3.0 * luck.random()])
        at_s = now_s + delay_s
        if luck.random() < 0.1:
            at_s = (int(now_s * DAYS_PER_S) + 1) / DAYS_PER_S
        event = due(at_s, number)
        calendar.put(event)
        heappush(heap, event)
        assert calendar.next_s() == heap[0][0]
        if luck.random() < 0.6:
            taken = calendar.take()
            assert taken == heappop(heap)
            now_s = taken[0]
        assert len(calendar) == len(heap)
    while heap:
        assert calendar.next_s() == heap[0][0]
        assert calendar.take() == heappop(heap)
    assert calendar.next_s() == inf
    assert len(calendar) == 0


def test_event_of_a_day_that_was_looked_at_already_comes_first() -> None:
    calendar = CalendarQueue()
    calendar.put(due(50.0, 1))
    assert calendar.next_s() == 50.0, "which makes its day the present one"
    calendar.put(due(2.0, 2))
    assert [calendar.take()[1], calendar.take()[1]] == [2, 1]


@pytest.mark.parametrize("late_s", [LAST_S, 1e300, inf])
def test_event_that_is_never_due_comes_behind_all_others(late_s: float) -> None:
    calendar = CalendarQueue()
    calendar.put(due(late_s, 1))
    calendar.put(due(LAST_S - 1.0, 2))
    calendar.put(due(late_s, 3))
    found = []
    for _ in range(3):
        calendar.next_s()
        found.append(calendar.take()[1])
    assert found == [2, 1, 3]
