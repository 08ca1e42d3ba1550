"""SEAM Directory: say where something is, find who said so. And ours, Kademlia over a Transport.

Announcements and origins, what a node keeps saying and where it entered, are pure.
"""

import contextlib
import logging
import random
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Protocol

import trio

from dht.kademlia.kademlia import Kademlia, KademliaConfig
from dht.kademlia.keyspace import Key, distance, node_key, topic_key
from dht.kademlia.lookup import Search
from dht.kademlia.messages import PROTOCOL, Ping, Reply, Request, Store, Stored
from dht.kademlia.records import SignedRecord, StoreVerdict, is_timely, merge, sign_record
from dht.kademlia.requests import RequestConfig, Requester, RequestServer
from dht.kademlia.routing import Contact
from dht.kademlia.searching import Pinger, Searcher
from dht.reaching.addresses import PrivateAddresses, told_in_records
from dht.reaching.dials import DialMemory
from protocol import limits
from protocol.hybrid_clock import WallClock
from protocol.identity import PeerId, Signer, short_id
from protocol.transport import Transport

if TYPE_CHECKING:
    # libp2p brings stubs of trio that hide trio's own types; they know it by this name.
    from trio_typing import TaskStatus

logger = logging.getLogger(__name__)

# What a node keeps saying -------------------------------------------------------------------------

_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0


@dataclass(slots=True)
class Announcement:
    """One value under one topic, said again and again."""

    key: Key
    value: bytes
    ttl_s: float
    due_s: float
    retry_s: float = _RETRY_FIRST_S
    record: SignedRecord | None = None
    """What was said last."""

    holders: dict[PeerId, int] = field(default_factory=dict)
    """Who has said that it stored that, and how far it lies from the key; the nearest of them."""


class Announcements:
    """Signs our records with ever rising sequence numbers and knows when to renew them."""

    def __init__(self, signer: Signer, *, replicas: int) -> None:
        self._signer = signer
        self._replicas = replicas
        self._by_key: dict[Key, Announcement] = {}
        self._sequence = 0

    def add(self, topic: bytes, value: bytes, *, ttl_s: float, now_s: float) -> Announcement:
        """Start to say `value`, or say it from now on instead of what we said under `topic`.

        Raises ValueError for no value (that withdraws), one that is too long, or no lifetime.
        """
        if not 0 < len(value) <= limits.DHT_VALUE_BYTES_MAX:
            raise ValueError(f"value has {len(value)} bytes, 1 to {limits.DHT_VALUE_BYTES_MAX}")
        if not 1.0 <= ttl_s <= limits.DHT_RECORD_LIFETIME_S_MAX:
            raise ValueError(f"ttl_s {ttl_s} is outside 1..{limits.DHT_RECORD_LIFETIME_S_MAX}")
        # The caller publishes it at once; should that be cancelled, the renewal does it.
        due_s = now_s + _RETRY_FIRST_S
        announcement = Announcement(topic_key(topic), value, ttl_s, due_s)
        self._by_key[announcement.key] = announcement
        return announcement

    def sign(self, announcement: Announcement, wall_s: float) -> SignedRecord:
        """A fresh record of it, newer than all before: also than those of our last run."""
        record = self._sign(announcement, announcement.value, wall_s)
        announcement.record = record
        announcement.holders.clear()
        return record

    def is_current(self, announcement: Announcement) -> bool:
        """Whether we still say it, and nothing else in its place."""
        return self._by_key.get(announcement.key) is announcement

    def due(self, now_s: float) -> list[Announcement]:
        """What has to be said now."""
        return [a for a in self._by_key.values() if a.due_s <= now_s]

    def next_due_s(self) -> float:
        """When something will be due; infinite when we say nothing."""
        return min((a.due_s for a in self._by_key.values()), default=float("inf"))

    def renew_all(self, now_s: float) -> None:
        """Everything is due now: by the wall clock it may have expired."""
        for announcement in self._by_key.values():
            announcement.due_s = now_s

    def stored(self, record: SignedRecord, peer: PeerId, now_s: float) -> None:
        """`peer` says that it has stored it: perhaps late, when nobody waits for it any more.

        Where all are busy most are late. Whoever said it again for that would make them busier.
        """
        announcement = self._by_key.get(record.key)
        if announcement is None or announcement.record != record or peer in announcement.holders:
            return
        holders = announcement.holders
        holders[peer] = distance(node_key(peer), record.key)
        if len(holders) > self._replicas:
            # It was complete before: who come ever nearer do not put its renewal off.
            del holders[max(holders, key=holders.__getitem__)]
        elif len(holders) == self._replicas:
            self.published(announcement, now_s)

    def published(self, announcement: Announcement, now_s: float) -> None:
        """It was stored by some, and nobody waits for more: when is it due again?

        With all replicas, at a third of its life, so that two renewals may fail. With fewer (we may
        be the first here) soon, then less and less often: a small swarm never has all replicas.
        """
        interval_s = announcement.ttl_s / 3
        if len(announcement.holders) < self._replicas:
            interval_s = min(interval_s, announcement.retry_s)
            announcement.retry_s = min(announcement.retry_s * 2, _RETRY_MAX_S)
        else:
            announcement.retry_s = _RETRY_FIRST_S
        announcement.due_s = now_s + interval_s

    def for_newcomer(self, peer: PeerId) -> list[SignedRecord]:
        """What `peer`, who is new to the table, should hold too: it lies nearer than a replica.

        Searches would ask it and not find what was said before it came.
        """
        found, place = [], node_key(peer)
        for one in self._by_key.values():
            if one.record is None or peer in one.holders:
                continue
            is_short = len(one.holders) < self._replicas
            if is_short or distance(place, one.key) < max(one.holders.values()):
                found.append(one.record)
        return found

    def _sign(self, announcement: Announcement, value: bytes, wall_s: float) -> SignedRecord:
        # Milliseconds of the wall clock: a restarted node goes on above what it said before.
        self._sequence = max(self._sequence + 1, int(wall_s * 1000))
        expires_unix_s = int(wall_s + announcement.ttl_s) + 1
        return sign_record(
            self._signer,
            announcement.key,
            value,
            sequence=self._sequence,
            expires_unix_s=expires_unix_s,
        )


