"""The search: who lies nearest to a key, and what is said under it. A pure machine.

Events (an answer, a failure, time) go in, queries come out; the same object runs over a network and
in the simulator. It always ends: every peer is asked at most once (and then for a bounded number of
pages), the number of peers is bounded, and a peer that stays silent is given up.

A peer that has been silent for longer than its answers usually take (the retransmission timer of
TCP, RFC 6298) no longer holds up the search: another is asked in its place and the search may end
without it. It is still listened to, so a guess that was too short costs a query and never a peer.

A `Search` goes along disjoint paths (S/Kademlia, Baumgart and Mies 2007): look-ups of their own
that begin with other contacts and never ask the same peer. A liar fills the window of its own path
with peers of its choice; the others go on to those that lie nearest in truth. The paths share
width, concurrency and queries of one look-up, so three of them cost a query or two more than one.
"""

import bisect
import enum
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dht.kademlia.keyspace import Key
from dht.kademlia.messages import Nodes, Values
from dht.kademlia.records import RECORD_OVERHEAD_BYTES, SignedRecord, Verdict, merge, rank
from dht.kademlia.routing import Contact, distance_to
from protocol import limits
from protocol.identity import PeerId

_PAGE_BYTES_MIN = limits.DHT_REPLY_RECORDS_BYTES_MAX - limits.DHT_RECORD_BYTES_MAX
"""Of a page behind which there are more: one more record would have fitted into a smaller one."""

