"""Gossip by itself, measured: how fast entries spread, splits heal, the dead are found; the cost.

    python -m sim.crowds.gossiping --nodes 1000 --loss 0.2 --seconds 60 --seed 0 --json
    python -m sim.crowds.gossiping --nodes 100 --split 3        a network in three parts, healed
    python -m sim.crowds.gossiping --table                      control bytes at 10, 100 and 1000
    nodes

Everybody knows three others when it comes. Then entries are written anywhere, some nodes lag (they
stall now and then), and half-way some die or freeze without a word. Entries of presence are written
by the seated alone, so the traffic of a swarm has the size of views and groups, not its own.

The shipped `Gossip` runs over links that lose frames. The edge is made up: whoever sends to a peer
without a link dials first, and what waits for the link is lost with the dial. A link that is not
used goes after a while. Every frame may be lost, which a stream would repeat: harsher than the real
thing. Frames cost their bytes on the wire. Entries have no writers: they are opaque bytes with
their hash as id.
"""

import math
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer
from blake3 import blake3

from node.text.shown import json_text
from protocol.events import Fault, Send
from protocol.frames import decode_frame, encode_frame
from protocol.gossip import GossipFrame
from protocol.gossiping.gossiped import Offered, OfferVerdict
from protocol.gossiping.machine import Action, Gone, Gossip
from protocol.gossiping.settings import GossipSettings
from protocol.identity import PeerId
from protocol.shared_state.book import Buckets
from sim.world.quiet import uncollected
from sim.world.timeline import Timeline

# Nodes that only gossip ---------------------------------------------------------------------------

START_UNIX_S = 1_800_000_000.0
IDLE_S = 30.0
LENGTH_BYTES = 4
"""Before each frame of a stream."""

DIAL_ROUND_TRIPS = 4
"""TCP, the handshake of Noise and two negotiations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipNetwork:
    """The network between nodes; latencies are one-way and of each node by itself."""

    one_way_s: tuple[float, float] = (0.01, 0.08)
    loss: float = 0.0
    is_encoding: bool = False
    """Whether frames arrive decoded from their bytes, which costs a third of the time."""

    gossip: GossipSettings = field(default_factory=GossipSettings)


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was counted, since it was last reset."""

    sent_bytes: int = 0
    frames: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)


class GossipWorld:
    """Nodes, network and time."""

    def __init__(self, network: GossipNetwork, *, seed: int) -> None:
        self.network = network
        self.timeline = Timeline(seed)
        self.nodes: dict[PeerId, GossipNode] = {}
        self.seen = Seen()
        self.faults: list[tuple[PeerId, PeerId, str]] = []
        """By whom, whom, and why."""
        self.gone: list[tuple[float, PeerId, PeerId]] = []
        """When, by whom, and who was given up."""
        self.holding: dict[bytes, list[tuple[float, PeerId]]] = {}
        """By entry id, when each node came to hold it, the first of them its writer."""
        self._luck = self.timeline.stream("network")
        self._sides: dict[PeerId, int] = {}
        self._size: tuple[GossipFrame | None, int] = (None, 0)
        self._trace = blake3()

    @property
    def trace_hash(self) -> str:
        """A digest over all frames that arrived, and when."""
        return self._trace.hexdigest()

    def join(self, name: str, known: list[PeerId]) -> "GossipNode":
        """A node appears, and was told of some peers."""
        node = GossipNode(self, name)
        self.nodes[node.peer] = node
        for peer in known:
            node.carry_out(node.gossip.meet(peer, (), now_s=self.timeline.now_s))
        node.plan()
        return node

    def write(self, peer: PeerId, text: bytes, *, size: int = 400) -> bytes:
        """A node writes an entry of about so many bytes; its id."""
        node = self.nodes[peer]
        encoded = (MARK + text + b" ").ljust(size, b".")
        now_s = self.timeline.now_s
        offered, actions = node.gossip.publish(encoded, wall_s=node.wall_s, now_s=now_s)
        node.carry_out(actions)
        node.plan()
        return offered.entry_id

    def split(self, sides: list[list[PeerId]]) -> None:
        """Nothing passes between the sides from now on."""
        self._sides = {peer: index for index, side in enumerate(sides) for peer in side}
        for node in self.nodes.values():
            node.connected = {p: s for p, s in node.connected.items() if self.passes(node.peer, p)}

    def heal(self) -> None:
        """Everybody can reach everybody again."""
        self._sides = {}

    def passes(self, source: PeerId, target: PeerId) -> bool:
        """Whether the two are on the same side."""
        return self._sides.get(source) == self._sides.get(target)

    def carry(self, source: "GossipNode", peer: PeerId, frame: GossipFrame) -> None:
        """A frame leaves; it may arrive."""
        seen, now_s = self.seen, self.timeline.now_s
        if self._size[0] is not frame:
            self._size = frame, len(encode_frame(frame)) + LENGTH_BYTES
        seen.sent_bytes += self._size[1]
        seen.frames += 1
        seen.by_kind[type(frame).__name__] += self._size[1]
        target = self.nodes.get(peer)
        if target is None or not self.passes(source.peer, peer):
            return
        delay_s = self._one_way_s() + self._one_way_s()
        dial_s = source.dial_s(target, now_s, delay_s)
        if self._luck.random() >= self.network.loss:
            # Frames of one stream keep their order.
            at_s = max(now_s + dial_s + delay_s, source.last_s.get(peer, 0.0))
            source.last_s[peer] = at_s
            self.timeline.later(at_s - now_s, target.hear, source.peer, frame)

    def _one_way_s(self) -> float:
        low, high = self.network.one_way_s
        return 0.5 * (low + (high - low) * self._luck.random())

    def arrived(self, source: PeerId, target: PeerId, frame: GossipFrame) -> GossipFrame:
        """A frame is heard: it is part of the trace."""
        self._trace.update(f"{self.timeline.now_s:.9f} {type(frame).__name__} ".encode())
        self._trace.update(source + target)
        if not self.network.is_encoding:
            return frame
        heard: GossipFrame = decode_frame(encode_frame(frame))  # type: ignore[assignment]  # it is one
        return heard


