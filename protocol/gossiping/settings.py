"""What gossip may cost and how long it waits. Times are in seconds of the monotonic clock."""

from dataclasses import dataclass

from protocol import limits
from protocol.identity import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipSettings:
    """One node's taste: nobody else need have the same."""

    active: int = 6
    """Neighbours that are sought. Each costs pings and ids; fewer than five tear in a bad network.
    """
    active_max: int = 8
    """Neighbours in all; what is above `active` is there for those who ask."""
    own_choice_min: int = 3
    """Places among the neighbours that nobody gets by asking: whoever floods us with requests
    surrounds us only if it is also whom we chose."""
    passive_max: int = limits.PARTIAL_VIEW_MAX - 8 - 32
    lost_max: int = 32
    """Peers that were found gone, and are tried now and then: that is how a split network heals."""
    introducer_share: int = 8
    """At most one in so many of the passive view was introduced by one peer."""

    shuffle_s: float = 10.0
    shuffle_peers: int = 8
    forgotten_s: float = 1800.0
    """Whoever gave no sign of life to anybody for so long is not passed on."""

    fan_out: int = 3
    """Neighbours to whom a new entry is sent unasked; the others get its id."""
    flush_s: float = 0.2
    """Ids wait so long for others to go with them."""
    again_s: float = 1.0
    offers: int = 3
    """How often the id of a new entry is offered to a neighbour that may not have it."""
    want_s: float = 0.6
    """How long after asking for an entry another peer is asked for it."""

    exchange_s: float = 10.0
    exchange_jitter: float = 0.2

    ping_s: float = 1.0
    """One neighbour is pinged per so long."""
    answer_s: float = 0.4
    """For an answer to a ping, before others are asked; as long again, twice, for theirs."""
    helpers: int = 3
    suspicion_s: tuple[float, float] = (3.0, 9.0)
    """From suspecting a neighbour to giving it up: the shorter if others suspect it too."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if not 0 < self.own_choice_min <= self.active <= self.active_max:
            raise ValueError("own_choice_min, active and active_max are ascending")
        views = self.active_max + self.passive_max + self.lost_max
        if views > limits.PARTIAL_VIEW_MAX:
            raise ValueError(f"{views} peers in view, at most {limits.PARTIAL_VIEW_MAX} allowed")
        if self.passive_max < self.introducer_share:
            raise ValueError("passive_max gives an introducer no place at all")


# Quotas -------------------------------------------------------------------------------------------
#
# Token buckets: how much of what a peer may send or cost. Pure; bounded by peers.

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
        limits.keep_newest(self._levels, peer, (left - amount, now_s), PEERS_MAX)
        return True

    def left(self, peer: PeerId, now_s: float) -> float:
        """How much is allowed at once."""
        level, at_s = self._levels.get(peer, (self._rate.burst, now_s))
        return min(self._rate.burst, level + (now_s - at_s) * self._rate.per_s)
