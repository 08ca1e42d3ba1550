"""Where the peers of a run may be dialled. Pure."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from protocol.identity import PeerId

KNOWN_MAX = 256
"""Peers kept to be dialled: four times the seats. Anybody can announce made-up ones."""

NAMED_MAX = 16
"""Addresses of one peer that others than itself named. The first ones are kept: those of a user
come before those that machines of the network say."""


Merit = tuple[int, float]
"""What a peer is worth, 0 the most, and how long it is left alone for being out of reach."""


@dataclass(slots=True)
class _Places:
    chosen: frozenset[str] = frozenset()
    """Those of the named ones that the user named."""

    named: tuple[str, ...] = ()
    announced: tuple[str, ...] = ()


class AddressBook:
    """Of each peer, what somebody named, and what it announced last; neither replaces the other."""

    def __init__(self) -> None:
        self._places: dict[PeerId, _Places] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, peer: object) -> bool:
        return peer in self._places

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._places)

    def name(self, peer: PeerId, address: str, *, is_chosen: bool = True) -> None:
        """The user or the file of an earlier start has it; if it is not chosen, others told us."""
        places = self._places.setdefault(peer, _Places())
        if address not in places.named and len(places.named) < NAMED_MAX:
            places.named += (address,)
        if is_chosen and address in places.named:
            places.chosen |= {address}

    def is_chosen(self, peer: PeerId) -> bool:
        """Whether the user named it, now or at an earlier start."""
        return bool(self.chosen(peer))

    def chosen(self, peer: PeerId) -> frozenset[str]:
        """Where the user says that it may be dialled."""
        places = self._places.get(peer)
        return frozenset() if places is None else places.chosen

    def announce(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """The peer says so itself, and no longer what it said before."""
        self._places.setdefault(peer, _Places()).announced = addresses

    def make_room(
        self,
        newcomer: PeerId,
        newcomer_merit: Merit,
        connected: Collection[PeerId],
        merit: Callable[[PeerId], Merit],
    ) -> bool:
        """Whether `newcomer` may come in; where the book is full somebody is forgotten for it.

        It is whoever is worth least, or was out of reach most often: of the highest `merit`. Nobody
        goes for a newcomer of the same: what was never tried is worth no more than what was not
        tried either, and a flood of made-up writers would push out the honest ones before them.
        """
        if newcomer in self._places or len(self._places) < KNOWN_MAX:
            return True
        idle = [peer for peer in self._places if peer not in connected]
        hopeless = max(idle or self._places, key=merit)
        if merit(hopeless) <= newcomer_merit:
            return False
        del self._places[hopeless]
        return True

    def of(self, peer: PeerId) -> tuple[str, ...]:
        """Named and announced ones in turn: dead ones of either must not come before all others."""
        places = self._places.get(peer, _Places())
        both = chain.from_iterable(zip_longest(places.named, places.announced))
        return tuple(dict.fromkeys(one for one in both if one is not None))