class GossipNode:
    """One node, and its edge."""

    def __init__(self, world: GossipWorld, name: str) -> None:
        self.peer = PeerId(blake3(b"barnraise/sim/gossip/" + name.encode()).digest())
        self.book = _WatchedBook(world, self.peer)
        self.is_alive = True
        self.naps_until_s = 0.0
        self.connected: dict[PeerId, float] = {}
        """To whom there is a link, and when it was last used."""
        self.last_s: dict[PeerId, float] = {}
        self._world = world
        self._time = world.timeline
        self._due_s = float("inf")
        rng = random.Random(self._time.stream(f"node/{name}").random())
        self.gossip = Gossip(
            self.peer,
            self.book,
            rng,
            addresses=lambda: (f"/ip4/192.0.2.1/tcp/4001/{name}",),
            settings=world.network.gossip,
            now_s=self._time.now_s,
        )

    @property
    def wall_s(self) -> float:
        """Unix seconds by this node's clock."""
        return START_UNIX_S + self._time.now_s

    def vanish(self) -> None:
        """It is gone without a word: or frozen, which looks the same from outside."""
        self.is_alive = False

    def nap(self, seconds: float) -> None:
        """The machine stalls: what arrives waits, timers are late."""
        self.naps_until_s = self._time.now_s + seconds

    def leave(self) -> None:
        """It says goodbye, and is gone."""
        self.carry_out(self.gossip.leave(now_s=self._time.now_s))
        self.is_alive = False

    def dial_s(self, target: "GossipNode", now_s: float, round_trip_s: float) -> float:
        """How long until a link stands: no time if there is one."""
        used_s = self.connected.get(target.peer)
        if used_s is None or now_s - used_s > IDLE_S:
            self.connected[target.peer] = target.connected[self.peer] = now_s
            return DIAL_ROUND_TRIPS * 2.0 * round_trip_s
        self.connected[target.peer] = now_s
        return 0.0

    def hear(self, source: PeerId, frame: GossipFrame) -> None:
        """A frame arrives."""
        if not self.is_alive:
            return
        now_s = self._time.now_s
        if now_s < self.naps_until_s:
            self._time.later(self.naps_until_s - now_s, self.hear, source, frame)
            return
        heard = self._world.arrived(source, self.peer, frame)
        self.carry_out(self.gossip.handle(source, heard, wall_s=self.wall_s, now_s=now_s))
        self.plan()

    def carry_out(self, actions: list[Action]) -> None:
        """What the machine wants done."""
        for action in actions:
            match action:
                case Send(peer=peer, frame=frame):
                    self._world.carry(self, peer, frame)  # type: ignore[arg-type]  # gossip only
                case Fault(peer=peer, reason=reason):
                    self._world.faults.append((self.peer, peer, reason))
                case Gone(peer=peer):
                    self._world.gone.append((self._time.now_s, self.peer, peer))

    def plan(self) -> None:
        """Set the timer, if something is due before it."""
        due_s = self.gossip.wakeup_s()
        if due_s < self._due_s:
            self._due_s = due_s
            self._time.later(max(0.0, due_s - self._time.now_s) + 1e-6, self._wake, due_s)

    def _wake(self, due_s: float) -> None:
        if not self.is_alive or due_s > self._due_s:
            return
        now_s = self._time.now_s
        if now_s < self.naps_until_s:
            self._time.later(self.naps_until_s - now_s, self._wake, due_s)
            return
        self._due_s = float("inf")
        if self.gossip.wakeup_s() <= now_s:
            self.carry_out(self.gossip.tick(now_s=now_s))
        self.plan()


