"""How much of the line joiners get. Pure.

States are sent to joiners on a line that rounds need. So much of it they may take, and beside
moving parts and results never more than a tenth.
"""

from dht.reaching.token_bucket import TokenBucket

YIELD_TIMES = 9
"""Beside parts and results on the move a state gets a tenth of the time. Not nothing: on slow lines
they move all the time, and nobody could ever join."""

YIELD_S_MAX = 3.0
"""A joiner that hears nothing for long gives a source up."""


class Throttle:
    """What a node sends to joiners, to all of them together.

    While parts or results move, each piece is followed by a pause of some times as long as the
    piece took: nearly all of the line is theirs.
    """

    def __init__(self, bytes_per_s: float, *, now_s: float) -> None:
        self._all = TokenBucket(bytes_per_s, now_s=now_s)
        self._free_s = now_s

    def delay_s(
        self, num_bytes: int, *, took_s: float, is_round_moving: bool, now_s: float
    ) -> float:
        """The pause before the next piece; `took_s` is how long the one before was on its way."""
        begins_s = now_s
        if is_round_moving:
            begins_s = max(now_s, self._free_s) + min(YIELD_TIMES * took_s, YIELD_S_MAX)
            self._free_s = begins_s
        return max(begins_s - now_s, self._all.delay_s(num_bytes, now_s))
