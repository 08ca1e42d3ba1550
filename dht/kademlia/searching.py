"""What a node does over a Transport: drive searches, and ping those who asked it something."""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from dht.kademlia.kademlia import Kademlia
from dht.kademlia.lookup import LookupResult, Query, Search
from dht.kademlia.messages import Nodes, Reply, Request, Values
from dht.kademlia.requests import Requester
from dht.kademlia.routing import Contact
from dht.reaching.dials import UPKEEP, DialFor, TurnWish
from protocol.errors import NetworkError, PeerError
from protocol.identity import PeerId, short_id
from protocol.transport import Transport

logger = logging.getLogger(__name__)


_Answer = tuple[PeerId, Reply | None] | None
"""Of a peer; None where a search is to look at its clock again."""

_STEPS_OF_AN_ANSWER = 16
"""From the socket through decryption, frames and stream to who waits for it, each a turn of the
loop."""

_LATE_S_MAX = 1.0

TURNS_S = 4.0
"""So long queries of a search wait for a turn to dial. Where the dead fill the answers, what it has
found by then has to do; the next search need not dial the same ones."""


class Searcher:
    """Asks for one node. What a search gave up goes on in `nursery`, to learn who failed."""

    def __init__(
        self,
        kademlia: Kademlia,
        transport: Transport,
        requester: Requester,
        *,
        nursery: Callable[[], trio.Nursery],
        answered: Callable[[Contact, bool], None],
    ) -> None:
        """`answered` hears of every answer, and whether its peer is new to the table."""
        self._kademlia = kademlia
        self._transport = transport
        self._requester = requester
        self._nursery = nursery
        self._answered = answered

    async def run(self, search: Search) -> LookupResult:
        """Drive `search` to its end, and tell the table what it taught."""
        # Unread answers are bounded by the peers that a search may ask: two of each, and a word of
        # its dial.
        turns_until_s = trio.current_time() + TURNS_S
        answers_in, answers = trio.open_memory_channel[_Answer](search.config.queries_max * 3)
        async with answers_in, answers:
            queries = search.start(trio.current_time())
            while True:
                for query in queries:
                    self._nursery().start_soon(
                        self._query, search, query, turns_until_s, answers_in.clone()
                    )
                if search.is_done:
                    break
                queries = _feed(search, await _next(answers, search.deadline_s()))
        now_s = trio.current_time()
        self._kademlia.table.refreshed(search.key, now_s)
        result = search.result()
        for liar in result.liars:
            logger.warning("dht peer passed on what it cannot have checked peer=%s", short_id(liar))
            self._kademlia.failed(liar, now_s)
        for peer in result.silent:
            self._kademlia.suspect(peer, now_s)
        return result

    async def ask(
        self,
        contact: Contact,
        request: Request,
        turn: TurnWish = UPKEEP,
    ) -> Reply | None:
        """The reply of a peer, or None; the table learns of either."""
        is_dialled = contact.peer not in self._transport.connected()
        asked_s = trio.current_time()

        def note(since_s: float) -> None:
            nonlocal asked_s
            asked_s = since_s
            turn.waits(since_s)

        try:
            wish = replace(turn, waits=note)
            reply = await self._requester.ask(contact, request, wish)
        except (NetworkError, PeerError) as error:
            logger.debug("dht request failed peer=%s error=%s", short_id(contact.peer), error)
            # Who got no turn to be dialled has not failed.
            if asked_s < float("inf"):
                self._kademlia.failed(contact.peer, trio.current_time())
            return None
        now_s = trio.current_time()
        self._kademlia.times.answered(contact.peer, now_s - asked_s, is_dialled=is_dialled)
        is_new = contact.peer not in self._kademlia.table
        self._kademlia.answered(contact.peer, reply.addresses, now_s)
        self._answered(contact, is_new and contact.peer in self._kademlia.table)
        return reply

    async def _query(
        self,
        search: Search,
        query: Query,
        turns_until_s: float,
        answers_in: trio.MemorySendChannel[_Answer],
    ) -> None:
        def waits(since_s: float) -> None:
            search.asked(query.contact.peer, since_s)
            # Broken: the search has ended. Full: it looks at its clock anyway.
            with contextlib.suppress(trio.BrokenResourceError, trio.WouldBlock):
                answers_in.send_nowait(None)

        async with answers_in:
            request = self._kademlia.request_for(search, query)
            turn = TurnWish(DialFor.SEARCH, waits, turns_until_s)
            reply = await self.ask(query.contact, request, turn)
            # Broken: the search has ended without this peer.
            with contextlib.suppress(trio.BrokenResourceError):
                answers_in.send_nowait((query.contact.peer, reply))


async def _next(answers: trio.MemoryReceiveChannel[_Answer], deadline_s: float) -> _Answer:
    """The next answer; None if there is none by the deadline."""
    answer: _Answer = None
    with trio.move_on_at(deadline_s) as waiting:
        answer = await answers.receive()
    if waiting.cancelled_caught:
        # Woken late, this machine is busy: what was said in time lies unread, some steps of other
        # tasks away. To take all for silent would only have more of them asked.
        late_s = trio.current_time() - deadline_s
        with trio.move_on_after(min(_STEPS_OF_AN_ANSWER * late_s, _LATE_S_MAX)):
            answer = await answers.receive()
    return answer


def _feed(search: Search, answer: _Answer) -> list[Query]:
    now_s = trio.current_time()
    if answer is None:
        return search.tick(now_s)
    peer, reply = answer
    if isinstance(reply, Nodes | Values):
        return search.replied(peer, reply, now_s)
    return search.failed(peer, now_s)


class Pinger:
    """Pings for one node, so many at once. `run` it in a nursery."""

    def __init__(
        self,
        kademlia: Kademlia,
        ping: Callable[[Contact], Awaitable[object]],
        *,
        num_at_once: int,
    ) -> None:
        """`ping` returns when the contact has answered or failed, and has told the table."""
        self._kademlia = kademlia
        self._ping = ping
        self._places = trio.Semaphore(num_at_once)
        self._wanted = trio.Event()

    def wake(self) -> None:
        """There may be somebody to ping."""
        if self._kademlia.has_pings:
            self._wanted.set()

    async def run(self) -> None:
        """Ping until cancelled; who is slow to fail holds up one place and no other."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._places.acquire()
                while not self._kademlia.has_pings:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                for contact in self._kademlia.take_pings(1):
                    nursery.start_soon(self._ping_one, contact)

    async def _ping_one(self, contact: Contact) -> None:
        await self._ping(contact)
        self._places.release()
