"""Strangers meet after a blow: newcomers look for their run while a share of the nodes is dead.

    python -m sim.crowds.strangers --nodes 1000 --gone 0.3 --trials 250 --worlds 4 --seed 0 --json

The nodes know each other, some announce runs; a share vanishes at one moment, unheard. From that
moment on newcomers come in, each told of three nodes of which one at least is alive, and ask for
the members of one run until they find one that lives.

The machines are the shipped ones: `Kademlia`, `Search`, `Announcements`. Made up are network and
edge (`Meeting`, which other tests use as well). The edge does what `dht.directory` does: dial, ask,
ping whoever asked, renew what was announced, refresh buckets. It has no streams, so the caps on
streams are not tried here.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated

import typer
from blake3 import blake3

from dht.directory import Announcement, Announcements, DirectoryConfig
from dht.kademlia.kademlia import Kademlia
from dht.kademlia.keyspace import Key, topic_key
from dht.kademlia.lookup import LookupResult, Query, Search
from dht.kademlia.messages import (
    Nodes,
    Ping,
    Reply,
    Request,
    Store,
    Stored,
    Values,
    decode_reply,
    decode_request,
    encode_message,
)
from dht.kademlia.records import SignedRecord, StoreVerdict, is_timely, merge
from dht.kademlia.routing import Contact
from node.text.shown import json_text
from protocol.identity import KeyedHashSigner, PeerId
from sim.world.quiet import hush, uncollected
from sim.world.timeline import Timeline

START_UNIX_S = 1_800_000_000.0
REFRESHES_AT_ONCE = 4

Answered = Callable[[Reply | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingSettings:
    """Network and nodes. A host that vanished refuses nothing: whoever dials it waits in vain."""

    one_way_s: tuple[float, float] = (0.01, 0.08)
    loss: float = 0.0
    """The share of requests or replies that never arrive."""

    is_encoding: bool = True
    """Whether messages travel as bytes of the wire, which costs two thirds of a meeting's time."""

    wall_skew_s: float = 0.0
    """Each node's wall clock is off by at most so much, either way."""

    directory: DirectoryConfig = field(default_factory=DirectoryConfig)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search for a topic found, after how long."""

    records: tuple[SignedRecord, ...]
    took_s: float
    num_queries: int


class Meeting:
    """Nodes, network and time."""

    def __init__(self, settings: MeetingSettings, *, seed: int) -> None:
        self.settings = settings
        self.timeline = Timeline(seed)
        self.nodes: dict[PeerId, MeetingNode] = {}
        self.num_requests = 0
        self._trace = blake3()

    def join(self, name: str, known: list[PeerId]) -> "MeetingNode":
        """A node appears, and enters through the peers that it was told."""
        node = MeetingNode(self, name)
        self.nodes[node.peer] = node
        node.enter([self.nodes[peer].contact for peer in known])
        return node

    def vanish(self, peer: PeerId) -> None:
        """The node is gone without a word."""
        self.nodes[peer].is_alive = False
        self.note("vanish", peer)

    @property
    def trace_hash(self) -> str:
        """A digest over every request and every end of a search, and when they were."""
        return self._trace.hexdigest()

    def note(self, what: str, *who: bytes) -> None:
        """Something happened: it is part of the trace."""
        self._trace.update(f"{self.timeline.now_s:.9f} {what} ".encode() + b"".join(who))

    def carry(
        self, asker: "MeetingNode", contact: Contact, request: Request, then: Answered
    ) -> None:
        """Take a request to a peer and its reply back; None where there is none in time."""
        self.num_requests += 1
        self.note(type(request).__name__, asker.peer, contact.peer)
        config = self.settings.directory.requests
        is_new = contact.peer not in asker.connected
        out_s, back_s = self._one_way_s(asker.peer), self._one_way_s(contact.peer)
        # A dial is TCP, the handshake of Noise and two negotiations: four round trips.
        dial_s = 4 * (out_s + back_s) if is_new else 0.0
        time_out_s = config.dial_time_out_s if is_new else config.reply_time_out_s
        waiting = _Waiting(then)
        self.timeline.later(time_out_s, waiting.end, None)
        if not self._is_lost():
            self.timeline.later(
                dial_s + out_s, self._arrive, asker, contact.peer, request, waiting, back_s
            )

    def _arrive(
        self,
        asker: "MeetingNode",
        peer: PeerId,
        request: Request,
        waiting: "_Waiting",
        back_s: float,
    ) -> None:
        node = self.nodes[peer]
        if not node.is_alive or not asker.is_alive:
            return
        asker.connected.add(peer)
        node.connected.add(asker.peer)
        is_encoding = self.settings.is_encoding
        arrived = decode_request(encode_message(request)) if is_encoding else request
        reply = node.answer(asker.peer, arrived)
        if not self._is_lost():
            answer = decode_reply(encode_message(reply), request) if is_encoding else reply
            self.timeline.later(back_s, waiting.end, answer)

    def _one_way_s(self, peer: PeerId) -> float:
        return self.timeline.stream(f"latency/{peer.hex()}").uniform(*self.settings.one_way_s)

    def _is_lost(self) -> bool:
        loss = self.settings.loss
        return loss > 0.0 and self.timeline.stream("loss").random() < loss


class _Waiting:
    """Whoever asked hears of it once: the reply, or that there is none."""

    def __init__(self, then: Answered) -> None:
        self._then: Answered | None = then

    def end(self, reply: Reply | None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(reply)


class MeetingNode:
    """One node of the DHT, and its edge."""

    def __init__(self, meeting: Meeting, name: str) -> None:
        self.peer = PeerId(blake3(b"barnraise/sim/meeting/" + name.encode()).digest())
        self.contact = Contact(self.peer, (f"/memory/{name}",))
        self.is_alive = True
        self.connected: set[PeerId] = set()
        self._meeting = meeting
        self._time = meeting.timeline
        self._config = meeting.settings.directory
        self._rng = random.Random(self._time.stream(f"node/{name}").random())
        skew_s = meeting.settings.wall_skew_s
        self._wall_offset_s = START_UNIX_S + self._rng.uniform(-skew_s, skew_s)
        signer = KeyedHashSigner(self.peer)
        kademlia = self._config.kademlia
        self.kademlia = Kademlia(signer, lambda: self.contact.addresses, self._rng, config=kademlia)
        self._announcements = Announcements(signer, replicas=kademlia.lookup.width)
        self._known: tuple[Contact, ...] = ()
        self._pings_under_way = 0
        self._time.later(self._rng.uniform(0.0, self._config.check_s), self._keep_fresh)

    # What a directory does ------------------------------------------------------------------------

    def enter(self, contacts: list[Contact]) -> None:
        """See `KademliaDirectory.join`."""
        self._known = tuple(contacts) or self._known
        for contact in self._known:
            self._ask(contact, self._ping_message(), self._entered)

    def _entered(self, reply: Reply | None) -> None:
        if reply is not None:
            self.look_up(self.kademlia.table.own_key, lambda _: None)

    def announce(self, topic: bytes, value: bytes, *, ttl_s: float) -> None:
        """See `Directory.announce`."""
        added = self._announcements.add(topic, value, ttl_s=ttl_s, now_s=self._time.now_s)
        self._publish(added)

    def find(self, topic: bytes, then: Callable[[Found], None]) -> None:
        """See `Directory.find`."""
        key, began_s = topic_key(topic), self._time.now_s

        def ended(result: LookupResult) -> None:
            held = self.kademlia.store.get(key, self.wall_s)
            winners = merge((*result.records, *held)).values()
            alive = [r for r in winners if r.value and is_timely(r, self.wall_s)]
            records = tuple(sorted(alive, key=lambda record: record.writer))
            then(Found(records, self._time.now_s - began_s, result.num_queries))

        self.look_up(key, ended, is_for_values=True)

    @property
    def wall_s(self) -> float:
        """Unix seconds by this node's clock."""
        return self._wall_offset_s + self._time.now_s

    # Searching ------------------------------------------------------------------------------------

    def look_up(
        self, key: Key, then: Callable[[LookupResult], None], *, is_for_values: bool = False
    ) -> None:
        """Drive a search to its end."""
        lookup = self.kademlia.lookup(
            key, self._time.now_s, values_at_wall_s=self.wall_s if is_for_values else None
        )
        self._go_on(lookup, then, lookup.start(self._time.now_s))

    def _go_on(
        self, lookup: Search, then: Callable[[LookupResult], None], queries: list[Query]
    ) -> None:
        for query in queries:
            answered = partial(self._query_answered, lookup, then, query)
            self._ask(query.contact, self.kademlia.request_for(lookup, query), answered)
        if lookup.is_done:
            self._ended(lookup, then)
            return
        deadline_s = lookup.deadline_s()
        if deadline_s < float("inf"):
            self._time.later(deadline_s - self._time.now_s, self._tick, lookup, then, deadline_s)

    def _tick(
        self, lookup: Search, then: Callable[[LookupResult], None], deadline_s: float
    ) -> None:
        # An answer has moved the deadline: its own tick is on the heap.
        if self.is_alive and not lookup.is_done and lookup.deadline_s() <= deadline_s:
            self._go_on(lookup, then, lookup.tick(max(self._time.now_s, deadline_s)))

    def _query_answered(
        self,
        lookup: Search,
        then: Callable[[LookupResult], None],
        query: Query,
        reply: Reply | None,
    ) -> None:
        if lookup.is_done:
            return
        peer, now_s = query.contact.peer, self._time.now_s
        if isinstance(reply, Nodes | Values):
            self._go_on(lookup, then, lookup.replied(peer, reply, now_s))
        else:
            self._go_on(lookup, then, lookup.failed(peer, now_s))

    def _ended(self, lookup: Search, then: Callable[[LookupResult], None]) -> None:
        now_s = self._time.now_s
        self.kademlia.table.refreshed(lookup.key, now_s)
        result = lookup.result()
        self._meeting.note("found", self.peer, *(c.peer for c in result.closest))
        for liar in sorted(result.liars):
            self.kademlia.failed(liar, now_s)
        for peer in sorted(result.silent):
            self.kademlia.suspect(peer, now_s)
        then(result)

    # Asking and answering -------------------------------------------------------------------------

    def _ask(self, contact: Contact, request: Request, then: Answered) -> None:
        asked_s, is_dialled = self._time.now_s, contact.peer not in self.connected

        def ended(reply: Reply | None) -> None:
            if not self.is_alive:
                return
            now_s = self._time.now_s
            if reply is None:
                self.connected.discard(contact.peer)
                self.kademlia.failed(contact.peer, now_s)
            else:
                self.kademlia.times.answered(contact.peer, now_s - asked_s, is_dialled=is_dialled)
                is_new = contact.peer not in self.kademlia.table
                self.kademlia.answered(contact.peer, reply.addresses, now_s)
                if is_new and contact.peer in self.kademlia.table:
                    for record in self._announcements.for_newcomer(contact.peer):
                        self._store_at(contact, record)
            self._ping_some()
            then(reply)

        self._meeting.carry(self, contact, request, ended)

    def answer(self, peer: PeerId, request: Request) -> Reply:
        """The reply to a peer's request."""
        reply = self.kademlia.handle_request(peer, request, self._time.now_s, self.wall_s)
        self._ping_some()
        return reply

    def _ping_message(self) -> Ping:
        return Ping(self.kademlia.own_addresses())

    def _ping_some(self) -> None:
        """Ping those who asked us something, so many at once."""
        if not self.kademlia.has_pings or self._pings_under_way:
            return
        pings = self.kademlia.take_pings()
        self._pings_under_way = len(pings)
        for index, contact in enumerate(pings):
            # One after the other in a few rows, as the real edge does it.
            row = index // self._config.pings_at_once
            self._time.later(0.2 * row, self._ask, contact, self._ping_message(), self._pinged)

    def _pinged(self, reply: Reply | None) -> None:
        del reply
        self._pings_under_way -= 1
        if not self._pings_under_way:
            self._ping_some()

    # Storing --------------------------------------------------------------------------------------

    def _publish(self, announcement: Announcement) -> None:
        record = self._announcements.sign(announcement, self.wall_s)
        self.kademlia.keep(record, self.wall_s)
        self.look_up(record.key, partial(self._store, announcement, record))

    def _store(self, announcement: Announcement, record: SignedRecord, found: LookupResult) -> None:
        for contact in found.replicas:
            self._store_at(contact, record)
        wait_s = self._config.kademlia.lookup.time_out_s
        self._time.later(wait_s, self._published, announcement)

    def _store_at(self, contact: Contact, record: SignedRecord) -> None:
        def stored(reply: Reply | None) -> None:
            if isinstance(reply, Stored) and reply.verdict is StoreVerdict.STORED:
                self._announcements.stored(record, contact.peer, self._time.now_s)

        self._ask(contact, Store(self.kademlia.own_addresses(), record), stored)

    def _published(self, announcement: Announcement) -> None:
        self._announcements.published(announcement, self._time.now_s)
        self._plan_renewal()

    def _plan_renewal(self) -> None:
        due_s = self._announcements.next_due_s()
        if due_s < float("inf"):
            self._time.later(max(0.0, due_s - self._time.now_s), self._renew)

    def _renew(self) -> None:
        if not self.is_alive:
            return
        for announcement in self._announcements.due(self._time.now_s):
            # Not twice while it is under way: what it leads to sets the next time.
            announcement.due_s = self._time.now_s + self._config.check_s
            self._publish(announcement)

    # Background -----------------------------------------------------------------------------------

    def _keep_fresh(self) -> None:
        if not self.is_alive:
            return
        self._refresh()
        is_lonely = not len(self.kademlia.table)
        wait_s = self._config.lonely_retry_s if is_lonely else self._config.check_s
        self._time.later(wait_s, self._keep_fresh)

    def _refresh(self) -> None:
        self.kademlia.store.purge(self.wall_s)
        if not len(self.kademlia.table):
            self.enter([])
            return
        due = self.kademlia.table.due_for_refresh(
            self._time.now_s, interval_s=self._config.refresh_s, rng=self._rng
        )
        for key in due[:REFRESHES_AT_ONCE]:
            self.look_up(key, lambda _: None)


