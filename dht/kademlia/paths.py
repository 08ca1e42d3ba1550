"""A search along disjoint paths: who lies on one of them leads that one astray. Pure.

The paths are look-ups of their own that begin with other contacts and never ask the same peer
(S/Kademlia, Baumgart and Mies 2007). A liar fills the window of its own path with peers of its
choice; the others go on to those that lie nearest in truth. They share width, concurrency and
queries of one look-up, so that three paths cost a query or two more than one.
"""

from collections.abc import Iterable, Mapping
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
        self._paths = [
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
        return self._noted({path: path.replied(peer, reply, now_s)})

    def failed(self, peer: PeerId, now_s: float) -> list[Query]:
        """`peer` cannot be reached, or what it sent was no answer."""
        path = self._path_of.get(peer)
        if path is None or self.is_done:
            return []
        return self._noted({path: path.failed(peer, now_s)})

    def tick(self, now_s: float) -> list[Query]:
        """Time has passed; call it at `deadline_s` at the latest."""
        if self.is_done:
            return []
        return self._noted({path: path.tick(now_s) for path in self._paths})

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
