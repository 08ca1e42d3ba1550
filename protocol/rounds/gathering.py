"""Who holds and sums which slices now, as this node sees it (R3, R8)."""

from itertools import islice

from protocol.identity import PeerId
from protocol.rounds.belief import Belief
from protocol.rounds.reducers import Slice


class Gathering:
    """Of one round and one node. Asked often, and found out again only when something changed.

    Of each slice the first reducer gathers all parts and sums them, in open runs the first that
    are enough to be believed do; the next in rank once one before it is suspected, once as many
    attempts have failed that no suspicion explains, or when it is called. In open runs more keep
    the parts of those who sum: a sender's are held by as many others (R2).
    """

    def __init__(self, slices: tuple[Slice, ...], me: PeerId, belief: Belief) -> None:
        self.summing: list[tuple[PeerId, ...]] = []
        """Who gathers and sums each slice."""
        self.keeping: list[tuple[PeerId, ...]] = []
        """Who holds parts of each slice: they, and in open runs one more of where they are two."""
        self.own: list[Slice] = []
        """Slices that this node sums."""
        self.kept: list[Slice] = []
        """Slices of which it holds parts."""
        self.first_keeping: list[tuple[PeerId, ...]] = []
        """As `keeping`, without those who were called since: the first HAVEs are theirs."""
        self.first_keepers: frozenset[PeerId] = frozenset()
        """All of `first_keeping`."""
        self.first_kept: list[Slice] = []
        """As `kept`, without those for which this node was called."""
        self._slices, self._me, self._belief = slices, me, belief
        self._called: dict[int, int] = {}
        self._called_to_hold: dict[int, int] = {}
        self._seen: tuple[int, frozenset[PeerId]] = (-1, frozenset())

    def at(self, attempt: int, suspects: frozenset[PeerId]) -> "Gathering":
        """The same, as it is in that attempt with those suspects."""
        seen_attempt, seen = self._seen
        if attempt == seen_attempt and (suspects is seen or suspects == seen):
            return self
        self._seen = (attempt, suspects)
        self.summing, self.keeping, self.own, self.kept = [], [], [], []
        self.first_keeping, self.first_kept = [], []
        # A death explains one attempt: it costs the slices of the dead, not a second copy of all.
        unexplained = attempt - bool(suspects)
        belief = self._belief
        for piece in self._slices:
            alive = [rank for rank, peer in enumerate(piece.reducers) if peer not in suspects]
            peers = [piece.reducers[rank] for rank in alive]
            # Where so many do not live, everybody does what they can.
            num_needed = belief.num_needed(peers)
            is_enough = belief.is_enough(peers)
            last = alive[num_needed - 1] if is_enough else len(piece.reducers)
            last = max(last, unexplained + belief.num_needed(piece.reducers) - 1)
            num = belief.holders + 1 if belief.least > 1 else 0
            # A word that does not count makes no sender complete.
            more = [peer for peer in peers if belief.counts(peer)] if num else []
            first = tuple(dict.fromkeys([*piece.reducers[: last + 1], *more[:num]]))
            summing = piece.reducers[: last + 1 + self._called.get(piece.first, 0)]
            num += self._called_to_hold.get(piece.first, 0)
            keeping = tuple(dict.fromkeys([*summing, *more[:num]]))
            self.summing.append(summing)
            self.keeping.append(keeping)
            self.first_keeping.append(first)
            for peers_of, pieces in (
                (summing, self.own),
                (keeping, self.kept),
                (first, self.first_kept),
            ):
                if self._me in peers_of:
                    pieces.append(piece)
        self.first_keepers = frozenset().union(*self.first_keeping)
        return self

    def call(self, piece: Slice, count: int) -> None:
        """So many substitutes are called in for a slice, whoever lives; never fewer than before."""
        if count > self._called.get(piece.first, 0):
            self._called[piece.first] = count
            self._seen = (-1, frozenset())

    def call_to_hold(self, piece: Slice, count: int) -> None:
        """So many more are to hold the parts of a slice. Among friends, where whoever holds them
        sums, they sum it as well."""
        if self._belief.least == 1:
            self.call(piece, count)
        elif count > self._called_to_hold.get(piece.first, 0):
            self._called_to_hold[piece.first] = count
            self._seen = (-1, frozenset())

    def holds(self, piece: Slice, sender: PeerId) -> bool:
        """Whether this node is to hold that sender's part of one of the slices that it keeps."""
        if self._belief.least == 1 or piece in self.own:
            return True
        return self._me in self._others(piece, sender)

    def targets(self, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        """To whom that member sends its part: to those who sum, itself if it is one of them, and
        to so many others that it is complete (R2)."""
        suspects = self._seen[1] - {sender}
        peers = [peer for peer in piece.reducers if peer not in suspects]
        peers = peers[: self._belief.num_needed(peers)]
        more = self._others(piece, sender) if self._belief.least > 1 else ()
        return tuple(dict.fromkeys([*peers, *more]))

    def first_targets(self, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        """The same without those who were called to hold it since."""
        called, self._called_to_hold = self._called_to_hold, {}
        found = self.targets(piece, sender)
        self._called_to_hold = called
        return found

    def is_soon(self, piece: Slice) -> bool:
        """Whether this node is sent the parts of a slice unasked, if nothing goes wrong."""
        num = self._belief.num_needed(piece.reducers)
        if self._me in piece.reducers[:num] or self._belief.least == 1:
            return self._me in piece.reducers[:num]
        more = filter(self._belief.counts, piece.reducers)
        return self._me in islice(more, self._belief.holders + 1)

    def _others(self, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        """The first besides the sender that are to hold its part, in open runs."""
        left_out, counts = {sender, *self._seen[1]}, self._belief.counts
        others = (p for p in piece.reducers if p not in left_out and counts(p))
        more = self._called_to_hold.get(piece.first, 0)
        return tuple(islice(others, self._belief.holders + more))


class GatheringAll(Gathering):
    """Where everybody sums everything: every part goes to all members. Whoever is none takes the
    result of what is final."""

    def at(self, attempt: int, suspects: frozenset[PeerId]) -> "Gathering":
        """See Gathering; no attempt and no death changes it."""
        del attempt
        self._seen = (0, suspects)
        if not self.summing:
            self.own = self.kept = [piece for piece in self._slices if self._me in piece.reducers]
            self.summing = self.keeping = [piece.reducers for piece in self._slices]
            self.first_keeping, self.first_kept = self.keeping, self.kept
            self.first_keepers = frozenset().union(*self.first_keeping)
        return self

    def call(self, piece: Slice, count: int) -> None:
        """See Gathering; nobody is left to be called."""

    def holds(self, piece: Slice, sender: PeerId) -> bool:
        """See Gathering."""
        return True

    def targets(self, piece: Slice, sender: PeerId) -> tuple[PeerId, ...]:
        """See Gathering."""
        suspects = self._seen[1] - {sender}
        return tuple(peer for peer in piece.reducers if peer not in suspects)

    def is_soon(self, piece: Slice) -> bool:
        """See Gathering."""
        return self._me in piece.reducers
