"""When an address may be dialled: how many begin in a second, and what became of those before.

Anybody can say in the directory that somebody listens anywhere, under as many names as he likes.
So what is remembered hangs on the address and its host, and not on the peer whose it is said to be:
forgetting a peer, or hearing the same from a hundred others, has nobody dialled more often.

The directory dials whom replies name, and the run whom records name. So all these dials of a node
share its turns: of those that nobody has answered, ten begin in a second. A turn is given back when
the peer answers, and a swarm whose peers are there never waits. All but the waiting is pure.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import IntEnum

import trio

from dht.reaching.addresses import first_hop, host_and_port, ip_of, is_public, parse_circuit
from protocol import limits
from protocol.identity import PeerId
from protocol.transport import Pace

DIALS_A_SECOND_MAX = 10
WINDOW_S = 1.1
"""The second, and by how much a busy machine may begin one dial later than the next."""


class DialFor(IntEnum):
    """What a dial is for. Dials for one purpose wait in one line, and only the first of a line
    stands in the line of the purpose before it: who wants many dials keeps no other out."""

    RUN = 0
    SEARCH = 1
    UPKEEP = 2


@dataclass(frozen=True, slots=True)
class TurnWish:
    """How a dial waits for its turn."""

    purpose: DialFor = DialFor.UPKEEP
    waits: Callable[[float], None] = lambda _: None
    """Hears since when the peer is being dialled: infinity while it waits."""

    until_s: float = float("inf")
    """A dial that has no turn by then is none."""


UPKEEP = TurnWish()


class DialTurns:
    """The turns of one node."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, str]] = deque()
        self._lines = tuple(trio.Lock() for _ in DialFor)
        self._given_back = trio.Event()

    def take_now(self, address: str, now_s: float) -> bool:
        """Take a turn, if there is one and nobody waits for it."""
        if self._lines[DialFor.RUN].locked() or not self._is_free(now_s):
            return False
        self._begun.append((now_s, first_hop(address)))
        return True

    async def take(self, address: str, purpose: DialFor) -> None:
        """Wait for a turn, and take it."""
        async with AsyncExitStack() as place:
            for line in reversed(self._lines[: purpose + 1]):
                await place.enter_async_context(line)
            while not self._is_free(trio.current_time()):
                with trio.move_on_at(self._begun[0][0] + WINDOW_S):
                    await self._given_back.wait()
            self._begun.append((trio.current_time(), first_hop(address)))

    def give_back(self, address: str) -> None:
        """The peer answered there: its dial took nobody's turn."""
        hop = first_hop(address)
        turn = next((one for one in reversed(self._begun) if one[1] == hop), None)
        if turn is not None:
            self._begun.remove(turn)
            self._given_back.set()
            self._given_back = trio.Event()

    def _is_free(self, now_s: float) -> bool:
        while self._begun and now_s >= self._begun[0][0] + WINDOW_S:
            self._begun.popleft()
        return len(self._begun) < DIALS_A_SECOND_MAX


# What became of dials ---------------------------------------------------------------------------

STRANGE_S = 60.0
"""An address that has never answered is not dialled again for so long, whoever names it."""

AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 60.0
"""One that has answered, or that a member or the user named, is dialled again soon, then later and
later: a peer that was away comes back at the same place."""

STRANGE_A_HOST_MAX = 16
"""Addresses at one public host that have never answered, dialled in each `STRANGE_S`: so many
peers may share a router, and nobody has us knock at each port of a third party."""

STRANGE_A_NEAR_HOST_MAX = 64
"""The same at a host of one's own network. On the own machine all ports may be dialled."""

REMEMBERED_MAX = 8192
"""Addresses. Budgets of whoever dials allow for a sixteenth of it in the time that counts."""


@dataclass(slots=True)
class _Tried:
    at_s: float
    delay_s: float = AGAIN_FIRST_S
    has_answered: bool = False
    before: tuple[float, float] | None = None
    """`at_s` and `delay_s` before this dial; None if it is the first that is remembered."""
    is_counted: bool = False
    """Whether this dial counts against what its host may have of such dials."""
    got_no_turn: bool = False
    """Whether its dial never began."""


@dataclass(slots=True)
class _DialledHost:
    since_s: float
    num: int = 0


