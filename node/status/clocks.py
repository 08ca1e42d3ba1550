"""By how much this machine's clock differs from its peers', as far as their entries show. Pure."""

from collections.abc import Mapping
from statistics import median
from typing import Protocol

from protocol.identity import PeerId

PEERS_MAX = 256


class Stamped(Protocol):
    """What a peer said, at `at_unix_s` by its own clock."""

    @property
    def at_unix_s(self) -> float:
        """Unix seconds."""
        ...


class PeerClocks:
    """The least age at which something new of each peer was seen.

    Gossip takes about a second: what seems older or younger than that is the clocks' difference.
    The first word of a peer may have waited anywhere, and does not count.
    """

    def __init__(self) -> None:
        self._last: dict[PeerId, float] = {}
        self._least: dict[PeerId, float] = {}

    def look(self, told: Mapping[PeerId, Stamped], wall_s: float) -> float | None:
        """Called often. How far the own clock is ahead of most; None while nothing new came."""
        for peer, said in tuple(told.items())[:PEERS_MAX]:
            before, self._last[peer] = self._last.get(peer), said.at_unix_s
            if before is not None and said.at_unix_s > before:
                age_s = wall_s - said.at_unix_s
                self._least[peer] = min(age_s, self._least.get(peer, age_s))
        for peer in self._last.keys() - told.keys():
            del self._last[peer]
            self._least.pop(peer, None)
        return round(median(self._least.values()), 1) if self._least else None
