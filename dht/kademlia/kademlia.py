"""One node of the DHT: its table, its store and how it answers. Pure; `directory` is the edge.

Whom we tell about: only peers that have answered a request of ours, on a connection that proved
their id, with the addresses that they stated themselves. Who merely asks us something is put on a
list to be pinged first; what others tell us is only ever a hint whom to ask.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from dht.kademlia.keyspace import Key
from dht.kademlia.lookup import Lookup, LookupConfig, PeerTimes, Query, Search
from dht.kademlia.messages import (
    FindNode,
    FindValue,
    Nodes,
    Ping,
    Pong,
    Reply,
    Request,
    Store,
    Stored,
    Values,
)
from dht.kademlia.records import (
    RECORD_OVERHEAD_BYTES,
    RecordStore,
    SignedRecord,
    StoreBounds,
    StoreVerdict,
    Verdict,
    is_timely,
    rank,
    verdict,
)
from dht.kademlia.routing import Contact, RoutingTable
from protocol import limits
from protocol.identity import PeerId, Signer

_FAILURES_REMEMBERED_MAX = 1024

_BELIEVED_MAX = 1024
"""Records whose signatures were checked and are not checked again: each replica sends the same, and
each search for a run does. Some 300 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KademliaConfig:
    """Local taste of one node."""

    lookup: LookupConfig = field(default_factory=LookupConfig)
    bounds: StoreBounds = field(default_factory=StoreBounds)

    stale_after_s: float = 60.0
    """Silence after which the oldest contact of a full bucket is pinged; lower costs pings."""

    avoid_first_s: float = 2.0
    """How long a peer that failed is not asked again; doubles with each failure in a row."""

    avoid_max_s: float = 60.0
    """The longest such pause: a node that was away is known again this long after its return."""


@dataclass(slots=True)
class _Failure:
    until_s: float
    pause_s: float


