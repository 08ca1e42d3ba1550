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


@dataclass(slots=True)
class _Places:
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

    def name(self, peer: PeerId, address: str) -> None:
        """A user, the peer's neighbours or the file of an earlier start have it."""
        places = self._places.setdefault(peer, _Places())
        if address not in places.named and len(places.named) < NAMED_MAX:
            places.named += (address,)

    def announce(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        """The peer says so itself, and no longer what it said before."""
        self._places.setdefault(peer, _Places()).announced = addresses

    def make_room(
        self,
        newcomer: PeerId,
        connected: Collection[PeerId],
        delay_s: Callable[[PeerId], float],
    ) -> tuple[PeerId, ...]:
        """Forget somebody if the book is full and `newcomer` is not in it; who was forgotten.

        It is whoever was out of reach most often, which `delay_s` tells: honest peers are announced
        again. Named ones, which are not, go last.
        """
        if newcomer in self._places or len(self._places) < KNOWN_MAX:
            return ()
        idle = [peer for peer in self._places if peer not in connected]
        hopeless = max(
            idle or self._places, key=lambda peer: (not self._places[peer].named, delay_s(peer))
        )
        del self._places[hopeless]
        return (hopeless,)

    def of(self, peer: PeerId) -> tuple[str, ...]:
        """Named and announced ones in turn: dead ones of either must not come before all others."""
        places = self._places.get(peer, _Places())
        both = chain.from_iterable(zip_longest(places.named, places.announced))
        return tuple(dict.fromkeys(one for one in both if one is not None))
