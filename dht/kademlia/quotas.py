"""How often one peer may ask: a leaky bucket for each. Pure.

Who asks faster waits, for its streams carry one request at a time: the answer comes later, and
nothing is refused or dropped.
"""

from collections import OrderedDict

from protocol.identity import PeerId

RATE_PER_S = 200.0
"""An answer costs 0.3 ms of a processor: one peer gets 6 % of a core."""

BURST = 400
_PEERS_MAX = 4096


class RequestQuotas:
    """When the next request of each peer is to be answered."""

    def __init__(self, *, rate_per_s: float = RATE_PER_S, burst: int = BURST) -> None:
        self._interval_s = 1.0 / rate_per_s
        self._burst_s = burst / rate_per_s
        self._paid_until_s: OrderedDict[PeerId, float] = OrderedDict()

    def wait_s(self, peer: PeerId, now_s: float) -> float:
        """Count a request of `peer`; how long to wait before it is answered."""
        paid_s = max(self._paid_until_s.pop(peer, 0.0), now_s) + self._interval_s
        self._paid_until_s[peer] = paid_s
        if len(self._paid_until_s) > _PEERS_MAX:
            self._paid_until_s.popitem(last=False)
        return max(0.0, paid_s - self._burst_s - now_s)
