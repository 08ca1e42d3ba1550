"""The parent's picture of its swarm, folded from the nodes' events. Pure: times are arguments."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sim.processes import events
from sim.processes.events import Event
from sim.processes.node_process import node_name

Role = Literal["founder", "peer", "latecomer"]
Status = Literal["starting", "training", "finished", "killed"]

TOLD_LINES_KEPT = 200
"""The display shows a few of these lines; no demo that goes well tells a hundred."""

FAULTS_KEPT = 100


@dataclass(slots=True, kw_only=True)
class NodeView:
    """One node as its parent sees it."""

    name: str
    role: Role
    peer: str = ""
    address: str = ""
    network_pid: int | None = None
    trainer_pid: int | None = None
    linked: tuple[str, ...] = ()
    ever_linked: set[str] = field(default_factory=set)
    status: Status = "starting"
    round: int = 0
    phase: str = ""
    attempt: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    sealed: dict[int, events.RoundSealed] = field(default_factory=dict)
    validations: dict[int, float] = field(default_factory=dict)
    cells_from: dict[str, int] = field(default_factory=dict)
    """Cells of others' contributions that arrived, per sending peer."""

    parts_rounds_from: dict[str, set[int]] = field(default_factory=dict)
    synced_round: int | None = None
    seated_round: int | None = None
    """The first round that it was on the roster of."""

    num_resyncs: int = 0
    checkpoint: str | None = None
    has_ended: bool = False
    """Whether its network process is gone."""

    error: str | None = None

    @property
    def pids(self) -> list[int]:
        """The processes that this node is known to have had."""
        return [pid for pid in (self.network_pid, self.trainer_pid) if pid is not None]

    @property
    def last_validation(self) -> float | None:
        """The newest validation loss."""
        return self.validations[max(self.validations)] if self.validations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRound:
    """A round as the first node to seal it told."""

    round: int
    at_s: float
    by: str
    event: events.RoundSealed

    @property
    def is_carried(self) -> bool:
        """Whether nobody's contribution is in it."""
        return not self.event.listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    """Who was killed, when, and in which round and attempt its parts were on their way."""

    name: str
    peer: str
    round: int
    attempt: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFault:
    """What one node says about another, by names."""

    by: str
    of: str
    reason: str