# Where it entered ---------------------------------------------------------------------------------

# Who knows a single peer sees what that peer shows, which may be made up. So each of the first
# contacts is asked alone who lies nearest to us. In one network all of them come to the same peers;
# where two do not, either two networks have never met, and we know both, or one is a stage.

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


_REFRESHES_AT_ONCE = 4
_FIRST_CONTACTS_MAX = 128

_LEAP_S = 30.0
"""So far ahead of our timers the wall clock got at once: it was set, or a virtual machine stood
still. Records live by it."""


# The directory ----------------------------------------------------------------------------------


class Directory(Protocol):
    """SEAM: how strangers meet, and who has which content.

    The node calls it, in the network process. Everything found is a hint: signed by its writer,
    true or not.
    """

    async def announce(self, topic: bytes, value: bytes, *, ttl_s: float) -> int:
        """Say `value` under `topic` from now on; it is renewed before `ttl_s` passes.

        Returns the number of *other* nodes that stored it now; 0 is normal for the first node.
        Raises ValueError if the value or the lifetime is outside the limits.
        """
        ...

    async def find(self, topic: bytes, *, holders_enough: int = 0) -> tuple[SignedRecord, ...]:
        """What is said under `topic`, ourselves included: one verified record per writer.

        It may end once so many peers have sent records; 0 hears all that should have some.
        """
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

    private_addresses: PrivateAddresses = "auto"
    """Whether others are told addresses that mean nothing to them; see `dht.reaching.addresses`."""


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
        is_visitor: bool = False,
    ) -> None:
        """Registers the protocol: construct it before the transport starts to accept.

        A visitor states no addresses: others answer it and tell nobody of it.
        `rng` salts the store and picks refresh keys; the default is the system's secret one.
        """
        self.config = config or DirectoryConfig()
        self._transport = transport
        self._wall_clock = wall_clock
        self._rng = rng or random.SystemRandom()
        self.kademlia = Kademlia(
            signer,
            tuple if is_visitor else self._told,
            self._rng,
            config=self.config.kademlia,
            connected=transport.connected,
        )
        self._announcements = Announcements(signer, replicas=self.config.kademlia.lookup.width)
        self.memory = DialMemory()
        """What became of the addresses that were dialled; shared with whoever dials for the run."""
        self._requester = Requester(transport, self.config.requests, self.memory)
        self._searcher = Searcher(
            self.kademlia, transport, self._requester, nursery=self._running, answered=self._heard
        )
        self._pinger = Pinger(self.kademlia, self._ping, num_at_once=self.config.pings_at_once)
        self._first_contacts: dict[PeerId, Contact] = {}
        self._origins = Origins()
        self._nursery: trio.Nursery | None = None
        self._announcements_changed = trio.Event()
        self._refresh_wanted = trio.Event()
        server = RequestServer(self._answer, self.config.requests)
        transport.serve(PROTOCOL, server.serve)

    def _told(self) -> tuple[str, ...]:
        """Where we may be dialled, as those are told who pass it on to strangers."""
        return told_in_records(self._transport.addresses(), self.config.private_addresses)

    async def run(self, *, task_status: "TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Own all requests, renew what is announced, refresh the table. Ends when cancelled.

        Use `await nursery.start(directory.run)`; `join`, `announce`, `find` need it running.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._pinger.run)
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
        self._requester.trust(others)
        known = {contact.peer: contact for contact in others}
        for peer, contact in self._first_contacts.items():
            known.setdefault(peer, contact)
        self._first_contacts = dict(list(known.items())[:_FIRST_CONTACTS_MAX])
        answers = await self._knock(others)
        self._origins.add(contact for contact in others if contact.peer in answers)
        await self._searcher.run(self._start(self.kademlia.table.own_key))
        await self._compare_origins()
        return len(answers)

    async def _knock(self, contacts: Sequence[Contact]) -> list[PeerId]:
        """Who answers, without waiting for the others for longer than for a slow one."""
        answers_in, answers = trio.open_memory_channel[PeerId](len(contacts))

        async def ping(contact: Contact, found: trio.MemorySendChannel[PeerId]) -> None:
            async with found:
                if await self._ping(contact):
                    # Broken: nobody waits any more.
                    with contextlib.suppress(trio.BrokenResourceError):
                        found.send_nowait(contact.peer)

        # Not in a nursery of its own: who does not answer yet is listened to, here or later.
        for contact in contacts:
            self._running().start_soon(ping, contact, answers_in.clone())
        answered = []
        async with answers:
            answers_in.close()
            with trio.CancelScope() as patience:
                async for peer in answers:
                    answered.append(peer)
                    if len(answered) == 1:
                        grace_s = self.config.kademlia.lookup.time_out_s
                        patience.deadline = trio.current_time() + grace_s
        return answered

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Pairs of first contacts that show networks which do not know each other."""
        return self._origins.doubts

    async def _compare_origins(self) -> None:
        """Look for ourselves through each first contact alone: do they show one network?"""
        if len(self._origins) < 2:
            return
        views: dict[PeerId, set[PeerId]] = {}

        async def view(origin: Contact) -> None:
            key = self.kademlia.table.own_key
            search = self.kademlia.lookup(key, trio.current_time(), only_through=[origin])
            found = await self._searcher.run(search)
            if found.closest:
                views[origin.peer] = {contact.peer for contact in found.closest}

        async with trio.open_nursery() as nursery:
            for origin in self._origins.contacts():
                nursery.start_soon(view, origin)
        if self._origins.compared(views, trio.current_time()):
            for first, second in self._origins.doubts:
                logger.warning(
                    "first peers show different networks first=%s second=%s: one may be made up,"
                    " or two runs of peers have never met",
                    short_id(first),
                    short_id(second),
                )

    async def announce(self, topic: bytes, value: bytes, *, ttl_s: float) -> int:
        """See `Directory.announce`."""
        announcement = self._announcements.add(topic, value, ttl_s=ttl_s, now_s=trio.current_time())
        num_stored = await self._publish(announcement)
        self._announcements_changed.set()
        return num_stored

    async def find(self, topic: bytes, *, holders_enough: int = 0) -> tuple[SignedRecord, ...]:
        """See `Directory.find`. Takes 1.5 to 2 s where a third of the peers is silent and round
        trips are long (`python -m sim.crowds.strangers`); less where all answer."""
        key = topic_key(topic)
        wall_s = self._wall_clock()
        found = await self._searcher.run(self._start(key, wall_s, holders_enough))
        # Asked anew each time and never cached: a copy would outlive what its writer says next.
        held = self.kademlia.store.get(key, wall_s)
        winners = merge((*found.records, *held)).values()
        alive = (r for r in winners if r.value and is_timely(r, self._wall_clock()))
        return tuple(sorted(alive, key=lambda record: record.writer))

    def contacts(self) -> tuple[Contact, ...]:
        """Every peer in our table: what to remember for the next start."""
        return self.kademlia.table.contacts()

    # Searching

    def _start(
        self, key: Key, values_at_wall_s: float | None = None, holders_enough: int = 0
    ) -> Search:
        return self.kademlia.lookup(
            key,
            trio.current_time(),
            values_at_wall_s=values_at_wall_s,
            holders_enough=holders_enough,
        )

    def _heard(self, contact: Contact, is_new: bool) -> None:
        """An answer came; of a new peer, it may lie where our records are looked for."""
        if is_new and (records := self._announcements.for_newcomer(contact.peer)):
            self._running().start_soon(self._tell_newcomer, contact, records)
        self._pinger.wake()

    async def _tell_newcomer(self, contact: Contact, records: Sequence[SignedRecord]) -> None:
        # One after the other: whoever says much should not fill its streams.
        for record in records:
            await self._store_at(contact, record)

    async def _ping(self, contact: Contact) -> bool:
        reply = await self._searcher.ask(contact, Ping(self.kademlia.own_addresses()))
        return reply is not None

    # Storing

    async def _publish(self, announcement: Announcement) -> int:
        record = self._announcements.sign(announcement, self._wall_clock())
        num_stored = await self._store(record)
        self._announcements.published(announcement, trio.current_time())
        return num_stored

    async def _store(self, record: SignedRecord) -> int:
        """Store at the nearest nodes and with ourselves; the number of others that took it."""
        self.kademlia.keep(record, self._wall_clock())
        config = self.config.kademlia
        near = self.kademlia.table.surely_closest(
            record.key,
            config.lookup.width,
            trio.current_time(),
            searched_s=self.config.refresh_s,
            heard_s=config.stale_after_s,
        )
        if near and await self._store_at_all(near, record) == len(near):
            return len(near)
        found = await self._searcher.run(self._start(record.key))
        return await self._store_at_all(found.replicas, record)

    async def _store_at_all(self, contacts: Sequence[Contact], record: SignedRecord) -> int:
        verdicts_in, verdicts = trio.open_memory_channel[bool](len(contacts))
        with verdicts_in:
            for contact in contacts:
                self._running().start_soon(self._tell, contact, record, verdicts_in.clone())
        num_stored = 0
        # Who has just answered and now is silent may still store it, but nobody waits for that.
        with verdicts, trio.move_on_after(self.config.kademlia.lookup.time_out_s):
            async for is_stored in verdicts:
                num_stored += is_stored
        return num_stored

    async def _store_at(self, contact: Contact, record: SignedRecord) -> bool:
        """Whether it says that it has stored it."""
        reply = await self._searcher.ask(contact, Store(self.kademlia.own_addresses(), record))
        is_stored = isinstance(reply, Stored) and reply.verdict is StoreVerdict.STORED
        if is_stored:
            self._announcements.stored(record, contact.peer, trio.current_time())
        return is_stored

    async def _tell(
        self, contact: Contact, record: SignedRecord, verdicts_in: trio.MemorySendChannel[bool]
    ) -> None:
        with verdicts_in:
            is_stored = await self._store_at(contact, record)
            # Broken: nobody waits any more.
            with contextlib.suppress(trio.BrokenResourceError):
                verdicts_in.send_nowait(is_stored)

    def _answer(self, peer: PeerId, request: Request) -> Reply:
        now_s = trio.current_time()
        reply = self.kademlia.handle_request(peer, request, now_s, self._wall_clock())
        self._pinger.wake()
        return reply

    # Background

    def _running(self) -> trio.Nursery:
        assert self._nursery is not None, "start directory.run first"
        return self._nursery

    async def _keep_announced(self) -> None:
        while True:
            with trio.move_on_at(self._announcements.next_due_s()):
                await self._announcements_changed.wait()
            self._announcements_changed = trio.Event()
            for announcement in self._announcements.due(trio.current_time()):
                if self._announcements.is_current(announcement):
                    await self._publish(announcement)

    async def _keep_fresh(self) -> None:
        ahead_s = self._wall_clock() - trio.current_time()
        while True:
            is_lonely = not len(self.kademlia.table)
            wait_s = self.config.lonely_retry_s if is_lonely else self.config.check_s
            with trio.move_on_after(wait_s):
                await self._refresh_wanted.wait()
            self._refresh_wanted = trio.Event()
            before_s, ahead_s = ahead_s, self._wall_clock() - trio.current_time()
            if ahead_s - before_s > _LEAP_S:
                self._announcements.renew_all(trio.current_time())
                self._announcements_changed.set()
            self.kademlia.store.purge(self._wall_clock())
            if not len(self.kademlia.table):
                await self._join_again()
                continue
            if self._origins.is_due(trio.current_time()):
                await self._compare_origins()
            due = self.kademlia.table.due_for_refresh(
                trio.current_time(), interval_s=self.config.refresh_s, rng=self._rng
            )
            for key in due[:_REFRESHES_AT_ONCE]:
                await self._searcher.run(self._start(key))

    async def _join_again(self) -> None:
        if self._first_contacts:
            await self.join(tuple(self._first_contacts.values()))
            self._refresh_wanted = trio.Event()
