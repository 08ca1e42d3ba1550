"""A network of pure nodes on an event heap: the real machines, latencies, and nodes that died."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from blake3 import blake3

from dht.kademlia.kademlia import Kademlia, KademliaConfig
from dht.kademlia.keyspace import Key, distance, node_key
from dht.kademlia.lookup import Lookup, LookupResult, Query, Search
from dht.kademlia.messages import (
    Nodes,
    Request,
    Store,
    Values,
    decode_reply,
    decode_request,
    encode_message,
)
from dht.kademlia.records import SignedRecord
from dht.kademlia.routing import Contact
from protocol.identity import KeyedHashSigner, PeerId

WALL_S = 1_800_000_000.0


def peer_id(number: int) -> PeerId:
    return PeerId(blake3(f"peer {number}".encode()).digest())


def contact(number: int) -> Contact:
    return Contact(peer_id(number), (f"/memory/{number}",))


@dataclass
class Network:
    """Nodes that reach each other by peer id; messages travel as the bytes of the wire."""

    seed: int
    now_s: float = 0.0
    nodes: dict[PeerId, Kademlia] = field(default_factory=dict)
    dead: set[PeerId] = field(default_factory=set)
    tamper: Callable[[PeerId, Nodes | Values], Nodes | Values] = lambda _, reply: reply

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/network")

    def add(self, number: int, config: KademliaConfig | None = None) -> Kademlia:
        signer = KeyedHashSigner(peer_id(number))
        addresses = (f"/memory/{number}",)
        rng = random.Random(f"{self.seed}/node/{number}")
        node = Kademlia(signer, lambda: addresses, rng, config=config)
        self.nodes[node.peer_id] = node
        return node

    def ask(self, asker: Kademlia, peer: PeerId, request: Request) -> object:
        """The decoded reply, or None of a dead node; both tables learn of it."""
        if peer in self.dead or peer not in self.nodes:
            asker.failed(peer, self.now_s)
            return None
        arrived = decode_request(encode_message(request))
        node = self.nodes[peer]
        reply = node.handle_request(asker.peer_id, arrived, self.now_s, WALL_S)
        for newcomer in node.take_pings():
            # Pings are performed at once: what they find is not what is tested here.
            if newcomer.peer in self.nodes and newcomer.peer not in self.dead:
                node.answered(newcomer.peer, newcomer.addresses, self.now_s)
        received = decode_reply(encode_message(reply), request)
        asker.answered(peer, received.addresses, self.now_s)
        return received

    def look_up(self, asker: Kademlia, key: Key, *, values: bool = False) -> LookupResult:
        lookup = asker.lookup(key, self.now_s, values_at_wall_s=WALL_S if values else None)
        return self.drive(asker, lookup)

    def drive(self, asker: Kademlia, lookup: Lookup | Search) -> LookupResult:
        """Run one look-up to its end in virtual time; the dead stay silent."""
        order = itertools.count()
        arrivals: list[tuple[float, int, Query]] = []

        def send(queries: list[Query]) -> None:
            for query in queries:
                if query.contact.peer in self.dead:
                    continue
                arrives_s = self.now_s + self.rng.uniform(0.005, 0.1)
                heapq.heappush(arrivals, (arrives_s, next(order), query))

        send(lookup.start(self.now_s))
        for _ in range(10_000):
            if lookup.is_done:
                break
            deadline_s = lookup.deadline_s()
            if arrivals and arrivals[0][0] <= deadline_s:
                self.now_s, _, query = heapq.heappop(arrivals)
                request = asker.request_for(lookup, query)
                reply = self.ask(asker, query.contact.peer, request)
                if isinstance(reply, Nodes | Values):
                    reply = self.tamper(query.contact.peer, reply)
                    send(lookup.replied(query.contact.peer, reply, self.now_s))
                else:
                    send(lookup.failed(query.contact.peer, self.now_s))
            else:
                assert deadline_s < float("inf"), "the look-up waits for nothing"
                self.now_s = deadline_s
                send(lookup.tick(self.now_s))
        assert lookup.is_done, "the look-up does not end"
        asker.table.refreshed(lookup.key, self.now_s)
        return lookup.result()

    def join(self, node: Kademlia, first: Contact) -> None:
        node.answered(first.peer, first.addresses, self.now_s)
        self.look_up(node, node.table.own_key)
        for key in node.table.due_for_refresh(self.now_s, interval_s=600.0, rng=self.rng):
            self.look_up(node, key)

    def store(self, node: Kademlia, record: SignedRecord) -> int:
        found = self.look_up(node, record.key)
        replies = [
            self.ask(node, c.peer, Store(node.own_addresses(), record)) for c in found.closest
        ]
        return sum(reply is not None for reply in replies)

    def truly_closest(self, key: Key, count: int, *, but: PeerId) -> list[PeerId]:
        living = (peer for peer in self.nodes if peer not in self.dead and peer != but)
        return sorted(living, key=lambda peer: distance(node_key(peer), key))[:count]
