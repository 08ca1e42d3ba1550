"""What happened in a local run, as it happens: seals, faults, deaths."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from node.demo import events
from node.demo.events import Event
from sim.local.chaos import ProcessFault, Situation
from sim.local.local_node import LocalNode

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
        match event:
            case events.Listening():
                node.peer = event.peer
                node.address = event.addresses[0] if event.addresses else ""
                if node.status == "starting":
                    node.status = "running"
            case events.TrainerStarted():
                node.trainer_pid = event.pid
                node.pids.append(event.pid)
            case events.MethodChosen():
                node.paces.append(event)
                del node.paces[:-PACES_KEPT]
            case events.RoundSealed():
                node.members, node.bytes_sent = event.members, event.bytes_up
                node.train_loss = event.train_loss
                self._moved(node, event.round, now_s)
            case events.DemoLinked() | events.DemoUnlinked():
                node.num_linked = len(event.linked)
            case events.Seated():
                node.seated = event.round
            case events.DemoSynced():
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
