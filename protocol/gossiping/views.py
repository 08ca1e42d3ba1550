"""Whom a node knows: neighbours (the active view), acquaintances (the passive one), the lost. Pure.

After HyParView (Leitao, Pereira, Rodrigues 2007) and Cyclon (Voulgaris, Gavidia, van Steen 2005):
neighbours are symmetric and few, gossip and pings go to them; acquaintances are many, exchanged in
shuffles, and take a lost neighbour's place. Ours: nobody introduces more than a share of the
passive view, some places among the neighbours go to own choices only, and who was found gone is
kept among the lost, because after a split of the network it is the way back.
"""

import random
from collections import Counter
from dataclasses import dataclass

from protocol import limits
from protocol.gossip import Introduction, NeighbourKind
from protocol.gossiping.settings import GossipSettings
from protocol.identity import PeerId

ASK_AGAIN_S = 2.0
"""For the answer of whom we asked to be neighbours."""

ASKED_AT_ONCE = 2

REFUSED_S = 20.0
"""Whoever has no place for us is not asked again for so long, if there are others."""


@dataclass(slots=True)
class Known:
    """A peer that somebody named, or that spoke to us (then it is its own introducer)."""

    addresses: tuple[str, ...]
    seen_s: float
    introducer: PeerId
    refused_s: float = float("-inf")


@dataclass(slots=True)
class Near:
    """A neighbour. `is_chosen` if we asked it, not it us."""

    known: Known
    is_chosen: bool


