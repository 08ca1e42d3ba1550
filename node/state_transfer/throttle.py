"""How much of the line joiners get. Pure.

States are sent to joiners on a line that rounds need. So much of it they may take, and beside
moving parts and results never more than half.
"""

from dht.token_bucket import TokenBucket

YIELD_S_MAX = 1.0
"""A joiner that hears nothing for long gives a source up."""


class Throttle:
    """What a node sends to joiners, to all of them together.

    While parts or results move, it pauses for as long as the piece before took: that leaves them
    half of the line at least.
    """

    def __init__(self, bytes_per_s: float, *, now_s: float) -> None:
        self._all = TokenBucket(bytes_per_s, now_s=now_s)

    def delay_s(
        self, num_bytes: int, *, took_s: float, is_round_moving: bool, now_s: float
    ) -> float:
        """The pause before the next piece; `took_s` is how long the one before was on its way."""
        yielded_s = min(took_s, YIELD_S_MAX) if is_round_moving else 0.0
        return max(yielded_s, self._all.delay_s(num_bytes, now_s))
