"""When a peer that could not be reached, or refused us, is tried again."""

from dataclasses import dataclass

RETRY_S_MAX = 60.0


@dataclass(slots=True)
class Retry:
    """`due_s` is monotonic; each failure doubles the time to the next try."""

    due_s: float = 0.0
    delay_s: float = 1.0

    def postpone(self, now_s: float) -> None:
        """It is being tried now."""
        self.due_s = now_s + self.delay_s
        self.delay_s = min(2 * self.delay_s, RETRY_S_MAX)


_PAUSE_TIMES_MAX = 4.0


def pause_s(least_s: float, took_s: float) -> float:
    """How long to rest behind what took `took_s` and is to be done again: as long, within bounds.

    Where all are busy, all that they do again and again is what they are busy with.
    """
    return min(max(least_s, took_s), _PAUSE_TIMES_MAX * least_s)
