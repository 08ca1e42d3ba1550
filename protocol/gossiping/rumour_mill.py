"""Rumours about who is there: which of two is newer, and how often each is passed on. Pure.

A rumour rides on pings and acks, a bounded number of times. Only what concerns a peer that this
node knows is passed on, so that made-up names die at the first honest node.
"""

from collections import OrderedDict
from collections.abc import Iterable

from protocol import limits
from protocol.gossip import Rumour, RumourKind
from protocol.identity import PeerId

SENDS = 12
"""How often a rumour is passed on. Everybody knows it after some log2(1000) = 10 hops of a few."""

QUEUED_MAX = 64
KNOWN_MAX = 512


class RumourMill:
    """What was heard of each peer last, and what is still to be told."""

    def __init__(self) -> None:
        self._newest: OrderedDict[PeerId, Rumour] = OrderedDict()
        self._queue: dict[PeerId, int] = {}

    def incarnation(self, peer: PeerId) -> int:
        """The highest of a peer that was heard of."""
        rumour = self._newest.get(peer)
        return rumour.incarnation if rumour else 0

    def hear(self, rumour: Rumour) -> bool:
        """Whether a rumour is news: a later incarnation, or a worse word about the same one."""
        before = self._newest.get(rumour.peer)
        if before is not None and _order(rumour) <= _order(before):
            return False
        self._newest[rumour.peer] = rumour
        self._newest.move_to_end(rumour.peer)
        if len(self._newest) > KNOWN_MAX:
            forgotten, _ = self._newest.popitem(last=False)
            self._queue.pop(forgotten, None)
        self._queue.pop(rumour.peer, None)
        if len(self._queue) >= QUEUED_MAX:
            # The most often told.
            del self._queue[min(self._queue, key=lambda peer: (self._queue[peer], peer))]
        self._queue[rumour.peer] = SENDS
        return True

    def take(self, first: Iterable[Rumour] = ()) -> tuple[Rumour, ...]:
        """What goes with the next frame: `first` in any case, then the least often told."""
        told = list(first)
        about = {rumour.peer for rumour in told}
        if self._queue:
            waiting = sorted(self._queue, key=lambda peer: (-self._queue[peer], peer))
            for peer in waiting[: max(0, limits.RUMOURS_PER_FRAME_MAX - len(told))]:
                self._queue[peer] -= 1
                if not self._queue[peer]:
                    del self._queue[peer]
                if peer not in about:
                    told.append(self._newest[peer])
        return tuple(told)


def _order(rumour: Rumour) -> tuple[int, RumourKind]:
    return rumour.incarnation, rumour.kind
