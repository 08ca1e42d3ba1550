"""Where the time of a trainer goes: every moment belongs to one phase of its round."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from training.channel.exchange import TrainerTimes

Phase = Literal["train", "validate", "encode", "save", "audit", "take", "wait"]
"""What a trainer does; the fields of TrainerTimes say what each is."""


class Stopwatch:
    """Counts the seconds of each phase. Whoever is in no other phase trains.

    A phase within another one takes its time from it, so that the sum of all phases is the time
    that has passed. `now_s` is a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._phase: Phase = "train"
        self._since_s = now_s()
        self._spent_s: dict[Phase, float] = {}

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        """What the block takes counts for that phase, and behind it the one before goes on."""
        before = self._enter(phase)
        try:
            yield
        finally:
            self._enter(before)

    def take(self) -> TrainerTimes:
        """The seconds since the last call, or since the beginning; from here on anew."""
        self._enter(self._phase)
        spent_s, self._spent_s = self._spent_s, {}
        return TrainerTimes(**{f"{phase}_s": seconds for phase, seconds in spent_s.items()})

    def count_as(self, phase: Phase) -> None:
        """What passed since the last call of `take` counts for that phase."""
        self._enter(self._phase)
        self._spent_s = {phase: sum(self._spent_s.values())}

    def _enter(self, phase: Phase) -> Phase:
        before, now_s = self._phase, self._now_s()
        self._spent_s[before] = self._spent_s.get(before, 0.0) + now_s - self._since_s
        self._phase, self._since_s = phase, now_s
        return before