@dataclass(slots=True)
class SwarmView:
    """All nodes of a demo by name, and the rounds that they sealed.

    `fold` is the only way in, apart from `add` and `kill`, which tell what the parent itself did.
    Times are seconds since the demo began.
    """

    num_rounds: int
    nodes: dict[str, NodeView] = field(default_factory=dict)
    rounds: dict[int, ShownRound] = field(default_factory=dict)
    sealed_at_s: dict[tuple[str, int], float] = field(default_factory=dict)
    killing: Killing | None = None
    faults: list[ShownFault] = field(default_factory=list)
    told: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=TOLD_LINES_KEPT))

    def add(self, role: Role) -> NodeView:
        """A node that is being started."""
        name = node_name(len(self.nodes))
        self.nodes[name] = NodeView(name=name, role=role)
        return self.nodes[name]

    def started(self, name: str, pid: int, now_s: float) -> None:
        """The process of a node runs."""
        node = self.nodes[name]
        node.network_pid = pid
        if node.role == "latecomer":
            self._tell(now_s, f"{name} comes late, and is told one address")

    def kill(self, name: str, now_s: float) -> None:
        """The parent has killed this node."""
        node = self.nodes[name]
        node.status = "killed"
        self.killing = Killing(
            name=name,
            peer=node.peer,
            round=node.round,
            attempt=node.attempt,
            at_s=now_s,
        )
        self._tell(
            now_s,
            f"{name} killed while its parts of round {node.round} were on their way",
        )

    def fold(self, name: str, event: Event, now_s: float) -> None:
        """Take in one event of a node. What a killed node had still in its pipe counts too."""
        node = self.nodes[name]
        match event:
            case events.Listening():
                node.peer = event.peer
                node.network_pid = event.pid or node.network_pid
                node.address = event.addresses[0] if event.addresses else ""
            case events.TrainerStarted():
                node.trainer_pid = event.pid
            case events.LinkOpened() | events.LinkClosed():
                node.linked = event.linked
                node.ever_linked.update(event.linked)
                self._tell_link(node, event, now_s)
            case events.PhaseEntered():
                node.round, node.phase, node.attempt = (
                    event.round,
                    event.phase,
                    event.attempt,
                )
                node.status = "training" if node.status == "starting" else node.status
            case events.PartsMoved():
                self._move_parts(node, event)
            case events.RoundSealed():
                self._seal(node, event, now_s)
            case events.Validated():
                # What is over fewer windows is no point of the same curve.
                if event.is_whole:
                    node.validations[event.round] = event.loss
            case events.StateFetched():
                node.synced_round = event.round
                if node.role == "latecomer":
                    self._tell(now_s, f"{name} has synchronised the state of round {event.round}")
            case events.Seated():
                if node.role == "latecomer" and node.seated_round is None:
                    self._tell(now_s, f"{name} has a seat from round {event.round}")
                node.seated_round = node.seated_round or event.round
            case events.Resynced():
                node.num_resyncs += 1
                self._tell(now_s, f"{name} takes a fresh copy of the state: {event.reason}")
            case events.Finished():
                node.checkpoint = event.checkpoint
                node.status = "killed" if node.status == "killed" else "finished"
            case events.FaultSeen():
                self._blame(node, event, now_s)
            case events.Failed():
                node.error = f"{event.kind}: {event.message}"
            case events.MethodChosen() | events.RoundTimed():
                pass  # The demo's rounds all have the manifest's steps.
            case events.PeerConvicted() | events.PeerBanned():
                pass  # Its nodes are friends; what one finds of another is told as a fault.
            case _:
                raise AssertionError(f"the view has no case for {type(event).__name__}")

    @property
    def founder(self) -> NodeView:
        """The node that the others start from."""
        return next(node for node in self.nodes.values() if node.role == "founder")

    @property
    def latecomer(self) -> NodeView | None:
        """The node that comes late, once it is there."""
        return next((node for node in self.nodes.values() if node.role == "latecomer"), None)

    @property
    def survivors(self) -> list[NodeView]:
        """Every node that was not killed."""
        return [node for node in self.nodes.values() if node.status != "killed"]

    @property
    def num_sealed(self) -> int:
        """Rounds that somebody sealed."""
        return len(self.rounds)

    @property
    def first_seal_s(self) -> float | None:
        """When the first round was sealed."""
        return min((sealed.at_s for sealed in self.rounds.values()), default=None)

    @property
    def last_sealed(self) -> ShownRound | None:
        """The newest round that somebody sealed."""
        return self.rounds[max(self.rounds)] if self.rounds else None

    @property
    def losses(self) -> dict[int, float]:
        """Validation loss by the round that made the anchor (0 is genesis), by the first node.

        Anchors are equal on all nodes, so are their losses but for the last bits.
        """
        merged: dict[int, float] = {}
        for node in reversed(self.nodes.values()):
            merged |= node.validations
        return dict(sorted(merged.items()))

    @property
    def bytes_up(self) -> int:
        """Sent by all nodes together."""
        return sum(node.bytes_up for node in self.nodes.values())

    @property
    def bytes_down(self) -> int:
        """Received by all nodes together."""
        return sum(node.bytes_down for node in self.nodes.values())

    @property
    def pids(self) -> list[int]:
        """All processes of all nodes."""
        return [pid for node in self.nodes.values() for pid in node.pids]

    def name_of(self, peer: str) -> str:
        """The name of the node with this peer id; the end of the id for a stranger."""
        return next((n.name for n in self.nodes.values() if n.peer == peer), peer[-8:])

    def names_of(self, peers: Iterable[str]) -> list[str]:
        """Names of several peers, sorted."""
        return sorted(self.name_of(peer) for peer in peers)

    def rounds_listed(self, name: str) -> list[int]:
        """The sealed rounds that hold this node's contribution, whoever tells so."""
        peer = self.nodes[name].peer
        return [index for index, sealed in self.rounds.items() if peer in sealed.event.listed]

    def exchanges(self) -> dict[str, list[str]]:
        """Per node, the nodes from which it received parts of contributions."""
        return {node.name: self.names_of(node.cells_from) for node in self.nodes.values()}

    def disagreements(self) -> list[int]:
        """Rounds for which two nodes told different seals: there must be none."""
        return [
            index
            for index in self.rounds
            if len({n.sealed[index].digest for n in self.nodes.values() if index in n.sealed}) > 1
        ]

    def links(self) -> dict[str, list[str]]:
        """Per node, the nodes to which it ever had a control stream."""
        return {node.name: self.names_of(node.ever_linked) for node in self.nodes.values()}

    def _blame(self, node: NodeView, event: events.FaultSeen, now_s: float) -> None:
        fault = ShownFault(by=node.name, of=self.name_of(event.peer), reason=event.reason)
        # A peer at fault may go on and on; the report of a demo needs no thousand of them.
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(fault)
        self._tell(now_s, f"{fault.by} reports a fault of {fault.of}: {fault.reason}")

    def _move_parts(self, node: NodeView, event: events.PartsMoved) -> None:
        if event.direction == "in":
            node.cells_from[event.peer] = node.cells_from.get(event.peer, 0) + event.cells
            node.parts_rounds_from.setdefault(event.peer, set()).add(event.round)

    def _seal(self, node: NodeView, event: events.RoundSealed, now_s: float) -> None:
        node.sealed[event.round] = event
        node.bytes_up, node.bytes_down = event.bytes_up, event.bytes_down
        self.sealed_at_s[node.name, event.round] = now_s
        if event.round not in self.rounds:
            sealed = ShownRound(round=event.round, at_s=now_s, by=node.name, event=event)
            self.rounds[event.round] = sealed
            if sealed.is_carried:
                self._tell(now_s, f"round {event.round} was carried: it lists nobody")
            late = self.latecomer
            if late is not None and self.rounds_listed(late.name) == [event.round]:
                self._tell(now_s, f"round {event.round} is the first to hold {late.name}'s work")

    def _tell_link(
        self, node: NodeView, event: events.LinkOpened | events.LinkClosed, now_s: float
    ) -> None:
        other = next((n for n in self.nodes.values() if n.peer == event.peer), None)
        # Each link shows at both ends, and is told once.
        if other is None or (isinstance(event, events.LinkOpened) and node.peer in other.linked):
            return
        if isinstance(event, events.LinkOpened):
            self._tell(now_s, f"{node.name} found {other.name}")
        elif other.status == "killed":
            self._tell(now_s, f"{node.name} lost {other.name}")

    def _tell(self, now_s: float, line: str) -> None:
        self.told.append((now_s, line))