MARK = b"sim entry "
"""What every sound entry begins with; all else is its bringer's fault."""


class SimBook:
    """A Gossiped store that holds whatever is sound. The bucket is the first byte of the id."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._buckets = Buckets()
        self._told: tuple[bytes, ...] = self._buckets.digests()
        """Equal until something is new: a comparison asks for them often."""

    def __len__(self) -> int:
        return len(self._entries)

    def bucket_digests(self) -> tuple[bytes, ...]:
        """See Gossiped."""
        self._told = self._told or self._buckets.digests()
        return self._told

    def ids_in(self, bucket: int) -> tuple[bytes, ...]:
        """See Gossiped."""
        return self._buckets.ids_in(bucket)

    def get(self, entry_id: bytes) -> bytes | None:
        """See Gossiped."""
        return self._entries.get(entry_id)

    def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
        """See Gossiped."""
        del wall_s, now_s
        if not encoded.startswith(MARK):
            return Offered(verdict=OfferVerdict.REFUSED, fault="no entry")
        entry_id = blake3(encoded).digest()
        if entry_id in self._entries:
            return Offered(verdict=OfferVerdict.KNOWN, entry_id=entry_id)
        self._entries[entry_id] = encoded
        self._buckets.add(entry_id)
        self._told = ()
        return Offered(verdict=OfferVerdict.NEW, entry_id=entry_id)


class _WatchedBook(SimBook):
    """Tells the world when it comes to hold something."""

    def __init__(self, world: GossipWorld, peer: PeerId) -> None:
        super().__init__()
        self._world, self._peer = world, peer

    def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
        """See Gossiped."""
        offered = super().offer(encoded, wall_s=wall_s, now_s=now_s)
        if offered.is_new:
            held = self._world.holding.setdefault(offered.entry_id, [])
            held.append((self._world.timeline.now_s, self._peer))
        return offered


# What is measured ---------------------------------------------------------------------------------

JOIN_S, WARM_S = 5.0, 20.0
"""Until all have come, and until views have mixed."""

KNOWN_AT_FIRST = 3
WRITE_S = 1.5
"""An entry is written so often, somewhere; the last ones have SETTLE_S to arrive."""

SETTLE_S, SECONDS_MAX = 10.0, 86_400.0
SEATS_MAX, PRESENCE_S = 64, 240.0
"""The seated, and how often each writes where it is."""

NAP_EVERY_S, NAP_S = 6.0, 1.5
SPLIT_S = 60.0
HEAL_S_MAX = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipingSettings:
    """Of `nodes`, `struck` die or freeze half-way (it looks the same), and `lagging` ones stall.

    An entry has spread when `hold_share` of the living hold it.
    """

    nodes: int = 1000
    seconds: float = 60.0
    loss: float = 0.2
    struck: int = 50
    lagging: int = 50
    hold_share: float = 0.99

    def __post_init__(self) -> None:
        """Raise ValueError for a crowd of which too few are left to hold anything."""
        if self.struck + self.lagging > self.nodes // 2:
            raise ValueError("more than half of the nodes would be struck or lag")
        if self.seconds < 2.0 * SETTLE_S:
            raise ValueError(
                f"seconds: at least {2.0 * SETTLE_S:.0f}, for the last entry to arrive"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What came of a swarm in one piece. Lags are until enough of the living hold an entry."""

    nodes: int
    seed: int
    loss: float
    entries: int
    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    unspread: int
    duplicates_per_entry: float
    """Copies of an entry that a node got besides the first."""
    suspicions: int
    false_gone: int
    """Living nodes that some neighbour gave up."""
    detected_p50_s: float
    detected_max_s: float
    """From its death until no living node counts a node among its neighbours."""
    undetected: int
    bytes_per_node_s: float
    bytes_by_frame: dict[str, float]
    neighbours_mean: float
    known_max: int
    faults: int
    virtual_s: float
    wall_s: float
    cpu_s: float
    trace_hash: str

    @property
    def is_kept(self) -> bool:
        """Whether all was kept: spread in five seconds, nobody slandered, the dead found."""
        broken = self.unspread or self.false_gone or self.undetected or self.faults
        return self.entries > 0 and self.lag_max_s <= 5.0 and not broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """What came of a swarm that was split. Exchanges count from the end of the split."""

    nodes: int
    seed: int
    loss: float
    ways: int
    entries: int
    apart: int
    """Different sets of entries, when the split ended."""
    equal_after_s: float
    periods: float
    """The same, in intervals between two exchanges of a node."""
    exchanges_mean: float
    exchanges_max: int
    """Exchanges that a node opened until all were equal: those with somebody lost among them."""
    bytes_per_node: int
    faults: int
    wall_s: float
    cpu_s: float
    trace_hash: str

    @property
    def is_kept(self) -> bool:
        """Whether all held the same within three exchanges."""
        return self.apart >= self.ways and self.periods <= 3.0 and not self.faults