class Kademlia:
    """Decisions of one node. Time and wall clock are arguments; nothing here awaits."""

    def __init__(
        self,
        signer: Signer,
        addresses: Callable[[], tuple[str, ...]],
        rng: random.Random,
        *,
        config: KademliaConfig | None = None,
        connected: Callable[[], Collection[PeerId]] = tuple,
    ) -> None:
        """`addresses` gives those at which we listen now; `rng` must be secret in a real node.

        Of those who asked us something, `connected` ones are pinged first and dropped last.
        """
        self.config = config or KademliaConfig()
        self.peer_id = signer.peer_id
        self.table = RoutingTable(signer.peer_id)
        self.store = RecordStore(
            self.table.own_key, salt=rng.randbytes(32), bounds=self.config.bounds
        )
        self.times = PeerTimes(at_first_s=self.config.lookup.slow_after_s)
        self._signer = signer
        self._addresses = addresses
        self._connected = connected
        self._to_ping: OrderedDict[PeerId, Contact] = OrderedDict()
        self._failures: OrderedDict[PeerId, _Failure] = OrderedDict()
        self._believed: OrderedDict[SignedRecord, None] = OrderedDict()

    def own_addresses(self) -> tuple[str, ...]:
        """What we state in every message; the transport's first ones, if it has too many."""
        usable = [a for a in self._addresses() if len(a) <= limits.ADDRESS_BYTES_MAX]
        return tuple(usable[: limits.DHT_ADDRESSES_PER_CONTACT_MAX])

    def handle_request(self, peer: PeerId, request: Request, now_s: float, wall_s: float) -> Reply:
        """The reply to `request` of `peer`, whose id the transport has proved."""
        self._heard_from(peer, request.addresses, now_s)
        own = self.own_addresses()
        match request:
            case Ping():
                return Pong(own)
            case FindNode():
                return Nodes(own, self._closest_for(peer, request))
            case FindValue():
                contacts = () if request.after else self._closest_for(peer, request)
                records, has_more = self._page(request, wall_s)
                return Values(own, contacts, records, has_more)
            case Store():
                return Stored(own, self.keep(request.record, wall_s, courier=peer))
            case _:
                assert_never(request)

    def keep(
        self, record: SignedRecord, wall_s: float, *, courier: PeerId | None = None
    ) -> StoreVerdict:
        """Store `record`, which `courier` sent, if it can be believed.

        The signature is checked last: it costs most.
        """
        held = self.store.held(record.key, record.writer)
        if held is not None and rank(held) > rank(record):
            return StoreVerdict.SUPERSEDED
        if held != record and self._verdict(record, wall_s) is not Verdict.VALID:
            return StoreVerdict.REFUSED
        return self.store.put(record, wall_s, courier=courier)

    def answered(self, peer: PeerId, addresses: tuple[str, ...], now_s: float) -> None:
        """`peer` answered a request of ours and stated `addresses`."""
        self._failures.pop(peer, None)
        self._to_ping.pop(peer, None)
        if not addresses:
            self.table.failed(peer)
            return
        doubtful = self.table.seen(
            Contact(peer, addresses), now_s, stale_after_s=self.config.stale_after_s
        )
        if doubtful is not None:
            self._enqueue_ping(doubtful)

    def failed(self, peer: PeerId, now_s: float) -> None:
        """`peer` did not answer, or not properly: out of the table, and a pause before we retry."""
        self.table.failed(peer)
        self._to_ping.pop(peer, None)
        last = self._failures.pop(peer, None)
        pause_s = max(self.config.avoid_first_s, last.pause_s * 2 if last else 0.0)
        pause_s = min(pause_s, self.config.avoid_max_s)
        self._remember_failure(peer, now_s + pause_s, pause_s)

    @property
    def has_pings(self) -> bool:
        """Whether `take_pings` would return any."""
        return bool(self._to_ping)

    def suspect(self, peer: PeerId, now_s: float) -> None:
        """A search has given `peer` up: do not ask it for a moment, while its answer may come."""
        last = self._failures.pop(peer, None)
        until_s = now_s + self.config.avoid_first_s
        self._remember_failure(peer, until_s, last.pause_s if last else 0.0)

    def take_pings(self, num_max: int | None = None) -> list[Contact]:
        """Contacts to ping now: those who asked us something, and doubtful ones of full buckets.

        Connected ones come first, since their answer takes no dial; else whoever waits longest.
        """
        connected = set(self._connected())
        waiting = sorted(self._to_ping.values(), key=lambda one: one.peer not in connected)
        pings = waiting[:num_max]
        for contact in pings:
            del self._to_ping[contact.peer]
        return pings

    def lookup(
        self,
        key: Key,
        now_s: float,
        *,
        values_at_wall_s: float | None = None,
        holders_enough: int = 0,
        only_through: Sequence[Contact] | None = None,
    ) -> Search:
        """A new search for `key`; for values too, if the wall time to judge them by is given.

        It begins with the table, or with the contacts that it is to go `only_through`. It may end
        once so many peers have sent records; 0 hears all that should have some.
        """
        avoid = {peer for peer, failure in self._failures.items() if failure.until_s > now_s}
        judge = None
        if values_at_wall_s is not None:
            wall_s = values_at_wall_s

            def judge(record: SignedRecord) -> Verdict:
                return self._verdict(record, wall_s)

        if only_through is None:
            known = self.table.closest(key, limits.DHT_CONTACTS_PER_REPLY_MAX)
        else:
            known = tuple(only_through)
        return Search(
            key,
            replace(self.config.lookup, holders_enough=holders_enough),
            known=known,
            avoid=avoid | {self.peer_id},
            judge=judge,
            patience=self.times.slow_after_s,
        )

    def request_for(self, search: Lookup | Search, query: Query) -> FindNode | FindValue:
        """The message that performs `query`."""
        count = search.config.contacts_per_reply
        if search.wants_records:
            return FindValue(self.own_addresses(), search.key, count, query.after)
        return FindNode(self.own_addresses(), search.key, count)

    def _verdict(self, record: SignedRecord, wall_s: float) -> Verdict:
        """Whether to believe `record`. Time goes on, so only the signature is remembered."""
        if record in self._believed:
            self._believed.move_to_end(record)
            return Verdict.VALID if is_timely(record, wall_s) else Verdict.UNTIMELY
        found = verdict(record, self._signer, wall_s)
        if found is Verdict.VALID:
            limits.keep_newest(self._believed, record, None, _BELIEVED_MAX)
        return found

    def _remember_failure(self, peer: PeerId, until_s: float, pause_s: float) -> None:
        self._failures[peer] = _Failure(until_s, pause_s)
        if len(self._failures) > _FAILURES_REMEMBERED_MAX:
            self._failures.popitem(last=False)

    def _heard_from(self, peer: PeerId, addresses: tuple[str, ...], now_s: float) -> None:
        # A peer that can reach us is alive, whatever became of our last request to it.
        self._failures.pop(peer, None)
        if peer in self.table:
            self.answered(peer, addresses, now_s)
        elif addresses and peer != self.peer_id:
            self._enqueue_ping(Contact(peer, addresses))

    def _enqueue_ping(self, contact: Contact) -> None:
        if contact.peer not in self._to_ping and len(self._to_ping) >= limits.DHT_PINGS_MAX:
            connected = set(self._connected())
            oldest = next((peer for peer in self._to_ping if peer not in connected), None)
            if oldest is None:
                return
            del self._to_ping[oldest]
        self._to_ping[contact.peer] = contact

    def _closest_for(self, peer: PeerId, request: FindNode | FindValue) -> tuple[Contact, ...]:
        # One more than asked for, since the asker itself is often the nearest.
        contacts = self.table.closest(request.key, request.count + 1)
        return tuple(c for c in contacts if c.peer != peer)[: request.count]

    def _page(self, request: FindValue, wall_s: float) -> tuple[tuple[SignedRecord, ...], bool]:
        alive = self.store.get(request.key, wall_s, after=request.after)
        budget_bytes = limits.DHT_REPLY_RECORDS_BYTES_MAX
        page: list[SignedRecord] = []
        for record in alive:
            budget_bytes -= len(record.value) + RECORD_OVERHEAD_BYTES
            if budget_bytes < 0:
                return tuple(page), True
            page.append(record)
        return tuple(page), False
