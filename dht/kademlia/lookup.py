"""The iterative look-up: who lies nearest to a key, and what is said under it. A pure machine.

Events (an answer, a failure, time) go in, queries come out; the same object runs over a network and
in the simulator. It always ends: every peer is asked at most once (and then for a bounded number of
pages), the number of peers is bounded, and a peer that stays silent is given up.

A peer that has been silent for `slow_after_s` no longer holds up the search: another is asked in
its place and the search may end without it, so that silent peers cost little even one by one.
"""

import bisect
import enum
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from dht.kademlia.keyspace import Key
from dht.kademlia.messages import Nodes, Values
from dht.kademlia.records import RECORD_OVERHEAD_BYTES, SignedRecord, Verdict, rank
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
    """Disjoint paths of a search (`dht.kademlia.paths`): who lies on one leads that one astray.
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
