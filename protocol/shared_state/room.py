"""How many entries of a kind are held, and which one goes when there is no more room. Pure."""

import heapq
from collections.abc import Callable, Iterable

from protocol.identity import PeerId
from protocol.shared_state.held import HeldEntry

Rank = tuple[bool, int, bytes]
"""Of a member, stamp, id: the lowest goes first."""


_STALE_MAX = 64


class EntryQuota:
    """The total of one kind.

    What is kept when it is full are the highest ranks ever offered: so replicas that heard the same
    in different orders keep the same. The heap is there only while it is full; it may hold ids that
    are gone, which are passed over.
    """

    def __init__(self, most: int, is_member: Callable[[PeerId], bool]) -> None:
        self._most = most
        self._is_member = is_member
        self._heap: list[Rank] | None = None
        self.count = 0

    def rank(self, held: HeldEntry) -> Rank:
        """The place of an entry."""
        return self._is_member(held.writer), held.stamp, held.entry_id

    def forget_ranks(self) -> None:
        """Others are members now."""
        self._heap = None

    def lowest(
        self, candidates: Callable[[], Iterable[HeldEntry]], is_held: Callable[[bytes], bool]
    ) -> Rank | None:
        """The rank that goes if one more comes; None while there is room."""
        if self.count < self._most:
            self._heap = None
            return None
        if self._heap is None or len(self._heap) > 2 * self.count + _STALE_MAX:
            self._heap = [self.rank(one) for one in candidates()]
            heapq.heapify(self._heap)
        while not is_held(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0]

    def added(self, held: HeldEntry) -> None:
        """One more is held."""
        self.count += 1
        if self._heap is not None:
            heapq.heappush(self._heap, self.rank(held))

    def removed(self) -> None:
        """One less is held."""
        self.count -= 1