RUNS, MEMBERS = 20, 8
TOLD = 3
AGAIN_S = 1.0
"""As `node.peers.links` does while its swarm forms."""

JOIN_EVERY_S, SETTLE_S = 0.05, 30.0
TRIALS_WITHIN_S = 10.0
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangersOutcome:
    """What came of it, in virtual seconds from a newcomer's start to its first living member."""

    nodes: int
    gone: int
    trials: int
    seed: int
    met: int
    met_within_10_s: int
    met_p50_s: float
    met_p99_s: float
    met_max_s: float
    wall_s: float
    trace_hash: str


class Strangers:
    """One network, struck once, and the newcomers behind that. `run` once."""

    def __init__(self, nodes: int, gone: float, trials: int, *, seed: int) -> None:
        self.seed, self.trials = seed, trials
        self.meeting = Meeting(MeetingSettings(is_encoding=False), seed=seed)
        self._luck = random.Random(f"{seed}/strangers")
        self._num_gone = round(nodes * gone)
        self.took_s: list[float] = []
        time_ = self.meeting.timeline
        self.peers: list[PeerId] = []
        for number in range(nodes):
            told = self._luck.sample(self.peers, min(TOLD, len(self.peers)))
            self.peers.append(self.meeting.join(f"node {number}", told).peer)
            time_.run_until(time_.now_s + JOIN_EVERY_S)
        self._runs = [
            (b"run %d" % number, self._luck.sample(self.peers, MEMBERS)) for number in range(RUNS)
        ]
        for topic, members in self._runs:
            for peer in members:
                self.meeting.nodes[peer].announce(topic, b"here", ttl_s=600.0)
        time_.run_until(time_.now_s + SETTLE_S)

    def run(self) -> StrangersOutcome:
        """Strike, let the newcomers come, and wait for them."""
        began_s, time_ = time.monotonic(), self.meeting.timeline
        gone = set(self._luck.sample(self.peers, self._num_gone))
        # A run without a living member is nothing that anybody could meet.
        runs = [(topic, members) for topic, members in self._runs if set(members) - gone]
        for peer in sorted(gone):
            self.meeting.vanish(peer)
        alive = [peer for peer in self.peers if peer not in gone]
        for number in range(self.trials):
            told = [self._luck.choice(alive), *self._luck.sample(self.peers, TOLD - 1)]
            topic, _ = self._luck.choice(runs)
            time_.later(self._luck.uniform(0.0, TRIALS_WITHIN_S), self._come, number, told, topic)
        time_.run_until(
            time_.now_s + TRIALS_WITHIN_S + PATIENCE_S, lambda: len(self.took_s) == self.trials
        )
        took_s = sorted(self.took_s)
        return StrangersOutcome(
            nodes=len(self.peers),
            gone=len(gone),
            trials=self.trials,
            seed=self.seed,
            met=len(took_s),
            met_within_10_s=sum(one_s <= 10.0 for one_s in took_s),
            met_p50_s=round(statistics.median(took_s), 3) if took_s else math.inf,
            met_p99_s=round(_quantile(took_s, 0.99), 3),
            met_max_s=round(took_s[-1], 3) if len(took_s) == self.trials else math.inf,
            wall_s=round(time.monotonic() - began_s, 1),
            trace_hash=self.meeting.trace_hash,
        )

    def _come(self, number: int, told: Sequence[PeerId], topic: bytes) -> None:
        newcomer = self.meeting.join(f"newcomer {number}", list(dict.fromkeys(told)))
        self._search(newcomer, topic, self.meeting.timeline.now_s)

    def _search(self, newcomer: MeetingNode, topic: bytes, since_s: float) -> None:
        time_ = self.meeting.timeline

        def ended(found: Found) -> None:
            if any(self.meeting.nodes[record.writer].is_alive for record in found.records):
                self.took_s.append(time_.now_s - since_s)
            elif time_.now_s - since_s < PATIENCE_S:
                time_.later(AGAIN_S, self._search, newcomer, topic, since_s)

        newcomer.find(topic, ended)


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.inf
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(
    nodes: Annotated[int, typer.Option(min=2)] = 1000,
    gone: Annotated[float, typer.Option(min=0.0, max=0.9)] = 0.3,
    trials: Annotated[int, typer.Option(min=1)] = 100,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    worlds: Annotated[int, typer.Option(min=1, help="One after the other, a seed each.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="A line for each world.")] = False,
) -> None:
    """Newcomers who look for their run in a network that has just lost many nodes."""
    hush()
    within = 0
    for number in range(worlds):
        with uncollected():
            outcome = Strangers(nodes, gone, trials, seed=seed + number).run()
        within += outcome.met_within_10_s
        told = asdict(outcome)
        lines = "\n".join(f"{key}: {value}" for key, value in told.items())
        typer.echo(json_text(told) if as_json else lines)
    raise typer.Exit(0 if within >= 0.999 * trials * worlds else 1)


if __name__ == "__main__":
    typer.run(main)
