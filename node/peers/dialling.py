"""Whom a node dials, at which addresses, and when. Pure: time and outcomes in, dials out.

Records under a run's topic cost their writer nothing, and nothing ties them to the run. So members
come before all others, then whom the user named, then whoever has done the run's work, and the rest
share a budget that has nobody dialled often, whatever they say and however many they are.
"""

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain, zip_longest

from dht.reaching.dials import DialMemory
from protocol import limits
from protocol.identity import PeerId

# Address book -------------------------------------------------------------------------------------
#
# Where the peers of a run may be dialled.

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


# Retrying -----------------------------------------------------------------------------------------
#
# When a peer that could not be reached, or refused us, is tried again.

RETRY_S_MAX = 60.0


@dataclass(slots=True)
class Retry:
    """`due_s` is monotonic; each failure doubles the time to the next try."""

    due_s: float = 0.0
    delay_s: float = 1.0

    def postpone(self, now_s: float) -> None:
        """It is being tried now."""
        self.due_s = now_s + self.delay_s
        self.delay_s = min(2 * self.delay_s, RETRY_S_MAX)


_PAUSE_TIMES_MAX = 4.0


def pause_s(least_s: float, took_s: float) -> float:
    """How long to rest behind what took `took_s` and is to be done again: as long, within bounds.

    Where all are busy, all that they do again and again is what they are busy with.
    """
    return min(max(least_s, took_s), _PAUSE_TIMES_MAX * least_s)


# Dialling -----------------------------------------------------------------------------------------

AT_ONCE_MAX, STRANGE_AT_ONCE_MAX = 8, 4
"""Dials at one time, and of them those to peers that nobody vouches for."""

A_SECOND = 7.0
BURST = 3
"""Addresses dialled, all together: in no second more than ten. So many of one peer at a time; the
others come next time."""

LONELY_A_SECOND, LINKED_A_SECOND = 7.0, 1.0
"""Addresses that have never answered, of peers nobody vouches for: while nobody is linked, and with
a link. A newcomer among 256 made-up writers has tried half of them within twenty seconds."""

REDIAL_S = 1.0
"""A peer that was reached is dialled again at once when its connection breaks, but so long after
the last time."""

LINKS_ENOUGH = 3
SEALED_S = 600.0
"""With so many links, most members among them, and a round sealed within so long, nobody new is
dialled: newcomers dial the members."""

LOOK_AGAIN_S = 5.0
LOOKS_MAX = 32
"""A peer none of whose addresses may be dialled now is looked at again so much later, and so many
at a time: a thousand names of one dead address cost no processor time worth mentioning."""

REMEMBERED_MAX = 4096
"""Peers whose last outcome is kept, also of those that the book has forgotten."""


class Worth(IntEnum):
    """Who is dialled first, and forgotten last."""

    MEMBER = 0
    """In the roster, or the founder."""

    NAMED = 1
    """By the user, now or at an earlier start."""

    PROVEN = 2
    """It has done the run's join puzzle."""

    STRANGER = 3


