"""What happens when: the events of worlds in a calendar queue (Brown 1988), of crowds in a heap.

A world has thousands of events under way. Each day has a list of its own that is put in order when
the day comes. A heap of all events compares each with a dozen others that it has nothing to do
with, once when it is put in and once when it is taken out.
"""

import random
from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from sim.world.nodes import Call, SimNode

DAYS_PER_S = 128.0
"""So that a day has some twenty events of a world of thirty nodes."""

LAST_S = 1e9
"""Whatever is due later, if ever, is on one last day."""

_LAST_DAY = int(LAST_S * DAYS_PER_S)

Due = tuple[float, int, SimNode | None, Call | None, tuple[object, ...]]
"""When, a number that no other has, who, and what with which arguments; None: a frame is heard."""


class CalendarQueue:
    """Events in the order of their times, and of their numbers where times are equal.

    No event may be put in that is due before the one that was taken out last.
    """

    def __init__(self) -> None:
        self._today: list[Due] = []
        """In order; those before `_next` are taken."""
        self._next = 0
        self._day = -1
        self._days: dict[int, list[Due]] = {}
        self._numbers: list[int] = []
        """A heap of the days that have a list."""

    def __len__(self) -> int:
        """How many are still to come."""
        return len(self._today) - self._next + sum(len(day) for day in self._days.values())

    def put(self, due: Due) -> None:
        """One more event is to come."""
        day = int(due[0] * DAYS_PER_S) if due[0] < LAST_S else _LAST_DAY
        if day <= self._day:
            insort(self._today, due, self._next)
            return
        events = self._days.get(day)
        if events is None:
            self._days[day] = [due]
            heappush(self._numbers, day)
        else:
            events.append(due)

    def next_s(self) -> float:
        """When the next event is due; infinite if nothing is to come."""
        if self._next == len(self._today):
            if not self._numbers:
                return inf
            self._day, self._next = heappop(self._numbers), 0
            self._today = self._days.pop(self._day)
            self._today.sort()
        return self._today[self._next][0]

    def take(self) -> Due:
        """The next event; there must be one, as `next_s` says."""
        due = self._today[self._next]
        self._next += 1
        return due


class Timeline:
    """Virtual time of a crowd, and one seeded stream of luck per purpose.

    Two things at the same time happen in the order of `later`.
    """

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._seed = seed
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0
        self._streams: dict[str, random.Random] = {}

    def later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        """Call it when that much time has passed."""
        self._sequence += 1
        heappush(self._heap, (self.now_s + delay_s, self._sequence, call, args))

    def run_until(self, end_s: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass up to `end_s`; whether `is_done` came true before."""
        while not is_done():
            if not self._heap or self._heap[0][0] > end_s:
                self.now_s = max(self.now_s, end_s)
                return False
            self.now_s, _, call, args = heappop(self._heap)
            self.num_events += 1
            call(*args)
        return True

    def stream(self, path: str) -> random.Random:
        """The luck of one purpose, so that a new node changes no other node's."""
        if path not in self._streams:
            self._streams[path] = random.Random(f"{self._seed}/{path}")
        return self._streams[path]
