"""How long the answers of peers take, learned: the retransmission timer of TCP (RFC 6298). Pure.

A search asks somebody else as soon as an answer is later than this peer's answers are. The slow one
is still listened to, so a guess that was too short costs a query and never a peer.
"""

from collections import OrderedDict
from dataclasses import dataclass

from protocol.identity import PeerId

_PEERS_MAX = 1024
_FLOOR_S = 0.02
"""A machine that trains takes so long to wake a task up."""


@dataclass(slots=True)
class _Timer:
    smooth_s: float
    spread_s: float

    def took(self, took_s: float) -> None:
        self.spread_s += (abs(took_s - self.smooth_s) - self.spread_s) / 4
        self.smooth_s += (took_s - self.smooth_s) / 8

    @property
    def slow_after_s(self) -> float:
        return max(_FLOOR_S, self.smooth_s + 4 * self.spread_s)

    @property
    def dial_slow_after_s(self) -> float:
        """Dials go to all the world: four spreads would grant the dead as much as the farthest."""
        return max(_FLOOR_S, self.smooth_s + self.spread_s)


class PeerTimes:
    """The times of answers, per peer; of those that were dialled for it, of all together."""

    def __init__(self, *, at_first_s: float) -> None:
        """`at_first_s` is what is granted to peers of which nothing is known."""
        self._at_first_s = at_first_s
        self._peers: OrderedDict[PeerId, _Timer] = OrderedDict()
        self._dials: _Timer | None = None

    def answered(self, peer: PeerId, took_s: float, *, is_dialled: bool) -> None:
        """An answer came after `took_s`; `is_dialled` if a connection had to be made for it."""
        if is_dialled:
            if self._dials is None:
                self._dials = _Timer(took_s, took_s / 2)
            self._dials.took(took_s)
            return
        timer = self._peers.setdefault(peer, _Timer(took_s, took_s / 2))
        timer.took(took_s)
        self._peers.move_to_end(peer)
        if len(self._peers) > _PEERS_MAX:
            self._peers.popitem(last=False)

    def slow_after_s(self, peer: PeerId) -> float:
        """The silence after which `peer` counts as slow."""
        timer = self._peers.get(peer)
        if timer is not None:
            return timer.slow_after_s
        return self._at_first_s if self._dials is None else self._dials.dial_slow_after_s

    def round_trip_s(self, peer: PeerId) -> float | None:
        """How long its answers take; None of a peer that has not answered yet."""
        timer = self._peers.get(peer)
        return None if timer is None else timer.smooth_s
