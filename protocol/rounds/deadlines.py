"""Learned deadlines: how long a round waits for what is usually there by then.

A quantile of what was seen, times a margin, between a floor and a cap that the manifest gives.
"""

from collections import deque

from protocol.rounds.rare import Rare, never

SAMPLES_KEPT = 64
QUANTILE = 0.9
MARGIN = 2.0
"""A peer twice as late as nine of ten arrivals lately is late; below that it is only slow."""

GROWTH = 1.5
GROWTH_STEPS_MAX = 8
"""Each time-out of a round makes the next one longer (R2), up to 25 times: an attempt that ended
because its closer was gone was not too short."""


class LearnedDeadline:
    """The deadline of one phase, in seconds; fed with how long the phase took."""

    def __init__(self, *, floor_s: float, cap_s: float, rare: Rare = never) -> None:
        self._floor_s = floor_s
        self.cap_s = cap_s
        """No phase is waited for any longer, whatever was learned."""
        self._rare = rare
        self._seen_s: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._base_s = float(min(floor_s, cap_s))

    def observe(self, duration_s: float) -> None:
        """Learn from one phase that came to its end."""
        if self._rare("deadline-forgotten"):
            self._seen_s.clear()
        else:
            self._seen_s.append(duration_s)
        learned_s = self._floor_s
        if self._seen_s:
            ordered = sorted(self._seen_s)
            learned_s = MARGIN * ordered[int(QUANTILE * (len(ordered) - 1))]
        self._base_s = float(min(max(learned_s, self._floor_s), self.cap_s))

    def seconds(self, time_outs: int = 0) -> float:
        """The deadline after so many time-outs in this round; growth goes beyond the cap."""
        if not time_outs:
            return self._base_s
        return float(self._base_s * GROWTH ** min(time_outs, GROWTH_STEPS_MAX))
