"""Gossip by itself, measured: how fast entries spread, splits heal, the dead are found; the cost.

    python -m sim.crowds.gossiping --nodes 1000 --loss 0.2 --seconds 60 --seed 0 --json
    python -m sim.crowds.gossiping --nodes 100 --split 3        a network in three parts, healed
    python -m sim.crowds.gossiping --table                      control bytes at 10, 100 and 1000
    nodes

Everybody knows three others when it comes. Then entries are written anywhere, some nodes lag (they
stall now and then), and half-way some die or freeze without a word. Entries of presence are written
by the seated alone, so the traffic of a swarm has the size of views and groups, not its own.
"""

import math
import random
import time
from dataclasses import asdict, dataclass, field
from typing import Annotated

import typer

from node.text.shown import json_text
from protocol.identity import PeerId
from sim.crowds.gossip_world import GossipNetwork, GossipNode, GossipWorld, Seen
from sim.world.uncollected import uncollected

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
