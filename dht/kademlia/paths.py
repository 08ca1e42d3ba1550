"""A search along disjoint paths: who lies on one of them leads that one astray. Pure.

The paths are look-ups of their own that begin with other contacts and never ask the same peer
(S/Kademlia, Baumgart and Mies 2007). A liar fills the window of its own path with peers of its
choice; the others go on to those that lie nearest in truth. They share width, concurrency and
queries of one look-up, so that three paths cost a query or two more than one.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dht.kademlia.keyspace import Key
from dht.kademlia.lookup import Judge, Lookup, LookupConfig, LookupResult, Patience, Query, Shared
from dht.kademlia.messages import Nodes, Values
from dht.kademlia.records import SignedRecord, merge
from dht.kademlia.routing import Contact, distance_to
from protocol.identity import PeerId

_OF_EACH_PATH = 2


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
        path = self._path_of.get(peer)
        if path is None or self.is_done:
            return []
        with self._waiting():
            asked = path.replied(peer, reply, now_s)
        return self._noted({path: asked} | self._turns(path, asked, now_s))

    def failed(self, peer: PeerId, now_s: float) -> list[Query]:
        """`peer` cannot be reached, or what it sent was no answer."""
        path = self._path_of.get(peer)
        if path is None or self.is_done:
            return []
        with self._waiting():
            asked = path.failed(peer, now_s)
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

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Let no path ask, where it is for the paths together to say which one does."""
        self._is_waiting = True
        yield
        self._is_waiting = False

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
