"""Where a node enters, and whether the ways in lead to one network. Pure.

Who knows a single peer sees what that peer shows, which may be made up. So each of the first
contacts is asked alone who lies nearest to us. In one network all of them come to the same peers;
where two do not, either two networks have never met, and we are who knows both, or one is a stage.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import combinations

from dht.kademlia.routing import Contact
from protocol.identity import PeerId

ORIGINS_MAX = 6
"""Each costs a search at every start."""

NETWORK_MIN = 3
"""Peers beside the origin itself, below which it has shown no network: it may be the first one."""

AGREE_SHARE = 0.5
"""Of the smaller view, what must be in the other too; peers come and go between two searches."""

_AGAIN_FIRST_S, _AGAIN_MAX_S = 10.0, 600.0

Doubt = tuple[PeerId, PeerId]
"""Two origins that show different networks."""


def doubts(views: Mapping[PeerId, AbstractSet[PeerId]]) -> tuple[Doubt, ...]:
    """The pairs of origins that do not know each other's peers. Views hold who lies nearest to us,
    found through one origin alone."""
    found = []
    for first, second in combinations(sorted(views), 2):
        pair = {first, second}
        one, other = views[first] - pair, views[second] - pair
        if max(len(one), len(other)) < NETWORK_MIN:
            continue
        knows_other = first in views[second] or second in views[first]
        shared, smaller = len(one & other), min(len(one), len(other))
        if shared < AGREE_SHARE * smaller or (not smaller and not knows_other):
            found.append((first, second))
    return tuple(found)


class Origins:
    """The first contacts of a node, and when to compare again what they show."""

    def __init__(self) -> None:
        self._contacts: OrderedDict[PeerId, Contact] = OrderedDict()
        self.doubts: tuple[Doubt, ...] = ()
        self._due_s = float("inf")
        self._again_s = _AGAIN_FIRST_S

    def __len__(self) -> int:
        return len(self._contacts)

    def add(self, contacts: Iterable[Contact]) -> None:
        """These answered. The first ones are kept: who comes later may come from them."""
        for contact in contacts:
            if contact.peer in self._contacts or len(self._contacts) < ORIGINS_MAX:
                self._contacts[contact.peer] = contact

    def contacts(self) -> tuple[Contact, ...]:
        """Those to search through, each alone."""
        return tuple(self._contacts.values())

    def compared(self, views: Mapping[PeerId, AbstractSet[PeerId]], now_s: float) -> bool:
        """What each showed; whether there is a doubt that was not there before.

        While there is one they are compared again, less and less often.
        """
        before, self.doubts = self.doubts, doubts(views)
        self._again_s = min(2 * self._again_s, _AGAIN_MAX_S) if before else _AGAIN_FIRST_S
        self._due_s = now_s + self._again_s if self.doubts else float("inf")
        return bool(set(self.doubts) - set(before))

    def is_due(self, now_s: float) -> bool:
        """Whether a doubt is to be looked into again."""
        return now_s >= self._due_s