def swarm(network: GossipNetwork, nodes: int, seed: int) -> tuple[GossipWorld, list[PeerId]]:
    """Nodes that have come and mixed."""
    world = GossipWorld(network, seed=seed)
    luck, peers = random.Random(f"{seed}/gossiping/known"), list[PeerId]()
    for number in range(nodes):
        world.timeline.run_until(JOIN_S * number / nodes)
        known = luck.sample(peers, min(KNOWN_AT_FIRST, len(peers)))
        peers.append(world.join(f"gossip-{number}", known).peer)
    world.timeline.run_until(WARM_S)
    return world, peers


@dataclass(slots=True)
class _Watch:
    """When each of the dead was nobody's neighbour any more."""

    died_s: float = math.inf
    found_s: dict[PeerId, float] = field(default_factory=dict)


class Gossiping:
    """One swarm, built and struck from a seed. `spread` or `heal`, once."""

    def __init__(self, settings: GossipingSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self._luck = random.Random(f"{seed}/gossiping")
        self._began_s, self._began_cpu_s = time.perf_counter(), time.process_time()
        network = GossipNetwork(loss=settings.loss)
        self.world, self.peers = swarm(network, settings.nodes, seed)
        self._dead: list[PeerId] = []
        self._ids: list[bytes] = []
        self._watch = _Watch()
        self._lagging = [self.world.nodes[p] for p in self.peers[1 : 1 + settings.lagging]]

    def _node(self, peer: PeerId) -> GossipNode:
        return self.world.nodes[peer]

    def _living(self) -> list[GossipNode]:
        return [node for node in self.world.nodes.values() if node.is_alive]

    # In one piece ---------------------------------------------------------------------------------

    def spread(self) -> Spread:
        """Write entries for a while, strike some nodes half-way, and look at what came of it."""
        world, settings = self.world, self.settings
        time_, end_s = world.timeline, world.timeline.now_s + settings.seconds
        world.seen = Seen()
        for node in self._lagging:
            time_.later(self._luck.uniform(0.0, NAP_EVERY_S), self._nap, node)
        for seat in self.peers[:SEATS_MAX]:
            time_.later(self._luck.uniform(0.0, PRESENCE_S), self._be_present, seat)
        lagging = {node.peer for node in self._lagging}
        able = [peer for peer in self.peers if peer not in lagging]
        self._dead = self._luck.sample(able, settings.struck)
        # Who dies with an entry that nobody has yet takes it along: that would be no loss of ours.
        writers = [peer for peer in self.peers if peer not in self._dead]
        time_.later(settings.seconds / 2, self._strike)
        while time_.now_s < end_s:
            if time_.now_s <= end_s - SETTLE_S:
                text = f"entry {len(self._ids)}".encode()
                self._ids.append(world.write(self._luck.choice(writers), text))
            time_.run_until(min(end_s, time_.now_s + WRITE_S / 2))
            self._look()
            time_.run_until(min(end_s, time_.now_s + WRITE_S / 2))
            self._look()
        return self._spread_outcome()

    def _nap(self, node: GossipNode) -> None:
        node.nap(NAP_S)
        self.world.timeline.later(NAP_EVERY_S, self._nap, node)

    def _be_present(self, peer: PeerId) -> None:
        if self._node(peer).is_alive:
            now_s = self.world.timeline.now_s
            self.world.write(peer, b"presence " + peer + f" {now_s:.0f}".encode())
            self.world.timeline.later(PRESENCE_S, self._be_present, peer)

    def _strike(self) -> None:
        self._watch.died_s = self.world.timeline.now_s
        for peer in self._dead:
            self._node(peer).vanish()

    def _look(self) -> None:
        left = [peer for peer in self._dead if peer not in self._watch.found_s]
        if left and self._watch.died_s < math.inf:
            held = {p for node in self._living() for p in node.gossip.views.neighbours}
            now_s = self.world.timeline.now_s
            self._watch.found_s.update((peer, now_s) for peer in left if peer not in held)

    def _lags_s(self) -> list[float]:
        """For each entry, until enough of those who live to the end hold it; inf if never."""
        need = math.ceil(self.settings.hold_share * len(self._living()))
        lags = list[float]()
        for entry_id in self._ids:
            held = self.world.holding[entry_id]
            first_s = min(at_s for at_s, _ in held)
            times = sorted(at_s for at_s, peer in held if self._node(peer).is_alive)
            lags.append(times[need - 1] - first_s if len(times) >= need else math.inf)
        return sorted(lags)

    def _spread_outcome(self) -> Spread:
        world, settings, lags = self.world, self.settings, self._lags_s()
        nodes, living = list(world.nodes.values()), self._living()
        found = sorted(at_s - self._watch.died_s for at_s in self._watch.found_s.values())
        dead = set(self._dead)
        per_node_s = settings.nodes * settings.seconds
        duplicates = sum(node.gossip.spreading.duplicates for node in nodes)
        return Spread(
            nodes=settings.nodes,
            seed=self.seed,
            loss=settings.loss,
            entries=len(lags),
            lag_p50_s=_quantile(lags, 0.5),
            lag_p99_s=_quantile(lags, 0.99),
            lag_max_s=_quantile(lags, 1.0),
            unspread=sum(lag == math.inf for lag in lags),
            duplicates_per_entry=round(duplicates / len(nodes) / max(1, len(world.holding)), 3),
            suspicions=sum(node.gossip.swim.counts.suspicions for node in nodes),
            false_gone=sum(1 for _, by, peer in world.gone if peer not in dead and by not in dead),
            detected_p50_s=_quantile(found, 0.5),
            detected_max_s=_quantile(found, 1.0),
            undetected=len(self._dead) - len(found),
            bytes_per_node_s=round(world.seen.sent_bytes / per_node_s, 1),
            bytes_by_frame={
                kind: round(num / per_node_s, 1) for kind, num in world.seen.by_kind.most_common()
            },
            neighbours_mean=round(
                sum(len(node.gossip.views.neighbours) for node in living) / len(living), 2
            ),
            known_max=max(node.gossip.views.size for node in nodes),
            faults=len(world.faults),
            virtual_s=world.timeline.now_s,
            wall_s=round(time.perf_counter() - self._began_s, 2),
            cpu_s=round(time.process_time() - self._began_cpu_s, 2),
            trace_hash=world.trace_hash,
        )

    # Split and healed -----------------------------------------------------------------------------

    def heal(self, ways: int, *, entries: int = 100) -> Healed:
        """Split the swarm, let all sides write, and measure from the end of the split."""
        world, time_ = self.world, self.world.timeline
        sides = [self.peers[number::ways] for number in range(ways)]
        world.split(sides)
        for number in range(entries):
            side = sides[number % ways]
            world.write(self._luck.choice(side), f"split {number}".encode())
            time_.run_until(time_.now_s + SPLIT_S / entries)
        time_.run_until(time_.now_s + SETTLE_S)
        world.heal()
        world.seen = Seen()
        healed_s, apart = time_.now_s, len(self._roots())
        before = {peer: node.gossip.comparing.counts.begun for peer, node in world.nodes.items()}
        while len(self._roots()) > 1 and time_.now_s - healed_s < HEAL_S_MAX:
            time_.run_until(time_.now_s + 0.25)
        begun = [
            node.gossip.comparing.counts.begun - before[peer] for peer, node in world.nodes.items()
        ]
        after_s = time_.now_s - healed_s if len(self._roots()) == 1 else math.inf
        return Healed(
            nodes=self.settings.nodes,
            seed=self.seed,
            loss=self.settings.loss,
            ways=ways,
            entries=entries,
            apart=apart,
            equal_after_s=after_s,
            periods=round(after_s / world.network.gossip.exchange_s, 2),
            exchanges_mean=round(sum(begun) / len(begun), 2),
            exchanges_max=max(begun),
            bytes_per_node=round(world.seen.sent_bytes / len(begun)),
            faults=len(world.faults),
            wall_s=round(time.perf_counter() - self._began_s, 2),
            cpu_s=round(time.process_time() - self._began_cpu_s, 2),
            trace_hash=world.trace_hash,
        )

    def _roots(self) -> set[tuple[bytes, ...]]:
        return {node.book.bucket_digests() for node in self.world.nodes.values()}


def _quantile(ascending: list[float], share: float) -> float:
    if not ascending:
        return math.inf
    return round(ascending[math.ceil(share * len(ascending)) - 1], 3)


def calm(nodes: int, *, loss: float, seconds: float) -> GossipingSettings:
    """A twentieth each is struck and lags."""
    few = nodes // 20
    return GossipingSettings(nodes=nodes, seconds=seconds, loss=loss, struck=few, lagging=few)


def table(seed: int, *, loss: float, seconds: float) -> list[Spread]:
    """The same swarm in three sizes."""
    return [
        Gossiping(calm(nodes, loss=loss, seconds=seconds), seed).spread()
        for nodes in (10, 100, 1000)
    ]


app = typer.Typer(add_completion=False)


@app.command()
def main(
    nodes: Annotated[int, typer.Option(help="Number of nodes.", min=2)] = 1000,
    loss: Annotated[
        float, typer.Option(help="Share of the messages that are lost.", min=0.0, max=0.9)
    ] = 0.2,
    seconds: Annotated[
        float,
        typer.Option(help="Virtual seconds to simulate.", min=2.0 * SETTLE_S, max=SECONDS_MAX),
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.", min=0)] = 0,
    split: Annotated[
        int,
        typer.Option(
            help="Number of partitions that the swarm is cut into, and that heal again.",
            min=0,
            max=8,
        ),
    ] = 0,
    is_table: Annotated[
        bool, typer.Option("--table", help="Measure 10, 100 and 1000 nodes and print a table.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per swarm.")
    ] = False,
) -> None:
    """Simulate gossip among many nodes: delay, cost, partitions and failed nodes."""
    for name, value in (("--loss", loss), ("--seconds", seconds)):
        if math.isnan(value):
            raise typer.BadParameter("nan is no number", param_hint=name)
    if split > nodes:
        raise typer.BadParameter(f"{nodes} nodes are no {split} parts", param_hint="--split")
    outcomes: list[Spread] | list[Healed]
    with uncollected():
        if is_table:
            outcomes = table(seed, loss=loss, seconds=seconds)
        elif split > 1:
            settings = GossipingSettings(nodes=nodes, loss=loss, struck=0, lagging=0)
            outcomes = [Gossiping(settings, seed).heal(split)]
        else:
            outcomes = [Gossiping(calm(nodes, loss=loss, seconds=seconds), seed).spread()]
    for outcome in outcomes:
        told = {**asdict(outcome), "is_kept": outcome.is_kept}
        typer.echo(json_text(told) if as_json else "\n".join(f"{k}: {v}" for k, v in told.items()))
    raise typer.Exit(0 if all(outcome.is_kept for outcome in outcomes) else 1)


if __name__ == "__main__":
    app()
