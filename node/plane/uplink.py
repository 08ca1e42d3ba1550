"""How much leaves this node, as its own transfers show it. Pure.

Several transfers share one line, so what counts is the time in which there is any, and what all of
them moved in it. One taker may be slower than the line: the largest of the last few is the line's.
"""

from collections import deque

SAMPLE_BYTES = 1 << 20
"""Of less, delays and schedulers are most of what is measured: nothing is said of it."""

SAMPLES_KEPT = 8


class Uplink:
    """Watches the transfers of parts and results of one node. Seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._num_open = 0
        self._began_s = 0.0
        self._bytes = 0
        self._is_whole = True
        self._samples: deque[float] = deque(maxlen=SAMPLES_KEPT)

    @property
    def mbit(self) -> float | None:
        """Megabits per second; None while too little is known."""
        return max(self._samples, default=None)

    def began(self, now_s: float) -> None:
        """A transfer begins."""
        if not self._num_open:
            self._began_s, self._bytes, self._is_whole = now_s, 0, True
        self._num_open += 1

    def ended(self, num_bytes: int | None, now_s: float) -> None:
        """It is over, and its taker has so many bytes; None where nobody knows how many."""
        self._num_open -= 1
        self._is_whole &= num_bytes is not None
        self._bytes += num_bytes or 0
        took_s = now_s - self._began_s
        if not self._num_open and self._is_whole and self._bytes >= SAMPLE_BYTES and took_s > 0.0:
            self._samples.append(8e-6 * self._bytes / took_s)