class DialMemory:
    """What became of the dials of one node, by address and by host."""

    def __init__(self) -> None:
        self.turns = DialTurns()
        self._tried: dict[str, _Tried] = {}
        self._hosts: dict[str, _DialledHost] = {}

    def __len__(self) -> int:
        return len(self._tried)

    def is_strange(self, address: str) -> bool:
        """Whether nothing has ever answered there, as far as is remembered."""
        tried = self._tried.get(first_hop(address))
        return tried is None or not tried.has_answered

    def tried_s(self, address: str) -> float:
        """When it was dialled last; who was never dialled comes before all others."""
        tried = self._tried.get(first_hop(address))
        return float("-inf") if tried is None or tried.has_answered else tried.at_s

    def is_due(self, address: str, now_s: float, *, is_trusted: bool = False) -> bool:
        """Whether it may be dialled now. `is_trusted` of what the user or a member named."""
        place = first_hop(address)
        tried = self._tried.get(place)
        if tried is not None and (is_trusted or tried.has_answered):
            return now_s >= tried.at_s + tried.delay_s
        if tried is not None and now_s < tried.at_s + STRANGE_S:
            return False
        return is_trusted or self._has_room(place, now_s)

    def note_tried(self, address: str, now_s: float, *, is_trusted: bool = False) -> None:
        """It is being dialled now."""
        place = first_hop(address)
        tried = self._tried.get(place)
        if tried is None:
            tried = _Tried(now_s)
        else:
            tried.before = (tried.at_s, tried.delay_s)
            tried.at_s = now_s
            tried.delay_s = min(max(AGAIN_FIRST_S, 2 * tried.delay_s), AGAIN_MAX_S)
        tried.got_no_turn = False
        tried.is_counted = not (is_trusted or tried.has_answered)
        limits.keep_newest(self._tried, place, tried, REMEMBERED_MAX)
        if tried.is_counted:
            self._count(place, now_s)

    def pace(self, patience: trio.CancelScope, wish: TurnWish) -> Pace:
        """Has each address of a dial wait for its turn; the clock of `patience` stands then."""
        waiting, left_s, has_begun = 0, 0.0, False

        async def wait(address: str) -> bool:
            nonlocal waiting, left_s, has_begun
            # The hosts behind a name wait beside the next address: the first stops the clock.
            if not waiting:
                left_s = patience.deadline - trio.current_time()
                patience.deadline = float("inf")
                wish.waits(float("inf"))
            waiting += 1
            try:
                with trio.move_on_at(wish.until_s) as line:
                    await self.turns.take(address, wish.purpose)
                    has_begun = True
                return not line.cancelled_caught
            finally:
                waiting -= 1
                if not waiting:
                    patience.deadline = trio.current_time() + left_s
                    # Of whom nothing was dialled nobody is to say that it does not answer.
                    if has_begun:
                        wish.waits(trio.current_time())

        async def take_turn(address: str) -> bool:
            nonlocal has_begun
            now_s, tried = trio.current_time(), self._tried.get(first_hop(address))
            is_free = now_s < wish.until_s and self.turns.take_now(address, now_s)
            has_begun = has_begun or is_free
            has_turn = is_free or (now_s < wish.until_s and await wait(address))
            if tried is not None and has_turn:
                tried.at_s = trio.current_time()
            elif tried is not None:
                tried.got_no_turn = True
            return has_turn

        return take_turn

    def note_answered(self, address: str, now_s: float) -> None:
        """The peer that was looked for is there; of a circuit, the relay is."""
        self.turns.give_back(address)
        place = first_hop(address)
        self._tried.pop(place, None)
        self._tried[place] = _Tried(now_s, 0.0, has_answered=True)

    def note_outcome(
        self, addresses: Iterable[str], at: str, connected: Collection[PeerId], now_s: float
    ) -> None:
        """What a dial of `addresses` came to: one answered `at`, or none; who is connected now."""
        for address in addresses:
            circuit = parse_circuit(address)
            is_there = address == at if circuit is None else circuit.relay in connected
            # The name of a host leads to an address of which the dialler alone knows.
            if is_there or (at and circuit is None and host_and_port(address) is None):
                self.note_answered(address, now_s)
            else:
                self._take_back(first_hop(address))

    def _take_back(self, place: str) -> None:
        """A dial that got no turn was none: whoever has others named again and again does not keep
        this node from an address that it never dialled."""
        tried = self._tried.get(place)
        if tried is None or not tried.got_no_turn:
            return
        if tried.before is None:
            del self._tried[place]
        else:
            (tried.at_s, tried.delay_s), tried.got_no_turn = tried.before, False
        host = self._hosts.get(_host_of(place))
        if tried.is_counted and host is not None:
            host.num = max(0, host.num - 1)

    def _has_room(self, place: str, now_s: float) -> bool:
        most, host = _most_of(place), self._hosts.get(_host_of(place))
        if most is None or host is None or now_s >= host.since_s + STRANGE_S:
            return True
        return host.num < most

    def _count(self, place: str, now_s: float) -> None:
        name = _host_of(place)
        host = self._hosts.get(name)
        if host is None or now_s >= host.since_s + STRANGE_S:
            host = _DialledHost(now_s)
        host.num += 1
        limits.keep_newest(self._hosts, name, host, REMEMBERED_MAX)


def _host_of(place: str) -> str:
    where = host_and_port(place)
    # Of a name, the name: it leads to the same host whatever the port is.
    return place.split("/")[2] if where is None and place.count("/") > 1 else (where or ("",))[0]


def _most_of(place: str) -> int | None:
    host = ip_of(place)
    if host is None or is_public(place):
        return STRANGE_A_HOST_MAX
    return None if host.is_loopback else STRANGE_A_NEAR_HOST_MAX