_PAGING_S = 2.0
"""For all pages of a peer, then it counts as slow: who sends each page just in time would hold up a
search for 40 times as long. 37 pages of the largest records come in time over 50 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupConfig:
    """How hard a look-up tries."""

    width: int = 8
    """Nearest contacts wanted: the number of replicas. Each costs one query at least."""

    contacts_per_reply: int = limits.DHT_CONTACTS_PER_REPLY_MAX
    """Contacts asked of each peer; with `width` of them, a third dead leave too few to go on."""

    concurrency: int = 3
    """Queries on the way at once (Kademlia's alpha); more cost traffic, fewer cost time. Peers for
    whom `slow_after_s` is no long wait count for a half."""

    slow_after_s: float = 0.25
    """Silence after which a peer no longer counts, where nobody knows how long its answers take;
    below a round trip, everyone is asked twice."""

    time_out_s: float = 1.0
    """Silence after which a peer has failed: the longest that a search waits for its last hope."""

    queries_max: int = 96
    """Peers asked in all; 1,000 nodes need about 20, the rest is for dead and invented ones."""

    holders_enough: int = 0
    """Peers with records after which a search for values may end; 0 to hear all `width`. No more
    are asked at once than are still wanted: most of the nearest hold what is there."""

    paths: int = 3
    """Disjoint paths of a search (`dht.kademlia.lookup`): who lies on one leads that one astray.
    They share width, concurrency and queries, so that more of them are narrower."""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.contacts_per_reply <= limits.DHT_CONTACTS_PER_REPLY_MAX:
            raise ValueError(f"{self.width} of {self.contacts_per_reply} contacts in a reply")
        if min(self.concurrency, self.paths) < 1 or self.queries_max < self.width:
            raise ValueError(f"a look-up that cannot end: {self}")
        if not 0 < self.slow_after_s <= self.time_out_s:
            raise ValueError(f"slow_after_s {self.slow_after_s} is not within the time-out")


@dataclass(frozen=True, slots=True)
class Query:
    """Action: ask `contact`, for records above `after` if this is a search for values."""

    contact: Contact
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What was found. Only contacts that answered are in it."""

    closest: tuple[Contact, ...]
    """The nearest `width` of them."""

    replicas: tuple[Contact, ...]
    """Where to store: the closest, and the nearest of each path of a search."""

    records: tuple[SignedRecord, ...]
    num_queries: int
    liars: frozenset[PeerId]
    """Peers that passed on a forged record, or broke the rules of paging."""

    silent: frozenset[PeerId]
    """Peers that did not answer within the time-out."""


class _State(enum.Enum):
    FRESH = enum.auto()
    WAITING = enum.auto()
    SLOW = enum.auto()
    ANSWERED = enum.auto()
    FAILED = enum.auto()


@dataclass(slots=True)
class _LookupCandidate:
    contact: Contact
    distance: int
    state: _State = _State.FRESH
    began_s: float = 0.0
    asked_s: float = 0.0
    slow_s: float = 0.0
    pages: int = 0
    num_records: int = 0
    last_writer: bytes = b""
    has_records: bool = False


Judge = Callable[[SignedRecord], Verdict]

Patience = Callable[[PeerId], float]
"""After how many seconds of silence a peer counts as slow."""


@dataclass(slots=True)
class Shared:
    """What the paths of one search have in common: whom one has asked, no other asks."""

    patience: Patience | None
    claimed: set[PeerId] = field(default_factory=set)
    is_enough_asked: Callable[[], bool] = lambda: False
    """Whether those who are asked now may be all that the search wants to hear."""


class Lookup:
    """One search for `key`. Feed it events until `is_done`, perform the queries it returns."""

    def __init__(
        self,
        key: Key,
        config: LookupConfig,
        *,
        known: Iterable[Contact],
        avoid: AbstractSet[PeerId],
        judge: Judge | None = None,
        shared: Shared | None = None,
    ) -> None:
        """Start from `known`; never ask a peer in `avoid` (ourselves at least).

        With a `judge` this is a search for values: it tells which records to believe.
        """
        self.key = key
        self.config = config
        self.is_done = False
        self._judge = judge
        shared = shared or Shared(None)
        self._is_learned = shared.patience is not None
        self._patience = shared.patience or (lambda _: config.slow_after_s)
        self._claimed = shared.claimed
        self._is_enough_asked = shared.is_enough_asked
        self._avoid = avoid
        self._by_peer: dict[PeerId, _LookupCandidate] = {}
        self._ordered: list[_LookupCandidate] = []
        self._pending: dict[PeerId, _LookupCandidate] = {}
        self._records: dict[PeerId, SignedRecord] = {}
        self._liars: set[PeerId] = set()
        self._silent: set[PeerId] = set()
        self._num_queries = 0
        self._learn(known)

    @property
    def wants_records(self) -> bool:
        """Whether this is a search for values."""
        return self._judge is not None

    def start(self, now_s: float) -> list[Query]:
        """The first queries. With nobody to ask, the search is done at once."""
        return self._advance(now_s)

    def replied(self, peer: PeerId, reply: Nodes | Values, now_s: float) -> list[Query]:
        """`peer` answered its query; an answer that comes after it was given up is ignored."""
        candidate = self._pending.pop(peer, None)
        if candidate is None or self.is_done:
            return []
        if isinstance(reply, Values) and not self._take_records(candidate, reply):
            self._liars.add(peer)
            candidate.state = _State.FAILED
            return self._advance(now_s)
        self._learn(reply.contacts[: self.config.contacts_per_reply])
        # Nobody keeps so many for one key. But where writers flood it they come and go between two
        # pages, and an honest peer shows more than it ever held: that is the end, and no fault.
        is_cut = candidate.num_records > limits.DHT_WRITERS_PER_KEY_MAX
        if isinstance(reply, Values) and reply.has_more and not is_cut:
            queries = [self._ask(candidate, now_s)]
            return queries + self._advance(now_s)
        candidate.state = _State.ANSWERED
        return self._advance(now_s)

    def failed(self, peer: PeerId, now_s: float) -> list[Query]:
        """`peer` cannot be reached, or what it sent was no answer."""
        candidate = self._pending.pop(peer, None)
        if candidate is None or self.is_done:
            return []
        candidate.state = _State.FAILED
        return self._advance(now_s)

    def asked(self, peer: PeerId, since_s: float) -> None:
        """The query of `peer` is on its way since then; infinity while its dial waits."""
        candidate = self._pending.get(peer)
        if candidate is not None:
            candidate.asked_s = since_s
            if candidate.pages == 1:
                candidate.began_s = since_s

    def tick(self, now_s: float) -> list[Query]:
        """Time has passed; call it at `deadline_s` at the latest."""
        return [] if self.is_done else self._advance(now_s)

    def deadline_s(self) -> float:
        """When silence alone will change something; infinite when nothing is on the way."""
        ends = (
            c.asked_s + (c.slow_s if c.state is _State.WAITING else self.config.time_out_s)
            for c in self._pending.values()
        )
        return min(ends, default=float("inf"))

    def answered(self) -> tuple[Contact, ...]:
        """Everybody who answered, nearest first."""
        return tuple(c.contact for c in self._ordered if c.state is _State.ANSWERED)

    def holders(self) -> int:
        """Peers that have sent records."""
        return sum(candidate.has_records for candidate in self._by_peer.values())

    @property
    def num_queries(self) -> int:
        """Peers asked so far."""
        return self._num_queries

    def hopes(self) -> float:
        """Peers that have sent records, or may yet; of those with a long wait, half of them."""
        waiting = (c for c in self._pending.values() if c.state is _State.WAITING)
        return self.holders() + sum(self._weight(c) for c in waiting if not c.has_records)

    def result(self) -> LookupResult:
        """What has been found so far."""
        closest = self.answered()[: self.config.width]
        return LookupResult(
            closest=closest,
            replicas=closest,
            records=tuple(self._records[writer] for writer in sorted(self._records)),
            num_queries=self._num_queries,
            liars=frozenset(self._liars),
            silent=frozenset(self._silent),
        )

    def _learn(self, contacts: Iterable[Contact]) -> None:
        for contact in contacts:
            peer = contact.peer
            if peer in self._avoid or peer in self._by_peer or not contact.addresses:
                continue
            candidate = _LookupCandidate(contact, distance_to(contact, self.key))
            self._by_peer[peer] = candidate
            bisect.insort(self._ordered, candidate, key=lambda c: c.distance)

    def _take_records(self, candidate: _LookupCandidate, reply: Values) -> bool:
        """Whether the page obeys the rules; nothing of one that does not is believed.

        Strictly ascending writers bound the pages: nobody can send us around in circles.
        """
        assert self._judge is not None, "records in a search for nodes are stopped on decoding"
        writers = [record.writer for record in reply.records]
        is_ascending = all(a < b for a, b in pairwise([candidate.last_writer, *writers]))
        if not is_ascending or any(record.key != self.key for record in reply.records):
            return False
        candidate.num_records += len(writers)
        num_bytes = sum(len(record.value) + RECORD_OVERHEAD_BYTES for record in reply.records)
        is_last = candidate.pages >= limits.DHT_PAGES_MAX
        if reply.has_more and (is_last or num_bytes <= _PAGE_BYTES_MIN):
            return False
        accepted = []
        for record in reply.records:
            held = self._records.get(record.writer)
            # Replicas repeat each other: only what would win is worth a signature check.
            if held is not None and rank(held) >= rank(record):
                continue
            judgement = self._judge(record)
            if judgement is Verdict.FORGED:
                return False
            if judgement is Verdict.VALID:
                accepted.append(record)
        self._records.update((record.writer, record) for record in accepted)
        candidate.has_records = candidate.has_records or bool(writers)
        candidate.last_writer = writers[-1] if writers else candidate.last_writer
        return True

    def _ask(self, candidate: _LookupCandidate, now_s: float) -> Query:
        candidate.state = _State.WAITING
        candidate.asked_s = now_s
        candidate.began_s = candidate.began_s if candidate.pages else now_s
        patience_s = min(self._patience(candidate.contact.peer), self.config.time_out_s)
        left_s = candidate.began_s + _PAGING_S - now_s
        candidate.slow_s = max(0.0, min(patience_s, left_s))
        candidate.pages += 1
        self._claimed.add(candidate.contact.peer)
        self._pending[candidate.contact.peer] = candidate
        return Query(candidate.contact, candidate.last_writer)

    def _advance(self, now_s: float) -> list[Query]:
        self._give_up_the_silent(now_s)
        window = self._window()
        queries = []
        # Whoever sends page after page has no place: nobody waits for that to ask others.
        first_pages = (c for c in self._pending.values() if c.pages == 1)
        waiting = (c for c in first_pages if c.state is _State.WAITING)
        in_flight = sum(self._weight(candidate) for candidate in waiting)
        for candidate in window:
            if in_flight >= self.config.concurrency or self._num_queries >= self.config.queries_max:
                break
            if candidate.state is _State.FRESH:
                if self._is_enough_asked():
                    break
                queries.append(self._ask(candidate, now_s))
                self._num_queries += 1
                in_flight += self._weight(candidate)
        self.is_done = self._has_ended(window)
        return queries

    def _weight(self, candidate: _LookupCandidate) -> float:
        # Of those that will take long to answer, strangers above all, twice as many are asked.
        is_long = self._is_learned and candidate.slow_s >= self.config.slow_after_s
        return 0.5 if is_long else 1.0

    def _give_up_the_silent(self, now_s: float) -> None:
        for peer, candidate in tuple(self._pending.items()):
            # The same sums as in `deadline_s`: a rounding difference would make a timer spin.
            if now_s >= candidate.asked_s + self.config.time_out_s:
                candidate.state = _State.FAILED
                self._silent.add(peer)
                del self._pending[peer]
            elif now_s >= candidate.asked_s + candidate.slow_s:
                candidate.state = _State.SLOW

    def _window(self) -> list[_LookupCandidate]:
        """The nearest `width` candidates that are not given up, silent, or another path's."""
        window = []
        for candidate in self._ordered:
            if candidate.state is _State.FAILED or candidate.state is _State.SLOW:
                continue
            if candidate.state is _State.FRESH and candidate.contact.peer in self._claimed:
                continue
            window.append(candidate)
            if len(window) == self.config.width:
                break
        return window

    def _has_ended(self, window: list[_LookupCandidate]) -> bool:
        enough = self.config.holders_enough
        if enough and self.holders() >= enough:
            return True
        answered = sum(c.state is _State.ANSWERED for c in window)
        if answered == self.config.width:
            return True
        if self._pending:
            # Fewer than wanted have answered: the silent ones are the last hope, up to a limit.
            return False
        exhausted = self._num_queries >= self.config.queries_max
        return exhausted or answered == len(window)


_OF_EACH_PATH = 2


# A search along disjoint paths ------------------------------------------------------------------


class Search:
    """One search for `key` along `config.paths` paths. Driven like a `Lookup`."""

    def __init__(
        self,
        key: Key,
        config: LookupConfig,
        *,
        known: Iterable[Contact],
        avoid: AbstractSet[PeerId],
        judge: Judge | None = None,
        patience: Patience | None = None,
    ) -> None:
        """See `Lookup`; what is known is dealt out to the paths, the nearest contacts first."""
        self.key = key
        self.config = config
        common = Shared(patience)
        if config.holders_enough:
            common.is_enough_asked = self._is_enough_asked
        nearest = sorted(known, key=lambda contact: distance_to(contact, key))
        num_paths = max(1, min(config.paths, config.concurrency, config.width, len(nearest)))
        shared = replace(
            config,
            paths=1,
            width=-(-config.width // num_paths),
            concurrency=-(-config.concurrency // num_paths),
            queries_max=max(config.queries_max // num_paths, -(-config.width // num_paths)),
            # The paths together decide whether enough holders have been heard.
            holders_enough=0,
        )
        self._is_waiting = False
        self._paths: list[Lookup] = []
        self._paths += [
            Lookup(
                key,
                shared,
                known=nearest[number::num_paths],
                avoid=avoid,
                judge=judge,
                shared=common,
            )
            for number in range(num_paths)
        ]
        self._path_of: dict[PeerId, Lookup] = {}
        self.is_done = False
        self.wants_records = judge is not None

    def start(self, now_s: float) -> list[Query]:
        """The first queries. With nobody to ask, the search is done at once."""
        return self._noted({path: path.start(now_s) for path in self._paths})

    def replied(self, peer: PeerId, reply: Nodes | Values, now_s: float) -> list[Query]:
        """`peer` answered its query; an answer that comes after the end is ignored."""
        return self._heard(peer, lambda path: path.replied(peer, reply, now_s), now_s)

    def failed(self, peer: PeerId, now_s: float) -> list[Query]:
        """`peer` cannot be reached, or what it sent was no answer."""
        return self._heard(peer, lambda path: path.failed(peer, now_s), now_s)

    def _heard(
        self, peer: PeerId, tell: Callable[[Lookup], list[Query]], now_s: float
    ) -> list[Query]:
        path = self._path_of.get(peer)
        if path is None or self.is_done:
            return []
        # Where few are asked at a time, it is for the paths together to say which one asks.
        self._is_waiting = True
        asked = tell(path)
        self._is_waiting = False
        return self._noted({path: asked} | self._turns(path, asked, now_s))

    def asked(self, peer: PeerId, since_s: float) -> None:
        """See `Lookup.asked`."""
        self._path_of[peer].asked(peer, since_s)

    def tick(self, now_s: float) -> list[Query]:
        """Time has passed; call it at `deadline_s` at the latest."""
        if self.is_done:
            return []
        return self._noted({path: path.tick(now_s) for path in self._in_turn()})

    def deadline_s(self) -> float:
        """When silence alone will change something; infinite when nothing is on the way."""
        return min(path.deadline_s() for path in self._paths if not path.is_done)

    def result(self) -> LookupResult:
        """What has been found so far on all paths."""
        results = [path.result() for path in self._paths]
        answered = {contact for path in self._paths for contact in path.answered()}
        closest = sorted(answered, key=self._distance)[: self.config.width]
        # Also where made-up peers are the nearest: they all come from one path or two.
        of_paths = {contact for path in self._paths for contact in path.answered()[:_OF_EACH_PATH]}
        winners: dict[tuple[Key, PeerId], SignedRecord] = merge(
            record for result in results for record in result.records
        )
        return LookupResult(
            closest=tuple(closest),
            replicas=tuple(sorted(of_paths.union(closest), key=self._distance)),
            records=tuple(winners[place] for place in sorted(winners)),
            num_queries=sum(result.num_queries for result in results),
            liars=frozenset().union(*(result.liars for result in results)),
            silent=frozenset().union(*(result.silent for result in results)),
        )

    def _turns(self, path: Lookup, asked: list[Query], now_s: float) -> dict[Lookup, list[Query]]:
        """Where few are asked at a time, the paths ask in turn: next is the nearest of another."""
        if not self.config.holders_enough:
            return {}
        found = {one: one.tick(now_s) for one in self._in_turn()}
        return found | {path: asked + found[path]}

    def _in_turn(self) -> list[Lookup]:
        if not self.config.holders_enough:
            return self._paths
        return sorted(self._paths, key=lambda path: path.num_queries)

    def _is_enough_asked(self) -> bool:
        hopes = sum(path.hopes() for path in self._paths)
        return self._is_waiting or hopes >= self.config.holders_enough

    def _distance(self, contact: Contact) -> int:
        return distance_to(contact, self.key)

    def _noted(self, queries: Mapping[Lookup, list[Query]]) -> list[Query]:
        for path, asked in queries.items():
            for query in asked:
                self._path_of[query.contact.peer] = path
        enough = self.config.holders_enough
        has_enough = enough and sum(path.holders() for path in self._paths) >= enough
        self.is_done = bool(has_enough) or all(path.is_done for path in self._paths)
        return [] if self.is_done else [query for asked in queries.values() for query in asked]


_PEERS_MAX = 1024
_FLOOR_S = 0.02
"""A machine that trains takes so long to wake a task up."""


@dataclass(slots=True)
class _Timer:
    smooth_s: float
    spread_s: float

    def took(self, took_s: float) -> None:
        self.spread_s += (abs(took_s - self.smooth_s) - self.spread_s) / 4
        self.smooth_s += (took_s - self.smooth_s) / 8

    @property
    def slow_after_s(self) -> float:
        return max(_FLOOR_S, self.smooth_s + 4 * self.spread_s)

    @property
    def dial_slow_after_s(self) -> float:
        """Dials go to all the world: four spreads would grant the dead as much as the farthest."""
        return max(_FLOOR_S, self.smooth_s + self.spread_s)


class PeerTimes:
    """The times of answers, per peer; of those that were dialled for it, of all together."""

    def __init__(self, *, at_first_s: float) -> None:
        """`at_first_s` is what is granted to peers of which nothing is known."""
        self._at_first_s = at_first_s
        self._peers: dict[PeerId, _Timer] = {}
        self._dials: _Timer | None = None

    def answered(self, peer: PeerId, took_s: float, *, is_dialled: bool) -> None:
        """An answer came after `took_s`; `is_dialled` if a connection had to be made for it."""
        if is_dialled:
            if self._dials is None:
                self._dials = _Timer(took_s, took_s / 2)
            self._dials.took(took_s)
            return
        timer = self._peers.get(peer) or _Timer(took_s, took_s / 2)
        timer.took(took_s)
        limits.keep_newest(self._peers, peer, timer, _PEERS_MAX)

    def slow_after_s(self, peer: PeerId) -> float:
        """The silence after which `peer` counts as slow."""
        timer = self._peers.get(peer)
        if timer is not None:
            return timer.slow_after_s
        return self._at_first_s if self._dials is None else self._dials.dial_slow_after_s

    def round_trip_s(self, peer: PeerId) -> float | None:
        """How long its answers take; None of a peer that has not answered yet."""
        timer = self._peers.get(peer)
        return None if timer is None else timer.smooth_s
