"""What a relay gives: places, circuits and bytes, within the limits that its owner sets. Pure.

Keys cost nothing to make, so places are also counted by the network address that peers come from.
Who sends bytes pays for them: nobody can use up the share of a peer by speaking to it.
"""

from collections import Counter
from dataclasses import dataclass

from dht.reaching.token_bucket import TokenBucket
from protocol.errors import ConfigError
from protocol.identity import PeerId

DAY_S = 24 * 3600.0

_SENDERS_MAX = 4096
"""Of whom it is kept what they sent today. Of twice as many, the half that sent least is forgotten.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """What the owner of a relay gives away."""

    places_max: int = 128
    """Peers that others may reach through this relay. Each holds one stream."""

    places_per_host: int = 16
    """Of one network address: the machines of a campus behind one router."""

    circuits_max: int = 512
    """At one time. Each may hold a few MiB on a bad line, and two streams."""

    circuits_per_peer: int = 64
    """To and from one peer: the other seats of a replica group."""

    mbit: float = 0.0
    """Of all circuits together, each byte counted once; 0 sets no limit."""

    day_bytes: int = 2**40
    """Of all circuits together, in a day."""

    peer_day_bytes: int = 2**38
    """That one peer may send, in a day."""

    def __post_init__(self) -> None:
        for name in ("places_max", "places_per_host", "circuits_max", "circuits_per_peer"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise ConfigError(f"{name}: {getattr(self, name)} is outside 1..10000")
        if not 0 <= self.mbit <= 1e6:
            raise ConfigError(f"mbit: {self.mbit:g} is neither 0 (no limit) nor within 0..1e6")
        for name in ("day_bytes", "peer_day_bytes"):
            if not 0 <= getattr(self, name) <= 2**62:
                raise ConfigError(f"{name}: {getattr(self, name)} is outside 0..2^62")


def volunteer_limits(gib_a_day: float, mbit: float) -> RelayLimits:
    """What a node gives that has something else to do: fewer places, a quarter of it to a peer."""
    day_bytes = round(gib_a_day * 2**30)
    return RelayLimits(
        places_max=64,
        circuits_max=64,
        circuits_per_peer=16,
        mbit=mbit,
        day_bytes=day_bytes,
        peer_day_bytes=day_bytes // 4,
    )


class RelayBooks:
    """Who has a place, which circuits there are, and what was sent today."""

    def __init__(self, config: RelayLimits, *, now_s: float) -> None:
        self.config = config
        self._hosts: dict[PeerId, str] = {}
        self._ends: Counter[PeerId] = Counter()
        self._num_circuits = 0
        self._bucket = TokenBucket(config.mbit * 1e6 / 8, now_s=now_s)
        self._day_began_s = now_s
        self._sent: Counter[PeerId] = Counter()
        self._sent_today = 0

    @property
    def num_places(self) -> int:
        """Places that are taken."""
        return len(self._hosts)

    @property
    def num_circuits(self) -> int:
        """Circuits that are open."""
        return self._num_circuits

    def has_place(self, peer: PeerId) -> bool:
        """Whether others may be led to `peer`."""
        return peer in self._hosts

    def take_place(self, peer: PeerId, host: str) -> str:
        """Give `peer`, which comes from `host`, a place, or move the one that it has; why not, or
        nothing."""
        others = [one for holder, one in self._hosts.items() if holder != peer]
        if len(others) >= self.config.places_max:
            return "no place is left"
        if host and others.count(host) >= self.config.places_per_host:
            return "no place is left for this network address"
        self._hosts[peer] = host
        return ""

    def leave_place(self, peer: PeerId) -> None:
        """The place of `peer` is free."""
        self._hosts.pop(peer, None)

    def open_circuit(self, source: PeerId, target: PeerId, now_s: float) -> str:
        """Note a circuit; why there can be none, or nothing."""
        if source == target:
            return "that is you"
        if target not in self._hosts:
            return "it has no place here"
        if self._num_circuits >= self.config.circuits_max:
            return "no circuit is left"
        if max(self._ends[source], self._ends[target]) >= self.config.circuits_per_peer:
            return "no circuit is left for these peers"
        if not min(self.day_bytes_left(source, now_s), self.day_bytes_left(target, now_s)):
            return "nothing is left of today's bytes"
        self._num_circuits += 1
        self._ends[source] += 1
        self._ends[target] += 1
        return ""

    def close_circuit(self, source: PeerId, target: PeerId) -> None:
        """A circuit that was opened is closed."""
        self._num_circuits -= 1
        self._ends[source] -= 1
        self._ends[target] -= 1
        self._ends += Counter()  # Forgets the zeros: a peer may come under many names.

    def day_bytes_left(self, peer: PeerId, now_s: float) -> int:
        """What `peer` may still send today."""
        self._turn_page(now_s)
        all_left = self.config.day_bytes - self._sent_today
        return max(0, min(all_left, self.config.peer_day_bytes - self._sent[peer]))

    def send(self, peer: PeerId, num_bytes: int, now_s: float) -> float | None:
        """Count bytes that `peer` sends; how long they wait, or None if nothing is left today."""
        if self.day_bytes_left(peer, now_s) < num_bytes:
            return None
        self._sent[peer] += num_bytes
        self._sent_today += num_bytes
        if len(self._sent) > 2 * _SENDERS_MAX:
            self._sent = Counter(dict(self._sent.most_common(_SENDERS_MAX)))
        return self._bucket.delay_s(num_bytes, now_s)

    def _turn_page(self, now_s: float) -> None:
        if now_s - self._day_began_s >= DAY_S:
            self._day_began_s = now_s
            self._sent.clear()
            self._sent_today = 0
