"""MoDeST: who of many takes part in a round, with nobody who decides it (de Vos et al. 2023). Pure.

    order of a round   its candidates by hash(seed of the round, peer): equal for all who know both
    sample             the first of the order that answer; another aggregator is the next in it
    view               per peer the last round that it was active in, and its word on membership

Views are merged as state-based CRDTs: whatever the order in which they come, and however often,
all end with the same one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.rounds.seating import order

ACTIVE_ROUNDS = 50
"""Delta k: who was not active for so many rounds is no candidate until it is heard of again."""

MODELS_MIN = 3
"""Fewer are not averaged: what one or two have is no round."""

P = TypeVar("P", bound=bytes)


def sample(
    seed: bytes, peers: Iterable[P], size: int, answers: Callable[[P], bool] = lambda _: True
) -> list[P]:
    """The first `size` of the order that answer; as many as do where fewer do."""
    taken: list[P] = []
    for peer in order(seed, peers):
        if len(taken) == size:
            break
        if answers(peer):
            taken.append(peer)
    return taken


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a peer: its own words on membership are counted, the later one holds.

    Where two words have one count, which only a liar says, that of leaving holds.
    """

    last_active: int = -1
    words: int = 0
    is_member: bool = True

    def merged(self, other: "Entry") -> "Entry":
        """The later of both, in each respect."""
        mine, theirs = (self.words, not self.is_member), (other.words, not other.is_member)
        words, has_left = max(mine, theirs)
        return Entry(max(self.last_active, other.last_active), words, not has_left)


@dataclass(frozen=True, slots=True)
class View:
    """What one peer knows of all."""

    entries: Mapping[bytes, Entry] = field(default_factory=dict)

    def merged(self, other: "View") -> "View":
        """What both know together."""
        peers = self.entries.keys() | other.entries.keys()
        none = Entry()
        return View(
            {
                peer: self.entries.get(peer, none).merged(other.entries.get(peer, none))
                for peer in peers
            }
        )

    def active(self, peers: Iterable[bytes], round_index: int) -> "View":
        """These peers were active in that round."""
        return self.merged(View({peer: Entry(last_active=round_index) for peer in peers}))

    def said(self, peer: bytes, *, is_member: bool, round_index: int) -> "View":
        """A peer says that it joins or leaves, with the next count; who joins is active."""
        words = self.entries.get(peer, Entry()).words + 1
        entry = Entry(round_index if is_member else -1, words, is_member)
        return self.merged(View({peer: entry}))

    def candidates(self, round_index: int, *, window: int = ACTIVE_ROUNDS) -> list[bytes]:
        """Members that were active lately, ascending."""
        return sorted(
            peer
            for peer, entry in self.entries.items()
            if entry.is_member and entry.last_active >= max(0, round_index - window)
        )