class PartialViews:
    """All of it bounded by the settings. Times are monotonic seconds."""

    def __init__(self, me: PeerId, rng: random.Random, settings: GossipSettings) -> None:
        self._me = me
        self._rng = rng
        self._settings = settings
        self._near: dict[PeerId, Near] = {}
        self._passive: dict[PeerId, Known] = {}
        self._lost: dict[PeerId, Known] = {}
        self._asked: dict[PeerId, float] = {}
        self._introduced: dict[PeerId, int] = {}
        """How many of the passive view each introducer named."""
        self.neighbours: tuple[PeerId, ...] = ()
        """The active view, ascending."""

    # What is known --------------------------------------------------------------------------------

    @property
    def acquaintances(self) -> tuple[PeerId, ...]:
        """The passive view, ascending."""
        return tuple(sorted(self._passive))

    @property
    def lost(self) -> tuple[PeerId, ...]:
        """Who was found gone, ascending."""
        return tuple(sorted(self._lost))

    @property
    def size(self) -> int:
        """Peers in all views together."""
        return len(self._near) + len(self._passive) + len(self._lost)

    @property
    def is_meagre(self) -> bool:
        """Whether so few are known that one is glad of any introduction."""
        return len(self._near) + len(self._passive) < 2 * self._settings.active

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._near or peer in self._passive or peer in self._lost

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer in view said that it listens, as far as one was told."""
        known = self._find(peer)
        return known.addresses if known else ()

    def _find(self, peer: PeerId) -> Known | None:
        near = self._near.get(peer)
        return near.known if near else self._passive.get(peer) or self._lost.get(peer)

    def meet(
        self, peer: PeerId, addresses: tuple[str, ...], introducer: PeerId, seen_s: float
    ) -> bool:
        """Somebody named a peer that was seen then; whether it is among the acquaintances now."""
        if peer == self._me or peer in self._near:
            return False
        lost = self._lost.get(peer)
        if lost is not None:
            # Others may not know yet that it is gone; only its own word brings it back.
            lost.addresses = addresses or lost.addresses
            return False
        known = self._passive.get(peer)
        if known is not None:
            if seen_s > known.seen_s:
                known.seen_s, known.addresses = seen_s, addresses or known.addresses
            return True
        if not self._make_room(introducer, seen_s):
            return False
        self._put(peer, Known(addresses, seen_s, introducer))
        return True

    def heard(self, peer: PeerId, now_s: float) -> None:
        """A peer spoke to us. Who was lost is found; a stranger becomes an acquaintance."""
        near = self._near.get(peer)
        if near is not None:
            near.known.seen_s = now_s
            return
        known = self._passive.get(peer)
        if known is not None:
            known.seen_s = now_s
            return
        found = self._lost.pop(peer, None)
        self.meet(peer, found.addresses if found else (), peer, now_s)

    def _make_room(self, introducer: PeerId, seen_s: float) -> bool:
        """Room for one more of that introducer's: its own oldest goes if it has its share."""
        most = self._settings.passive_max // self._settings.introducer_share
        if self._introduced.get(introducer, 0) >= most:
            return self._drop_oldest(introducer, seen_s)
        if len(self._passive) < self._settings.passive_max:
            return True
        # The introducer with the most gives way, so that a flood only ever crowds out itself.
        most_named = max(self._introduced, key=lambda peer: (self._introduced[peer], peer))
        if self._introduced[most_named] > 1 or introducer == most_named:
            return self._drop_oldest(most_named, float("inf"))
        oldest = min(self._passive, key=lambda peer: (self._passive[peer].seen_s, peer))
        if self._passive[oldest].seen_s >= seen_s:
            return False
        self._take(oldest)
        return True

    def _drop_oldest(self, introducer: PeerId, seen_s: float) -> bool:
        named = [peer for peer, known in self._passive.items() if known.introducer == introducer]
        oldest = min(named, key=lambda peer: (self._passive[peer].seen_s, peer))
        if self._passive[oldest].seen_s >= seen_s:
            return False
        self._take(oldest)
        return True

    def _put(self, peer: PeerId, known: Known) -> None:
        self._passive[peer] = known
        self._introduced[known.introducer] = self._introduced.get(known.introducer, 0) + 1

    def _take(self, peer: PeerId) -> Known | None:
        known = self._passive.pop(peer, None)
        if known is not None:
            self._introduced[known.introducer] -= 1
            if not self._introduced[known.introducer]:
                del self._introduced[known.introducer]
        return known

    # Neighbours -----------------------------------------------------------------------------------

    def wanted(self, now_s: float) -> list[tuple[PeerId, NeighbourKind]]:
        """Whom to ask now to be neighbours."""
        overdue = [peer for peer, at_s in self._asked.items() if now_s - at_s >= ASK_AGAIN_S]
        for peer in overdue:
            # No answer: it may be gone, and is the last to be asked again.
            del self._asked[peer]
            known = self._find(peer)
            if known is not None:
                known.refused_s = now_s
        chosen = sum(near.is_chosen for near in self._near.values())
        lacking = max(
            self._settings.active - len(self._near), self._settings.own_choice_min - chosen
        )
        room = self._settings.active_max - len(self._near)
        num = min(lacking, room, ASKED_AT_ONCE) - len(self._asked)
        kind = NeighbourKind.ASK if self._near else NeighbourKind.URGENT
        found = [(peer, kind) for peer in self._candidates(num, now_s)]
        self._asked.update((peer, now_s) for peer, _ in found)
        return found

    def _candidates(self, num: int, now_s: float) -> list[PeerId]:
        """Drawn from the acquaintances; those whose introducers brought fewer neighbours first."""
        if num <= 0:
            return []
        brought = Counter(near.known.introducer for near in self._near.values())
        asked = [self._find(peer) for peer in self._asked]
        brought.update(known.introducer for known in asked if known is not None)
        free = [peer for peer in sorted(self._passive) if peer not in self._asked]
        self._rng.shuffle(free)

        def reluctance(peer: PeerId) -> tuple[bool, int]:
            known = self._passive[peer]
            return now_s - known.refused_s < REFUSED_S, brought[known.introducer]

        drawn: list[PeerId] = []
        while free and len(drawn) < num:
            peer = min(free, key=reluctance)
            if self._near and reluctance(peer)[0]:
                break
            free.remove(peer)
            drawn.append(peer)
            brought[self._passive[peer].introducer] += 1
        return drawn

    def neighbour(
        self, peer: PeerId, kind: NeighbourKind, now_s: float
    ) -> tuple[NeighbourKind | None, PeerId | None]:
        """What a peer said about being neighbours: the answer that is due, and who must go."""
        if kind is NeighbourKind.END:
            self._part(peer)
            return None, None
        if kind is NeighbourKind.YES:
            # Who was never asked chose itself, and would take a place of our own choice.
            if self._asked.pop(peer, None) is None:
                return (None if peer in self._near else NeighbourKind.END), None
            if len(self._near) >= self._settings.active_max:
                return NeighbourKind.END, None
            self._bind(peer, now_s, is_chosen=True)
            return None, None
        if kind is NeighbourKind.NO:
            known = self._find(peer)
            if self._asked.pop(peer, None) is not None and known is not None:
                known.refused_s = now_s
            return None, None
        if peer in self._near:
            return NeighbourKind.YES, None
        gone = None
        is_full = self._num_guests() >= self._settings.active_max - self._settings.own_choice_min
        if len(self._near) >= self._settings.active_max or is_full:
            if kind is NeighbourKind.ASK or not self._num_guests():
                return NeighbourKind.NO, None
            # Only a guest gives way: asking urgently is free, our own choices are not for sale.
            guests = sorted(p for p, near in self._near.items() if not near.is_chosen)
            gone = self._rng.choice(guests)
            self._part(gone)
        self._asked.pop(peer, None)
        self._bind(peer, now_s, is_chosen=False)
        return NeighbourKind.YES, gone

    def _num_guests(self) -> int:
        return sum(not near.is_chosen for near in self._near.values())

    def _bind(self, peer: PeerId, now_s: float, *, is_chosen: bool) -> None:
        known = self._take(peer) or self._lost.pop(peer, None) or Known((), now_s, peer)
        self._near[peer] = Near(known, is_chosen)
        self.neighbours = tuple(sorted(self._near))

    def _part(self, peer: PeerId) -> None:
        """A neighbour is one no more, and stays an acquaintance if there is room."""
        known = self._unbind(peer)
        if known is not None and self._make_room(known.introducer, known.seen_s):
            self._put(peer, known)

    def _unbind(self, peer: PeerId) -> Known | None:
        near = self._near.pop(peer, None)
        if near is None:
            return None
        self.neighbours = tuple(sorted(self._near))
        return near.known

    def gone(self, peer: PeerId, now_s: float) -> None:
        """A peer does not answer: it is lost, and tried again now and then."""
        self._asked.pop(peer, None)
        known = self._unbind(peer) or self._take(peer)
        if known is None:
            return
        if len(self._lost) >= self._settings.lost_max:
            # Anyone may go: of a split network all of them are ways back.
            del self._lost[self._rng.choice(sorted(self._lost))]
        known.seen_s = min(known.seen_s, now_s)
        self._lost[peer] = known

    def left(self, peer: PeerId) -> None:
        """A peer said goodbye: it is not tried again."""
        self._unbind(peer)
        self._take(peer)
        self._lost.pop(peer, None)
        self._asked.pop(peer, None)

    # Shuffles -------------------------------------------------------------------------------------

    def sample(self, num: int, now_s: float, *, beside: PeerId) -> tuple[Introduction, ...]:
        """Some of whom we know and may be there, to be told to `beside`."""
        fresh = [
            (peer, known)
            for peer, known in (
                *((peer, near.known) for peer, near in self._near.items()),
                *self._passive.items(),
            )
            if peer != beside and now_s - known.seen_s < self._settings.forgotten_s
        ]
        fresh.sort(key=lambda pair: pair[0])
        drawn = self._rng.sample(fresh, min(num, len(fresh)))
        return tuple(introduction(peer, known, now_s) for peer, known in drawn)

    def told(self, known: tuple[Introduction, ...], teller: PeerId, now_s: float) -> None:
        """What a peer said whom it knows; of itself it is its own witness."""
        for one in known:
            introducer = one.peer if one.peer == teller else teller
            if one.age_s < self._settings.forgotten_s:
                self.meet(one.peer, one.addresses, introducer, now_s - one.age_s)
            if one.peer == teller and one.addresses:
                own = self._find(teller)
                if own is not None:
                    own.addresses = one.addresses


def introduction(peer: PeerId, known: Known, now_s: float) -> Introduction:
    """What is told of a peer; what no frame could carry is left out."""
    age_s = min(max(0, int(now_s - known.seen_s)), limits.INTRODUCTION_AGE_S_MAX)
    return Introduction(peer=peer, age_s=age_s, addresses=told_addresses(known.addresses))


def told_addresses(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the addresses that fit an introduction."""
    fitting = [a for a in addresses if 0 < len(a.encode()) <= limits.GOSSIP_ADDRESS_BYTES_MAX]
    return tuple(fitting[: limits.GOSSIP_ADDRESSES_MAX])
