"""Real nodes on this machine: started, listened to, ended; and the story of what became of them.

What is done to them is the caller's; which fault comes next, and to whom, is a function of the seed
and of who is well.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import trio

from node.processes.exit_codes import EXIT_REFUSED
from protocol.errors import StateError
from sim.local.local_node import ALL_HERE_FILE, LocalNode
from sim.local.options import LocalOptions
from sim.processes import events
from sim.processes.events import Event
from sim.processes.node_process import ChangeBell, NodeProcess, end_nodes, log_tail, node_name
from sim.processes.shaper import Shape, Shaper, free_port

Part = Literal["node", "network", "trainer"]
Move = Literal["leave", "return", "join"]

DOWN_S = (0.5, 8.0)
"""Between a kill and the next start: shorter than a suspicion, and longer."""

STILL_S = (1.0, 15.0)
EXTRA_NODES_MAX = 2
"""Churn adds at most so many to those that began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFault:
    """One fault: `victim` is a node's name, `lasts_s` until it is undone."""

    kind: str
    victim: str
    lasts_s: float = 0.0
    part: Part = "node"
    """Of a kill: both processes, or one of them."""

    move: Move = "leave"
    """Of churn."""

    beside: tuple[str, ...] = ()
    """Of a partition: who is on the victim's side, which is the smaller one."""

    @property
    def victims(self) -> tuple[str, ...]:
        """All to whom it is done."""
        return (self.victim, *self.beside)

    def __str__(self) -> str:
        match self.kind:
            case "kill":
                what = {"node": "", "network": "'s network process", "trainer": "'s trainer"}
                return f"kill {self.victim}{what[self.part]}, back after {self.lasts_s:.1f} s"
            case "churn":
                return f"{self.victim} {self.move}s"
            case "freeze" | "stall":
                return f"{self.kind} {self.victim} for {self.lasts_s:.1f} s"
            case "partition":
                side = " and ".join(self.victims)
                return f"partition of {side} from the others for {self.lasts_s:.1f} s"
            case _:
                return f"{self.kind} {self.victim}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The swarm as one sees it from outside. Names are in the order of the first start."""

    well: Sequence[str]
    """Members of the round under way that run, and to which nothing is done now."""

    running: Sequence[str]
    """Nodes whose processes run and to which nothing is done now."""

    gone: Sequence[str]
    """Nodes that have left and may come back."""

    num_here: int
    """Nodes that have not left, however they are."""

    members: int
    """On the roster of the newest seal."""

    num_begun: int
    """Nodes that began with the run."""


