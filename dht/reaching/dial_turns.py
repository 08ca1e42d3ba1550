"""Turns to dial: of the dials that nobody has answered, ten begin in a second, whoever wants them.

The directory dials whom replies name, and the run whom records name. Both may be made up and aimed
at somebody, so all these dials of a node share its turns. A turn is given back when the peer
answers: a swarm whose peers are there never waits.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import IntEnum

import trio

from dht.reaching.circuits import first_hop

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
