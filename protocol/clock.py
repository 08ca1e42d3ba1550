"""The two kinds of time. Wall time only expires records; durations are monotonic and local."""

from collections.abc import Callable

WallClock = Callable[[], float]
"""Unix seconds. Injected wherever a record expires, so that the simulator owns it."""