class ProcessChaos:
    """A stream of faults. Every call draws equally often, whatever becomes of it."""

    def __init__(self, kinds: Sequence[str], *, seed: int, is_reckless: bool = False) -> None:
        self._kinds = tuple(kinds)
        self._stream = random.Random(f"{seed}/chaos")
        self._is_reckless = is_reckless

    def next(self, now: Situation) -> ProcessFault | None:
        """The fault that is due; None where it would cost the quorum, or there is nobody left."""
        kind = self._kinds[int(self._stream.random() * len(self._kinds))]
        whom, length, part, move = (self._stream.random() for _ in range(4))
        if kind == "churn":
            chosen = self._move(now, move)
            if chosen == "join":
                return ProcessFault(kind=kind, victim="", move="join")
            if chosen == "return":
                return ProcessFault(kind=kind, victim=_pick(now.gone, whom), move="return")
        candidates = now.running if self._is_reckless else now.well
        if not candidates or not (self._is_reckless or can_spare_one(now)):
            return None
        victim = _pick(candidates, whom)
        match kind:
            case "kill":
                parts: tuple[Part, ...] = ("node", "network", "trainer")
                down_s = _between(DOWN_S, length)
                return ProcessFault(
                    kind=kind, victim=victim, lasts_s=down_s, part=parts[int(part * len(parts))]
                )
            case "freeze" | "stall":
                return ProcessFault(kind=kind, victim=victim, lasts_s=_between(STILL_S, length))
            case "partition":
                others = [name for name in candidates if name != victim]
                beside = _side(others, int(part * self._most(now)), whom)
                lasts_s = _between(STILL_S, length)
                return ProcessFault(kind=kind, victim=victim, lasts_s=lasts_s, beside=beside)
            case _:
                return ProcessFault(kind=kind, victim=victim)

    def _most(self, now: Situation) -> int:
        """How many a partition may cut off: a majority of the members stays together and well, or
        where nothing matters, half of all are here."""
        if self._is_reckless:
            return max(1, len(now.running) // 2)
        return max(1, len(now.well) - (now.members // 2 + 1))

    def _move(self, now: Situation, draw: float) -> Move:
        """More leave where there are many, and more come where there are few."""
        if now.num_here >= now.num_begun + EXTRA_NODES_MAX or draw < 0.4:
            return "leave"
        return "return" if now.gone and draw < 0.7 else "join"


def can_spare_one(now: Situation) -> bool:
    """Whether without one of those that are well, a majority of the members is still well."""
    return len(now.well) - 1 >= now.members // 2 + 1


def _side(names: Sequence[str], count: int, draw: float) -> tuple[str, ...]:
    """So many of them, in their order."""
    chosen = random.Random(draw).sample(range(len(names)), min(count, len(names)))
    return tuple(names[index] for index in sorted(chosen))


def _pick(names: Collection[str], draw: float) -> str:
    return list(names)[int(draw * len(names))]


def _between(span: tuple[float, float], draw: float) -> float:
    return span[0] + draw * (span[1] - span[0])


PACES_KEPT = 4096

_PACE_SEALS = 8
"""Seals that the pace is told by."""


@dataclass(slots=True, kw_only=True)
class StoryFault:
    """A fault that was dealt. Times are seconds since the command was given."""

    fault: ProcessFault
    at_s: float
    undone_s: float | None = None
    next_seal_s: float | None = None
    """Until others than the victim sealed a round that they had not before."""

    back_s: float | None = None
    """From its undoing until the victim sealed, or had a newer state from others."""

    newest: int = 0
    """The last sealed round when it was dealt."""


@dataclass(frozen=True, slots=True)
class Death:
    """A node that ended though nobody told it to, or did not end when it had to."""

    name: str
    at_s: float
    why: str


@dataclass(slots=True)
class Story:
    """Everything that is known of a run while it goes on."""

    num_begun: int
    tell: Callable[[float, str], None]
    """Takes a line about what happened, and when."""

    also: Callable[[LocalNode, Event, float], None] = lambda node, event, now_s: None
    """Takes each event of a node, and when it came."""

    nodes: dict[str, LocalNode] = field(default_factory=dict)
    seals: list[tuple[float, int]] = field(default_factory=list)
    """When a round was sealed first, by anybody, and which."""

    dealt: list[StoryFault] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    num_spared: int = 0
    """Faults that were not dealt, for the quorum's sake."""

    def rounds_within(self, seconds: float) -> int:
        """How many rounds take so long, at the pace of the last ones."""
        last = self.seals[-_PACE_SEALS:]
        if len(last) < 2:
            return 0
        (first_s, first), (last_s, newest) = last[0], last[-1]
        return math.ceil((newest - first) * seconds / max(last_s - first_s, 1e-3))

    @property
    def newest(self) -> int:
        """The last sealed round."""
        return self.seals[-1][1] if self.seals else 0

    @property
    def banned(self) -> set[str]:
        """Peers that the seals of some node ban."""
        return {peer for node in self.nodes.values() for peer in node.banned}

    @property
    def running(self) -> list[LocalNode]:
        """Nodes that take part, run, and to which nothing is done now."""
        nodes = (node for node in self.nodes.values() if not node.is_checker)
        return [node for node in nodes if node.status == "running"]

    def _name_of(self, peer: str) -> str:
        return next((n.name for n in self.nodes.values() if n.peer == peer), peer)

    def situation(self) -> Situation:
        """For the choice of the next fault."""
        # A member hears of its seat when a round begins: of the newest sealed one, long ago.
        members = [n for n in self.running if n.has_sealed_in_life and n.seated >= self.newest]
        return Situation(
            well=[node.name for node in members],
            running=[node.name for node in self.running],
            gone=[node.name for node in self.nodes.values() if node.status == "left"],
            num_here=sum(
                n.status not in ("left", "dead") and not n.is_checker for n in self.nodes.values()
            ),
            members=max(
                (n.members for n in self.nodes.values() if n.sealed == self.newest), default=0
            ),
            num_begun=self.num_begun,
        )

    def disturbed(self) -> list[float]:
        """When something was done to a node, or undone."""
        undone = [dealt.undone_s for dealt in self.dealt if dealt.undone_s is not None]
        return [*(dealt.at_s for dealt in self.dealt), *undone]

    def heard(self, node: LocalNode, event: Event, now_s: float) -> None:
        """Take an event of a node in."""
        self.also(node, event, now_s)
        match event:
            case events.Listening():
                node.peer = event.peer
                node.address = event.addresses[0] if event.addresses else ""
                if node.status == "starting":
                    node.status = "running"
            case events.TrainerStarted():
                node.pids.append(event.pid)
            case events.MethodChosen():
                node.paces.append(event)
                del node.paces[:-PACES_KEPT]
            case events.RoundSealed():
                node.members, node.bytes_sent = event.members, event.bytes_up
                node.train_loss = event.train_loss
                self._moved(node, event.round, now_s)
            case events.LinkOpened() | events.LinkClosed():
                node.num_linked = len(event.linked)
            case events.Seated():
                node.seated = event.round
            case events.StateFetched():
                self._moved(node, event.round, now_s)
            case events.Finished():
                node.status = "finished"
            case events.Resynced():
                self.tell(now_s, f"{node.name} has another state than the swarm: {event.reason}")
            case events.FaultSeen():
                self.tell(now_s, f"{node.name} reports a fault of a peer: {event.reason}")
            case events.PeerConvicted():
                node.convicted.add(event.peer)
            case events.PeerBanned():
                if event.peer not in self.banned:
                    self.tell(
                        now_s, f"{self._name_of(event.peer)} is banned by round {event.round}"
                    )
                node.banned.add(event.peer)
            case events.Failed():
                node.error = f"{event.kind}: {event.message}"
            case _:
                pass

    def dealing(self, fault: ProcessFault, now_s: float) -> StoryFault:
        """A fault is dealt now."""
        dealt = StoryFault(fault=fault, at_s=now_s, newest=self.newest)
        self.dealt.append(dealt)
        self.tell(now_s, str(fault))
        return dealt

    def died(self, node: LocalNode, why: str, now_s: float) -> None:
        """A node ended that nobody had told to."""
        node.status = "dead"
        self.deaths.append(Death(node.name, now_s, why))
        self.tell(now_s, f"{node.name} died by itself: {why.splitlines()[0]}")

    def came_late(self, node: LocalNode, now_s: float) -> None:
        """A latecomer found nobody any more: no fault of its own."""
        node.status = "dead"
        self.tell(now_s, f"{node.name} came when the run was over")

    def _moved(self, node: LocalNode, round_index: int, now_s: float) -> None:
        node.sealed = max(node.sealed, round_index)
        node.has_sealed_in_life = True
        if round_index > self.newest:
            self.seals.append((now_s, round_index))
        for dealt in self.dealt:
            is_victim = node.name in dealt.fault.victims
            if dealt.next_seal_s is None and not is_victim and round_index > dealt.newest:
                dealt.next_seal_s = now_s - dealt.at_s
            if dealt.back_s is None and is_victim and dealt.undone_s is not None:
                dealt.back_s = now_s - dealt.undone_s


BOOTSTRAP_MAX = 3
STARTING_MAX = 4
"""So many load their libraries at a time: a dozen on two cores would leave the founder no time to
answer those that are through."""


Told = Callable[[list[str]], list[str]]
"""Of the addresses of all that run, in the order of their start: those that a new node is told."""


def first_ones(addresses: list[str]) -> list[str]:
    """The founder's address, and those of the next that came."""
    return addresses[:BOOTSTRAP_MAX]


class LocalSwarm(ChangeBell):
    """The nodes of one run. `begin` it in a nursery that stays open for as long as they live, and
    `end_all` in a `finally`; the story tells what becomes of them."""

    def __init__(
        self,
        options: LocalOptions,
        story: Story,
        now_s: Callable[[], float],
        told: Told = first_ones,
    ) -> None:
        """`now_s` are seconds since the command was given."""
        super().__init__()
        self.story = story
        self.shaper: Shaper | None = None
        self._options = options
        self._now_s = now_s
        self._told = told
        self._ports = random.Random(f"{options.seed}/ports")
        self._nursery: trio.Nursery | None = None
        self._has_started = False

    @property
    def manifest(self) -> Path:
        """The signed manifest, as a file for all nodes."""
        return self._options.folder / "manifest.msgpack"

    async def begin(self, nursery: trio.Nursery, *, within_s: float) -> None:
        """Start all that begin with the run, and wait for the first seal of each.

        Raises StateError if one of them dies, or has none after `within_s` seconds.
        """
        self._nursery = nursery
        if self._options.needs_shaper:
            shape = self._options.shape or Shape()
            self.shaper = Shaper(shape, seed=self._options.seed, nursery=nursery)
        nodes = self.story.nodes
        with trio.move_on_after(within_s) as scope:
            founder = await self.add()
            await self.until(lambda: founder.address != "")
            for _ in range(self._options.peers - 1):
                await self.until(
                    lambda: sum(not node.address for node in nodes.values()) < STARTING_MAX
                )
                await self.add()
            others = self._options.peers - 1
            await self.until(
                lambda: (
                    founder.num_linked == others
                    and all(node.trainer_pid is not None for node in nodes.values())
                )
            )
            (self._options.folder / ALL_HERE_FILE).touch()
            await self.until(lambda: all(node.sealed for node in nodes.values()))
            self._has_started = True
        if scope.cancelled_caught:
            late = [node.name for node in nodes.values() if not node.sealed]
            raise StateError(f"no first seal at {', '.join(late)} within {within_s:.0f} s")

    async def add(self, *, is_checker: bool = False) -> LocalNode:
        """A new node, told of others that run."""
        nodes, name = self.story.nodes, node_name(len(self.story.nodes))
        running = [one.address for one in nodes.values() if one.address and _is_up(one)]
        told = tuple(self._told(running))
        node = LocalNode(name, self._options.folder, told, is_checker=is_checker)
        attack, peers = self._options.attack, self._options.peers
        node.is_liar = attack is not None and peers - attack.count <= len(nodes) < peers
        if self.shaper is not None:
            taken = {port.target for port in self.shaper.ports.values()}
            target = free_port(self._ports, taken.__contains__)
            rates = self._options.rates
            rate = rates[len(nodes)] if len(nodes) < len(rates) else None
            node.port = await self.shaper.add_port(name, target, rate)
        nodes[name] = node
        await self.start(node)
        return node

    async def start(self, node: LocalNode) -> None:
        """The next life of a node."""
        process = await node.start(self._options, self.manifest)
        assert self._nursery is not None
        self._nursery.start_soon(self._listen_to, node, process)
        self.tell_change()

    async def _listen_to(self, node: LocalNode, process: NodeProcess) -> None:
        async for event in process.events():
            self.story.heard(node, event, self._now_s())
            self.tell_change()
        status = await process.exit_status()
        if node.process is process and not node.is_meant_to_end:
            is_done = node.status == "finished" and status == 0
            if node.is_liar and status == EXIT_REFUSED:
                node.status = "left"  # It is banned, and obeys.
            elif not is_done:
                why = node.error or f"it ended with status {status}"
                why = f"{why}; the end of {process.log}:\n{log_tail(process.log)}"
                if self.is_over and node.is_checker and not node.has_sealed_in_life:
                    self.story.came_late(node, self._now_s())
                else:
                    self.story.died(node, why, self._now_s())
                if not self._has_started:
                    # Nobody has been harmed yet: it is not worth waiting for the others.
                    raise StateError(f"{node.name} died at the start: {why}")
        self.tell_change()

    @property
    def is_over(self) -> bool:
        """Whether the last round is sealed."""
        rounds = self._options.rounds
        return rounds is not None and self.story.newest >= rounds

    async def end_all(self) -> None:
        """End every process, frozen ones as well; runs to its end even when cancelled."""
        nodes = self.story.nodes.values()
        for node in nodes:
            node.is_meant_to_end = True
        await end_nodes(node.process for node in nodes)


def _is_up(node: LocalNode) -> bool:
    return node.status in ("running", "starting")
