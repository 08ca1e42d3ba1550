"""A crowd: a thousand nodes, of which some seal rounds and all others follow, through few links.

    python -m sim.crowds.crowd --nodes 1000 --seconds 60 --seed 0 --json

The shipped core, with its liveness and its relay, where nobody could be linked with everybody.
Members are linked with each other; everybody is with some others, drawn once, and with two in a
ring. Half-way some nodes die without a word, so that their links are silent, and some freeze, whose
links stay as they are. What gossip is for must come of it: who runs comes to know every sealed
round soon after it was first final anywhere; who was struck is suspected by all that are still
linked with it; no member that runs loses its seat.
"""

import math
import random
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import typer

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Confirmed, Record, Synced
from node.text.shown import json_text
from protocol.identity import PeerId
from protocol.manifest import TimingSpec
from sim.world.links import Link
from sim.world.nodes import Device, peer_named
from sim.world.quiet import hush, uncollected
from sim.world.toy_run import toy_run
from sim.world.world import SimNode, World, WorldSettings

TRAINS = Device(train_s=(6.0, 9.0))
FOLLOWS = Device(ready_s=(1e9, 1e9))
"""Its trainer is never up, so that it asks for no seat."""

SECONDS_MAX = 86_400.0

LINK = Link(latency_s=(0.02, 0.12))
LIVENESS = TimingSpec(deadline_floor_s=2.0, deadline_cap_s=20.0, heartbeat_s=1.0, suspect_s=4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdSettings:
    """Of `nodes` so many are `members`; each draws so many `links`. `dead` and `frozen` nodes are
    struck at half time, a quarter of the members among them at most.

    `heard_within_s` is how long after a seal everybody who runs knows it; what was sealed later
    than that before the end is not asked for.
    """

    nodes: int = 1000
    seconds: float = 60.0
    members: int = 16
    links: int = 4
    dead: int = 50
    frozen: int = 50
    heard_within_s: float = 15.0
    link: Link = LINK
    timing: TimingSpec = LIVENESS

    def __post_init__(self) -> None:
        if not 1 <= self.members <= min(64, self.nodes):
            raise ValueError(f"members: {self.members} of {self.nodes} nodes")
        if self.dead + self.frozen > self.nodes // 2:
            raise ValueError("more than half of the crowd would be struck")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdOutcome:
    """What came of it. Lags are in virtual seconds from the first final seal of a round."""

    nodes: int
    seed: int
    virtual_s: float
    wall_s: float
    cpu_s: float
    events: int
    rounds_sealed: int
    lag_p50_s: float
    lag_max_s: float
    unheard: tuple[str, ...]
    unsuspected: tuple[str, ...]
    dropped: tuple[str, ...]
    accused: int
    trace_hash: str

    @property
    def is_kept(self) -> bool:
        """Whether all promises were kept, and there was anything to hear of."""
        broken = self.unheard or self.unsuspected or self.dropped or self.accused
        return self.rounds_sealed > 0 and not broken


@dataclass(slots=True)
class _Heard:
    """When a round was first final anywhere, and when each node came to it."""

    first_s: dict[int, float] = field(default_factory=dict)
    nodes: dict[PeerId, list[tuple[float, int]]] = field(default_factory=dict)

    def saw(self, record: Record) -> None:
        """A tracer of the world."""
        if isinstance(record, Adopted | Confirmed | Synced):
            index = record.certificate.value.round
            self.first_s.setdefault(index, record.at_s)
            self.nodes.setdefault(record.peer, []).append((record.at_s, index))


class Crowd:
    """One crowd, built and struck from a seed. `run` once."""

    def __init__(self, settings: CrowdSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self._luck = random.Random(f"{seed}/crowd")
        self.peers = [peer_named(f"crowd-{number}") for number in range(settings.nodes)]
        self.members = self.peers[: settings.members]
        manifest = toy_run(self.peers[0], rounds=10**6, cells=2, timing=settings.timing)
        silent = WorldSettings(linger_s=math.inf)
        self.world = World(manifest, seed=seed, link=settings.link, settings=silent)
        self.heard = _Heard()
        self.world.tracers.append(self.heard.saw)
        self.dead: list[PeerId] = []
        self.frozen: list[PeerId] = []
        self.neighbours = self._draw_links()

    def _draw_links(self) -> dict[PeerId, set[PeerId]]:
        drawn: dict[PeerId, set[PeerId]] = {}
        for number, peer in enumerate(self.peers):
            drawn[peer] = {
                *self._luck.sample(self.peers, self.settings.links),
                self.peers[number - 1],
            }
            drawn[peer].discard(peer)
        for member in self.members:
            drawn[member].update(other for other in self.members if other != member)
        return drawn

    def run(self) -> CrowdOutcome:
        """Play it, and look at what came of it."""
        world, settings = self.world, self.settings
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        config = round_config(world.manifest)
        for peer in self.peers:
            is_founder, is_member = peer == self.peers[0], peer in self.members
            device = TRAINS if is_member else FOLLOWS
            waits = replace(config, wait_seats=len(self.members) - 1) if is_founder else config
            world.join(peer, config=waits, device=device, neighbours=self.neighbours[peer])
        world.later(settings.seconds / 2, self._strike)
        world.later(settings.seconds, lambda: None)
        with uncollected():
            world.run(lambda: world.now_s >= settings.seconds, 2 * settings.seconds, every_s=0.5)
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        return self._judged(wall_s, cpu_s)

    def _strike(self) -> None:
        """Who dies says nothing: its links stand until they are found to be silent."""
        settings = self.settings
        spared = set(self.members[len(self.members) // 4 :])
        open_to = [peer for peer in self.peers[1:] if peer not in spared]
        struck = self._luck.sample(open_to, settings.dead + settings.frozen)
        self.dead, self.frozen = struck[: settings.dead], struck[settings.dead :]
        for peer in self.dead:
            for other in sorted(self.world.nodes[peer].wires):
                self.world.block(peer, other)
                self.world.block(other, peer)
            self.world.crash(peer)
        for peer in self.frozen:
            self.world.freeze(peer)

    # What came of it ----------------------------------------------------------------------------

    def _running(self) -> list[SimNode]:
        struck = {*self.dead, *self.frozen}
        return [self.world.nodes[peer] for peer in self.peers if peer not in struck]

    def _judged(self, wall_s: float, cpu_s: float) -> CrowdOutcome:
        world, lags, unheard = self.world, list[float](), list[str]()
        due_s = world.now_s - self.settings.heard_within_s
        for node in self._running():
            heard = self.heard.nodes.get(node.peer, [])
            for index, first_s in self.heard.first_s.items():
                lag_s = (
                    min((at_s for at_s, known in heard if known >= index), default=math.inf)
                    - first_s
                )
                if lag_s < math.inf:
                    lags.append(lag_s)
                if lag_s > self.settings.heard_within_s and first_s <= due_s:
                    unheard.append(f"{self._name(node.peer)}: round {index}, {lag_s:.1f} s")
        return CrowdOutcome(
            nodes=self.settings.nodes,
            seed=self.seed,
            virtual_s=world.now_s,
            wall_s=round(wall_s, 2),
            cpu_s=round(cpu_s, 2),
            events=world.events,
            rounds_sealed=len(self.heard.first_s),
            lag_p50_s=round(statistics.median(lags), 3) if lags else math.inf,
            lag_max_s=round(max(lags), 3) if lags else math.inf,
            unheard=tuple(unheard),
            unsuspected=tuple(self._unsuspected()),
            dropped=tuple(self._dropped()),
            accused=len(world.faults),
            trace_hash=world.trace_hash,
        )

    def _unsuspected(self) -> list[str]:
        """Who was struck, and is neither suspected by somebody linked with it nor known as gone."""
        found, now_s = [], self.world.now_s
        for peer in sorted({*self.dead, *self.frozen}):
            for node in self._running():
                suspects = node.core.liveness.suspects
                if peer in node.wires and not suspects((peer,), node.clock.own_s(now_s)):
                    found.append(f"{self._name(peer)} by {self._name(node.peer)}")
        return found

    def _dropped(self) -> list[str]:
        """Members that run and have no seat in the newest roster."""
        newest = max(
            (node.core.machine.head for node in self._running()),
            key=lambda head: head.round,
        )
        running = {node.peer for node in self._running()}
        return [
            self._name(peer)
            for peer in self.members
            if peer in running and peer not in newest.roster.members
        ]

    def _name(self, peer: PeerId) -> str:
        return f"node {self.peers.index(peer)}"


def main(
    nodes: Annotated[int, typer.Option(min=8)] = 1000,
    seconds: Annotated[float, typer.Option(min=1.0, max=SECONDS_MAX)] = 60.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    members: Annotated[int, typer.Option(min=1, max=64)] = 16,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """A crowd in virtual time: liveness and gossip of the shipped nodes."""
    if members > nodes:
        raise typer.BadParameter(f"{nodes} nodes are no {members} members", param_hint="--members")
    hush()
    struck = nodes // 20
    settings = CrowdSettings(
        nodes=nodes, seconds=seconds, members=members, dead=struck, frozen=struck
    )
    outcome = Crowd(settings, seed).run()
    told = {name: value for name, value in asdict(outcome).items() if as_json or value != ()}
    typer.echo(json_text(told) if as_json else "\n".join(f"{k}: {v}" for k, v in told.items()))
    raise typer.Exit(0 if outcome.is_kept else 1)


if __name__ == "__main__":
    typer.run(main)
