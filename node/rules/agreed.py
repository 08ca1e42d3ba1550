"""Open runs: no result on one reducer's word (R2, R8). Pure deciders over a RoundView.

Two reducers sum each slice. Its result is taken once two AGGs name the same root; where they
differ, or one does not come, the next in rank sums too, and the odd one out is caught by
comparison. A node that sums believes its own sum. Among friends the first AGG is enough.
"""

from collections import Counter
from dataclasses import dataclass

from node.rules.reducers import Slice
from node.rules.round_view import RoundView
from protocol.identity import PeerId


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Where a result cell belongs: the AGG's root over cells [first, stop)."""

    root: bytes
    first: int
    stop: int


def agreed_root(view: RoundView, digest: bytes, piece: Slice) -> bytes | None:
    """The root of a slice's result that may be believed; None while there is none.

    Once believed, another is not: its cells would not be of one sum.
    """
    said = view.agg_of(digest, piece)
    if view.copies == 1 or not said:
        return next((agg.root for agg in said.values()), None)
    if view.me in said:
        return said[view.me].root
    place = (digest, piece.first)
    if place not in view.agreed:
        counts = Counter(agg.root for agg in said.values())
        root = max(sorted(counts), key=lambda root: counts[root])
        # Of the last one in reach only an observer takes a sum: members would be the second.
        if counts[root] < min(view.copies, len(view.expected)):
            return None
        view.agreed[place] = root
    return view.agreed[place]


def take_own_sum(
    view: RoundView, digest: bytes, piece: Slice, root: bytes, *, is_mute: bool
) -> None:
    """The own sum of a slice is in the store: its result, for this node.

    Not in an open run where it cannot be said, because signatures are lost (R12): nobody compares
    it then, and the AGGs of others may well agree on another. Their cells take its place.
    """
    held, cells = view.results.setdefault(digest, set()), range(piece.first, piece.stop)
    own = view.agg_of(digest, piece).get(view.me)
    if is_mute and view.copies > 1 and (own is None or own.root != root):
        held.difference_update(cells)
    else:
        held.update(cells)


def result_place(view: RoundView, digest: bytes, cell: int) -> ResultPlace | None:
    """Where a result cell of a LIST belongs, once an AGG of its slice may be believed."""
    for piece in view.slices:
        if piece.first <= cell < piece.stop:
            root = agreed_root(view, digest, piece)
            return None if root is None else ResultPlace(root, piece.first, piece.stop)
    return None


def caught(view: RoundView, digest: bytes, piece: Slice) -> set[PeerId]:
    """Reducers whose AGG names another root than the one that is believed."""
    root = agreed_root(view, digest, piece)
    if view.copies == 1 or root is None:
        return set()
    return {peer for peer, agg in view.agg_of(digest, piece).items() if agg.root != root}


def is_agreed(view: RoundView, digest: bytes, piece: Slice) -> bool:
    """Whether enough reducers say of a slice what this node says: others can check it then."""
    said = view.agg_of(digest, piece)
    agreeing = [peer for peer, agg in said.items() if agg == said.get(view.me)]
    return len(agreeing) >= min(view.copies, len(view.expected))


def call_substitutes(view: RoundView, *, now_s: float, deadline_s: float) -> None:
    """Let the next in rank sum a slice of a certified LIST of which two AGGs differ, or one does
    not come though its reducer seems to live: each for a deadline."""
    for digest, _ in view.ballots.certified_lists() if view.copies > 1 else ():
        late = int((now_s - view.certified_s.get(digest, now_s)) / deadline_s)
        for piece in view.slices:
            said = view.agg_of(digest, piece)
            counts = Counter(agg.root for agg in said.values())
            if counts and max(counts.values()) >= view.copies:
                continue
            view.gathering().call(piece, max(late, len(counts) - 1))
