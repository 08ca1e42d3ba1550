"""SEAM Directory: say where something is, find who said so. And ours, Kademlia over a Transport."""

import contextlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from dht.announcements import Announcement, Announcements
from dht.kademlia import Kademlia, KademliaConfig
from dht.keyspace import Key, topic_key
from dht.lookup import Lookup, LookupResult, Query
from dht.messages import (
    PROTOCOL,
    Nodes,
    Ping,
    Reply,
    Request,
    Store,
    Stored,
    StoreVerdict,
    Values,
)
from dht.records import SignedRecord, is_timely, merge
from dht.requests import RequestConfig, Requester, RequestServer
from dht.routing import Contact
from protocol.clock import WallClock
from protocol.errors import NetworkError, PeerError
from protocol.identity import PeerId, Signer, short_id
from protocol.transport import Transport

if TYPE_CHECKING:
    # libp2p brings stubs of trio that hide trio's own types; they know it by this name.
    from trio_typing import TaskStatus

logger = logging.getLogger(__name__)

_REFRESHES_AT_ONCE = 4


class Directory(Protocol):
    """SEAM: how strangers meet, and who has which content.

    The node calls it, in the network process. Everything found is a hint: signed by its writer,
    true or not.
    """

    async def announce(self, topic: bytes, value: bytes, *, ttl_s: float) -> int:
        """Say `value` under `topic` until `forget`; it is renewed before `ttl_s` passes.

        Returns the number of *other* nodes that stored it now; 0 is normal for the first node.
        Raises ValueError if the value or the lifetime is outside the limits.
        """
        ...

    async def find(self, topic: bytes) -> tuple[SignedRecord, ...]:
        """What is said under `topic`, ourselves included: one verified record per writer."""
        ...

    async def forget(self, topic: bytes) -> None:
        """Stop to say anything under `topic`, and tell those who stored it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryConfig:
    """Local taste. What costs traffic says so."""

    kademlia: KademliaConfig = field(default_factory=KademliaConfig)
    requests: RequestConfig = field(default_factory=RequestConfig)

    refresh_s: float = 600.0
    """A bucket that no search has touched for so long gets one; lower costs queries."""

    check_s: float = 15.0
    """How often we look for such buckets, and for expired records."""

    lonely_retry_s: float = 2.0
    """With no contact at all, how long until we ask the first peers again."""

    pings_at_once: int = 8


class KademliaDirectory:
    """SEAM Directory over our own Kademlia. Answers from construction on; asks while `run` runs."""

    def __init__(
        self,
        transport: Transport,
        signer: Signer,
        wall_clock: WallClock,
        *,
        config: DirectoryConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Registers the protocol: construct it before the transport starts to accept.

        `rng` salts the store and picks refresh keys; the default is the system's secret one.
        """
        self.config = config or DirectoryConfig()
        self._transport = transport
        self._wall_clock = wall_clock
        self._rng = rng or random.SystemRandom()
        self.kademlia = Kademlia(
            signer, transport.addresses, self._rng, config=self.config.kademlia
        )
        self._announcements = Announcements(signer, replicas=self.config.kademlia.lookup.width)
        self._requester = Requester(transport, self.config.requests)
        self._first_contacts: tuple[Contact, ...] = ()
        self._nursery: trio.Nursery | None = None
        self._pings_wanted = trio.Event()
        self._announcements_changed = trio.Event()
        self._refresh_wanted = trio.Event()
        server = RequestServer(self._answer, self.config.requests)
        transport.serve(PROTOCOL, server.serve)

    async def run(self, *, task_status: "TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Own all requests, renew what is announced, refresh the table. Ends when cancelled.

        Use `await nursery.start(directory.run)`; `join`, `announce`, `find` need it running.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._keep_pinging)
                nursery.start_soon(self._keep_announced)
                nursery.start_soon(self._keep_fresh)
                task_status.started()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                await self._requester.aclose()

    async def join(self, contacts: Sequence[Contact]) -> int:
        """Enter the network through `contacts`; returns how many of them answered.

        Then looks up our own key, so that our neighbours learn of us and we of them. With 0 nobody
        answered: `run` asks them again every few seconds as long as the table is empty.
        """
        others = tuple(c for c in contacts if c.peer != self._transport.peer_id)
        self._first_contacts = others or self._first_contacts
        answers: list[bool] = []
        async with trio.open_nursery() as nursery:
            for contact in others:
                nursery.start_soon(self._ping, contact, answers)
        await self._look_up(self._start(self.kademlia.table.own_key))
        self._refresh_wanted.set()
        return sum(answers)

    async def announce(self, topic: bytes, value: bytes, *, ttl_s: float) -> int:
        """See `Directory.announce`."""
        announcement = self._announcements.add(topic, value, ttl_s=ttl_s, now_s=trio.current_time())
        num_stored = await self._publish(announcement)
        self._announcements_changed.set()
        return num_stored

    async def find(self, topic: bytes) -> tuple[SignedRecord, ...]:
        """See `Directory.find`. Takes 1.5 to 2 s where a third of the peers is silent and round
        trips are long (`python -m sim.meeting`); less where all answer."""
        key = topic_key(topic)
        wall_s = self._wall_clock()
        found = await self._look_up(self._start(key, values_at_wall_s=wall_s))
        # Asked anew each time and never cached: a copy would outlive what its writer says next.
        held = self.kademlia.store.get(key, wall_s)
        winners = merge((*found.records, *held)).values()
        alive = (r for r in winners if r.value and is_timely(r, self._wall_clock()))
        return tuple(sorted(alive, key=lambda record: record.writer))

    async def forget(self, topic: bytes) -> None:
        """See `Directory.forget`. Nothing happens if we said nothing."""
        announcement = self._announcements.remove(topic)
        if announcement is not None:
            record = self._announcements.sign_withdrawal(announcement, self._wall_clock())
            await self._store(record)

    def contact(self, peer: PeerId) -> Contact | None:
        """Where `peer` says that it listens, if it is in our table."""
        return self.kademlia.table.get(peer)

    def contacts(self) -> tuple[Contact, ...]:
        """Every peer in our table: what to remember for the next start."""
        return self.kademlia.table.contacts()

    # Searching

    def _start(self, key: Key, *, values_at_wall_s: float | None = None) -> Lookup:
        return self.kademlia.lookup(key, trio.current_time(), values_at_wall_s=values_at_wall_s)

    async def _look_up(self, lookup: Lookup) -> LookupResult:
        """Drive `lookup` to its end. What it gave up goes on in `run`, to learn who failed."""
        # Unread answers are bounded by the peers that a look-up may ask.
        answers_in, answers = trio.open_memory_channel[tuple[PeerId, Reply | None]](
            lookup.config.queries_max
        )
        async with answers_in, answers:
            queries = lookup.start(trio.current_time())
            while True:
                for query in queries:
                    self._running().start_soon(self._query, lookup, query, answers_in.clone())
                if lookup.is_done:
                    break
                answer = None
                with trio.move_on_at(lookup.deadline_s()):
                    answer = await answers.receive()
                queries = self._feed(lookup, answer)
        self.kademlia.table.refreshed(lookup.key, trio.current_time())
        result = lookup.result()
        for liar in result.liars:
            logger.warning("dht peer passed on what it cannot have checked peer=%s", short_id(liar))
            self.kademlia.failed(liar, trio.current_time())
        for peer in result.silent:
            self.kademlia.suspect(peer, trio.current_time())
        return result

    def _feed(self, lookup: Lookup, answer: tuple[PeerId, Reply | None] | None) -> list[Query]:
        now_s = trio.current_time()
        if answer is None:
            return lookup.tick(now_s)
        peer, reply = answer
        if isinstance(reply, Nodes | Values):
            return lookup.replied(peer, reply, now_s)
        return lookup.failed(peer, now_s)

    async def _query(
        self,
        lookup: Lookup,
        query: Query,
        answers_in: trio.MemorySendChannel[tuple[PeerId, Reply | None]],
    ) -> None:
        async with answers_in:
            reply = await self._ask(query.contact, self.kademlia.request_for(lookup, query))
            # Broken: the look-up has ended without this peer.
            with contextlib.suppress(trio.BrokenResourceError):
                answers_in.send_nowait((query.contact.peer, reply))

    async def _ask(self, contact: Contact, request: Request) -> Reply | None:
        """The reply of a peer, or None; the table learns of either."""
        try:
            reply = await self._requester.ask(contact, request)
        except (NetworkError, PeerError) as error:
            logger.debug("dht request failed peer=%s error=%s", short_id(contact.peer), error)
            self.kademlia.failed(contact.peer, trio.current_time())
            return None
        is_new = contact.peer not in self.kademlia.table
        self.kademlia.answered(contact.peer, reply.addresses, trio.current_time())
        if is_new and contact.peer in self.kademlia.table:
            self._announcements.hurry(trio.current_time())
            self._announcements_changed.set()
        self._wake_pinger()
        return reply

    async def _ping(self, contact: Contact, answers: list[bool]) -> None:
        reply = await self._ask(contact, Ping(self.kademlia.own_addresses()))
        answers.append(reply is not None)

    # Storing

    async def _publish(self, announcement: Announcement) -> int:
        record = self._announcements.sign(announcement, self._wall_clock())
        num_stored = await self._store(record)
        self._announcements.published(announcement, num_stored, trio.current_time())
        return num_stored

    async def _store(self, record: SignedRecord) -> int:
        """Store at the nearest nodes and with ourselves; the number of others that took it."""
        self.kademlia.keep(record, self._wall_clock())
        found = await self._look_up(self._start(record.key))
        verdicts_in, verdicts = trio.open_memory_channel[bool](len(found.closest))
        with verdicts_in:
            for contact in found.closest:
                self._running().start_soon(self._store_at, contact, record, verdicts_in.clone())
        num_stored = 0
        # Who has just answered and now is silent may still store it, but nobody waits for that.
        with verdicts, trio.move_on_after(self.config.kademlia.lookup.time_out_s):
            async for is_stored in verdicts:
                num_stored += is_stored
        return num_stored

    async def _store_at(
        self, contact: Contact, record: SignedRecord, verdicts_in: trio.MemorySendChannel[bool]
    ) -> None:
        with verdicts_in:
            reply = await self._ask(contact, Store(self.kademlia.own_addresses(), record))
            is_stored = isinstance(reply, Stored) and reply.verdict is StoreVerdict.STORED
            # Broken: nobody waits any more.
            with contextlib.suppress(trio.BrokenResourceError):
                verdicts_in.send_nowait(is_stored)

    def _answer(self, peer: PeerId, request: Request) -> Reply:
        now_s = trio.current_time()
        reply = self.kademlia.handle_request(peer, request, now_s, self._wall_clock())
        self._wake_pinger()
        return reply

    # Background

    def _running(self) -> trio.Nursery:
        assert self._nursery is not None, "start directory.run first"
        return self._nursery

    def _wake_pinger(self) -> None:
        if self.kademlia.has_pings:
            self._pings_wanted.set()

    async def _keep_pinging(self) -> None:
        """Ping those who asked us something, so that we can tell others about them."""
        while True:
            await self._pings_wanted.wait()
            self._pings_wanted = trio.Event()
            pings = self.kademlia.take_pings()
            for start in range(0, len(pings), self.config.pings_at_once):
                async with trio.open_nursery() as nursery:
                    for contact in pings[start : start + self.config.pings_at_once]:
                        nursery.start_soon(self._ping, contact, [])

    async def _keep_announced(self) -> None:
        while True:
            with trio.move_on_at(self._announcements.next_due_s()):
                await self._announcements_changed.wait()
            self._announcements_changed = trio.Event()
            for announcement in self._announcements.due(trio.current_time()):
                if self._announcements.is_current(announcement):
                    await self._publish(announcement)

    async def _keep_fresh(self) -> None:
        while True:
            is_lonely = not len(self.kademlia.table)
            wait_s = self.config.lonely_retry_s if is_lonely else self.config.check_s
            with trio.move_on_after(wait_s):
                await self._refresh_wanted.wait()
            self._refresh_wanted = trio.Event()
            self.kademlia.store.purge(self._wall_clock())
            if not len(self.kademlia.table):
                await self._join_again()
                continue
            due = self.kademlia.table.due_for_refresh(
                trio.current_time(), interval_s=self.config.refresh_s, rng=self._rng
            )
            for key in due[:_REFRESHES_AT_ONCE]:
                await self._look_up(self._start(key))

    async def _join_again(self) -> None:
        if self._first_contacts:
            await self.join(self._first_contacts)
            self._refresh_wanted = trio.Event()
