"""How long contributions are in flight, and how much of that the trainer steps on. Pure.

A contribution is in flight from when the trainer handed it over to when its outcome is on its way
back; the trainer steps from when it is told for which round to go on to when it hands that over.
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class TrainerWatch:
    """Watches one trainer. All times are of one monotonic clock, seconds."""

    _stepped_s: float = 0.0
    """Of all rounds that it handed over."""
    _began_s: float | None = None
    _open: deque[tuple[float, float]] = field(default_factory=deque)
    """When each was handed over, and how long the trainer had stepped by then; oldest first."""
    _landed: list[tuple[float, float]] = field(default_factory=list)

    def goes_on(self, now_s: float) -> None:
        """The trainer is told for which round to step."""
        self._began_s = now_s

    def handed(self, now_s: float) -> None:
        """It hands a contribution over."""
        self._stepped_s, self._began_s = self._stepped(now_s), None
        self._open.append((now_s, self._stepped_s))

    def landed(self, now_s: float) -> float:
        """The outcome of the oldest is told; how long that was in flight."""
        handed_s, stepped_s = self._open.popleft()
        flight_s = now_s - handed_s
        self._landed.append((flight_s, self._stepped(now_s) - stepped_s))
        return flight_s

    def take(self) -> tuple[float, float] | None:
        """Seconds in flight, and of these stepped, of all that landed since the last call; None if
        nothing did."""
        landed, self._landed = self._landed, []
        if not landed:
            return None
        return sum(flight_s for flight_s, _ in landed), sum(hidden_s for _, hidden_s in landed)

    def _stepped(self, now_s: float) -> float:
        return self._stepped_s + (0.0 if self._began_s is None else now_s - self._began_s)
