"""A token bucket: how long to wait before so many bytes may go. Pure."""

from protocol import limits

BURST_S = 1.0
"""Unused rate of so long may go at once."""

BURST_BYTES_MIN = 32 * limits.KIB
"""At least one piece of a cell, or nothing would ever go."""


class TokenBucket:
    """`bytes_per_s` of 0 sets no limit."""

    def __init__(self, bytes_per_s: float, *, now_s: float, burst_s: float = BURST_S) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst = max(bytes_per_s * burst_s, BURST_BYTES_MIN)
        self._tokens = self._burst
        self._filled_s = now_s

    def delay_s(self, num_bytes: int, now_s: float) -> float:
        """Take so many bytes; the seconds to wait before they are sent.

        Takers wait one behind the other: what was taken and is not there yet is a debt.
        """
        if not self._bytes_per_s:
            return 0.0
        gained = (now_s - self._filled_s) * self._bytes_per_s
        self._tokens = min(self._burst, self._tokens + max(0.0, gained)) - num_bytes
        self._filled_s = max(self._filled_s, now_s)
        return max(0.0, -self._tokens / self._bytes_per_s)
