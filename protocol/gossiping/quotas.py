"""Token buckets: how much of what a peer may send or cost. Pure; bounded by peers."""

from dataclasses import dataclass

from protocol import limits
from protocol.identity import PeerId

PEERS_MAX = 512
"""Twice the peers in view. Keys cost nothing; a forgotten one begins with a full bucket, and to be
forgotten it must come under more names than we have links."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So much per second, and so much at once."""

    per_s: float
    burst: float


FRAMES = Rate(100.0, 2048.0)
"""An honest neighbour says a few per second; an exchange in which all 256 buckets differ brings a
question, an answer and entries for each, three rounds at the worst."""

IDS = Rate(400.0, 8192.0)
"""Ids offered: the burst is what a healed split may have to say."""

ENTRY_BYTES = Rate(128 * limits.KIB, 1.25 * limits.GOSSIP_EXCHANGE_BYTES_MAX)
"""Entries taken from one peer: each costs a signature check. One whole exchange at once."""

SERVED_BYTES = Rate(64 * limits.KIB, 1.0 * limits.GOSSIP_EXCHANGE_BYTES_MAX)
"""Entries and ids sent because that peer asked."""

ERRANDS = Rate(4.0, 16.0)
"""Pings for others: each makes us send to whom the asker names."""


class Quota:
    """One rate, for every peer alike."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._levels: dict[PeerId, tuple[float, float]] = {}
        """The one that spent longest ago first: dicts keep their order."""

    def allows(self, peer: PeerId, amount: float, now_s: float) -> bool:
        """Whether that much more is within the rate; if so it is spent."""
        left = self.left(peer, now_s)
        if amount > left:
            return False
        self._levels.pop(peer, None)
        self._levels[peer] = (left - amount, now_s)
        if len(self._levels) > PEERS_MAX:
            del self._levels[next(iter(self._levels))]
        return True

    def left(self, peer: PeerId, now_s: float) -> float:
        """How much is allowed at once."""
        level, at_s = self._levels.get(peer, (self._rate.burst, now_s))
        return min(self._rate.burst, level + (now_s - at_s) * self._rate.per_s)