@dataclass(frozen=True, slots=True)
class KnownProgress:
    """Where the run stands, as this node knows."""

    members: frozenset[PeerId] = frozenset()
    round: int = 0
    """The last that is sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialContext:
    """What a choice depends on, besides what is remembered."""

    connected: Collection[PeerId]
    linked: Collection[PeerId]
    standing: KnownProgress
    is_paused: Callable[[PeerId], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class Dial:
    """A peer to be dialled now, and where."""

    peer: PeerId
    addresses: tuple[str, ...]
    is_trusted: bool


@dataclass(slots=True)
class Budget:
    """So many a second; what is not used of it is kept up to `most`."""

    most: float
    left: float
    filled_s: float = 0.0

    def refill(self, a_second: float, now_s: float) -> None:
        """Time has passed."""
        self.left = min(self.most, self.left + max(0.0, now_s - self.filled_s) * a_second)
        self.filled_s = max(self.filled_s, now_s)


@dataclass(slots=True, kw_only=True)
class DialDecider:
    """The dials of one node. `book` is whom it knows; `memory` what is known of addresses."""

    me: PeerId
    founder: PeerId
    book: AddressBook
    memory: DialMemory = field(default_factory=DialMemory)
    rng: random.Random = field(default_factory=random.SystemRandom)
    """Strangers are tried in an order that no writer can choose."""

    _retries: dict[PeerId, Retry] = field(default_factory=dict)
    _under_way: dict[PeerId, Dial] = field(default_factory=dict)
    _proven: dict[PeerId, None] = field(default_factory=dict)
    _all: Budget = field(default_factory=lambda: Budget(BURST, BURST))
    _strange: Budget = field(default_factory=lambda: Budget(BURST, BURST))
    _round: int = 0
    _sealed_s: float = float("-inf")

    def choose(self, around: DialContext, now_s: float) -> list[Dial]:
        """Who is to be dialled now. `ended` hears of each."""
        if around.standing.round > self._round:
            self._round, self._sealed_s = around.standing.round, now_s
        self._all.refill(A_SECOND, now_s)
        self._strange.refill(LINKED_A_SECOND if around.linked else LONELY_A_SECOND, now_s)
        settled = self._is_settled(around, now_s)
        dials: list[Dial] = []
        if self._all.left < 1.0:
            return dials
        for worth, peer in self._due(around, now_s)[:LOOKS_MAX]:
            is_trusted = worth <= Worth.NAMED
            if len(self._under_way) >= AT_ONCE_MAX or self._all.left < 1.0:
                break
            if not is_trusted and (settled or not self._has_room_for_strangers()):
                break
            dial = self._dial(peer, now_s, is_trusted=is_trusted)
            if dial is not None:
                dials.append(dial)
        return dials

    def ended(self, dial: Dial, at: str, connected: Collection[PeerId], now_s: float) -> None:
        """A dial is over; the peer is connected `at` that address, or there is none."""
        self._under_way.pop(dial.peer, None)
        self.memory.note_outcome(dial.addresses, at, connected, now_s)
        if dial.peer in connected:
            # Not more often: it may take every connection, and close it.
            limits.keep_newest(self._retries, dial.peer, Retry(now_s + REDIAL_S), REMEMBERED_MAX)
            if at in dial.addresses:
                untried = len(dial.addresses) - 1 - dial.addresses.index(at)
                self._all.left = min(self._all.most, self._all.left + untried)

    def note_proven(self, peer: PeerId) -> None:
        """It has shown the work of this run."""
        limits.keep_newest(self._proven, peer, None, REMEMBERED_MAX)

    def worth(self, peer: PeerId, members: Collection[PeerId]) -> Worth:
        """Who comes first."""
        if peer in members or peer == self.founder:
            return Worth.MEMBER
        if self.book.is_chosen(peer):
            return Worth.NAMED
        return Worth.PROVEN if peer in self._proven else Worth.STRANGER

    def merit(self, peer: PeerId, members: Collection[PeerId]) -> Merit:
        """The higher, the sooner it is forgotten where the book is full."""
        retry = self._retries.get(peer)
        return self.worth(peer, members), 1.0 if retry is None else retry.delay_s

    def _due(self, around: DialContext, now_s: float) -> list[tuple[Worth, PeerId]]:
        known = []
        for peer in self.book:
            retry = self._retries.get(peer)
            if retry is not None and now_s < retry.due_s:
                continue
            is_here = peer in around.connected or peer in around.linked or peer == self.me
            if is_here or peer in self._under_way or around.is_paused(peer):
                continue
            # Strangers are mixed anew each time.
            known.append((self.worth(peer, around.standing.members), self.rng.random(), peer))
        return [(worth, peer) for worth, _, peer in sorted(known)]

    def _is_settled(self, around: DialContext, now_s: float) -> bool:
        """Whether links suffice and rounds seal."""
        others = around.standing.members - {self.me}
        num_linked = len(others.intersection(around.linked))
        return (
            now_s < self._sealed_s + SEALED_S
            and len(around.linked) >= LINKS_ENOUGH
            and 2 * num_linked >= len(others)
        )

    def _has_room_for_strangers(self) -> bool:
        num = sum(not dial.is_trusted for dial in self._under_way.values())
        return num < STRANGE_AT_ONCE_MAX and self._strange.left >= 1.0

    def _dial(self, peer: PeerId, now_s: float, *, is_trusted: bool) -> Dial | None:
        """One dial, if there is an address to go to."""
        memory, chosen = self.memory, self.book.chosen(peer)
        due = [
            # What the user named follows the peer's own retries alone, as it always did.
            one
            for one in self.book.of(peer)
            if one in chosen or memory.is_due(one, now_s, is_trusted=is_trusted)
        ]
        room = int(self._all.left if is_trusted else min(self._all.left, self._strange.left))
        retry = self._retries.get(peer, Retry())
        due = sorted(due, key=memory.tried_s)[:room]
        if not due:
            retry.due_s = now_s + LOOK_AGAIN_S
            limits.keep_newest(self._retries, peer, retry, REMEMBERED_MAX)
            return None
        if not is_trusted:
            self._strange.left -= sum(map(memory.is_strange, due))
        self._all.left -= len(due)
        for address in due:
            memory.note_tried(address, now_s, is_trusted=is_trusted)
        retry.postpone(now_s)
        limits.keep_newest(self._retries, peer, retry, REMEMBERED_MAX)
        dial = Dial(peer, tuple(due), is_trusted)
        self._under_way[peer] = dial
        return dial
