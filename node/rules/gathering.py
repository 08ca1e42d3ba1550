"""Who holds and sums which slices now, as this node sees it (R3, R8)."""

from itertools import islice

from node.rules.reducers import Slice
from protocol.identity import PeerId


class Gathering:
    """Of one round and one node. Asked often, and found out again only when something changed.

    Of each slice the first reducer gathers all parts and sums them, in open runs (`copies`) the
    first two do; the next in rank once one before it is suspected, once as many attempts have
    failed that no suspicion explains, or when it is called. In open runs one more keeps the parts
    of those who sum: a sender is complete when two others hold its parts (R2).
    """

    def __init__(self, slices: tuple[Slice, ...], me: PeerId, copies: int) -> None:
        self.summing: list[tuple[PeerId, ...]] = []
        """Who gathers and sums each slice."""
        self.keeping: list[tuple[PeerId, ...]] = []
        """Who holds parts of each slice: they, and in open runs one more."""
        self.own: list[Slice] = []
        """Slices that this node sums."""
        self.kept: list[Slice] = []
        """Slices of which it holds parts."""
        self._slices, self._me, self._copies = slices, me, copies
        self._called: dict[int, int] = {}
        self._seen: tuple[int, frozenset[PeerId]] = (-1, frozenset())

    def at(self, attempt: int, suspects: frozenset[PeerId]) -> "Gathering":
        """The same, as it is in that attempt with those suspects."""
        seen_attempt, seen = self._seen
        if attempt == seen_attempt and (suspects is seen or suspects == seen):
            return self
        self._seen = (attempt, suspects)
        self.summing, self.keeping, self.own, self.kept = [], [], [], []
        # A death explains one attempt: it costs the slices of the dead, not a second copy of all.
        unexplained = attempt - bool(suspects)
        for piece in self._slices:
            alive = [rank for rank, peer in enumerate(piece.reducers) if peer not in suspects]
            # Where so many do not live, everybody does what they can.
            last = alive[self._copies - 1] if len(alive) >= self._copies else len(piece.reducers)
            last = max(last, unexplained + self._copies - 1) + self._called.get(piece.first, 0)
            keeping = piece.reducers[: last + 1]
            self.summing.append(keeping)
            if self._me in keeping:
                self.own.append(piece)
            if self._copies > 1:
                ranks = alive[: self._copies + 1]
                keeping = tuple(dict.fromkeys([*keeping, *(piece.reducers[r] for r in ranks)]))
            if self._me in keeping:
                self.kept.append(piece)
            self.keeping.append(keeping)
        return self

    def call(self, piece: Slice, count: int) -> None:
        """So many substitutes are called in for a slice, whoever lives; never fewer than before."""
        if count > self._called.get(piece.first, 0):
            self._called[piece.first] = count
            self._seen = (-1, frozenset())

    def holds(self, piece: Slice, sender: PeerId) -> bool:
        """Whether this node is to hold that sender's part of one of the slices that it keeps."""
        if self._copies == 1 or piece in self.own:
            return True
        others = (p for p in piece.reducers if p != sender and p not in self._seen[1])
        return self._me in islice(others, self._copies)
