"""What came of a demo, in one object: for the table, the JSON line, the plot and the page."""

from dataclasses import asdict, dataclass

from protocol.manifest import RunManifest
from sim.demo import story
from sim.demo.measuring import YardstickResult
from sim.demo.options import DemoOptions
from sim.demo.swarm_view import SwarmView
from sim.processes.sitting import rounded

Curve = tuple[tuple[int, float], ...]
"""(round, validation loss in nats per byte); round 0 is genesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """One row of the table."""

    name: str
    peer: str
    role: str
    status: str
    rounds_listed: int
    bytes_up: int
    bytes_down: int
    validation: float | None
    resyncs: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """All of it: the picture of the swarm, and what the parent measured itself after the run."""

    options: DemoOptions
    manifest: RunManifest
    view: SwarmView
    measured: YardstickResult
    anchors_equal: bool | None
    """None where the demo failed before they were compared."""

    wall_s: float
    error: str | None

    @property
    def nodes(self) -> list[NodeResult]:
        """A row for each node."""
        return [
            NodeResult(
                name=node.name,
                peer=node.peer,
                role=node.role,
                status=node.status,
                rounds_listed=len(self.view.rounds_listed(node.name)),
                bytes_up=node.bytes_up,
                bytes_down=node.bytes_down,
                validation=node.last_validation,
                resyncs=node.num_resyncs,
                pids=tuple(node.pids),
            )
            for node in self.view.nodes.values()
        ]

    @property
    def killed(self) -> str | None:
        """The name of the node that was killed."""
        return None if self.view.killing is None else self.view.killing.name

    @property
    def late_round(self) -> int | None:
        """The first round that lists the latecomer's work."""
        late = self.view.latecomer
        return min(self.view.rounds_listed(late.name), default=None) if late else None

    @property
    def story(self) -> str:
        """What became of the killed node's round and of the latecomer, in words."""
        return story.tell(self.options, self.view)

    @property
    def swarm(self) -> Curve:
        """The swarm's losses."""
        return tuple(self.view.losses.items())

    @property
    def alone(self) -> Curve:
        """Those of one node that trained alone."""
        steps = self.manifest.inner.inner_steps
        return tuple((step // steps, loss) for step, loss in self.measured.alone_curve)

    @property
    def ahead(self) -> float | None:
        """How much lower the swarm's final loss is than that of one node alone."""
        if self.measured.loss_alone is None or self.measured.loss_last is None:
            return None
        return self.measured.loss_alone - self.measured.loss_last

    def as_json(self) -> dict[str, object]:
        """The keys of the last line under --json, and of result.json."""
        view, verdict = self.view, story.killed_round(self.view)
        return {
            "peers": self.options.peers,
            "rounds": self.options.rounds,
            "rounds_sealed": view.num_sealed,
            "rounds_carried": sum(sealed.is_carried for sealed in view.rounds.values()),
            "loss_first": self.measured.loss_first,
            "loss_last": self.measured.loss_last,
            "loss_alone": self.measured.loss_alone,
            "anchors_equal": self.anchors_equal,
            "killed": int(view.killing is not None),
            "killed_round": verdict and asdict(verdict),
            "joined_late": story.num_joined_late(view),
            "late_round": self.late_round,
            "pids": view.pids,
            "first_seal_s": rounded(view.first_seal_s, 2),
            "wall_s": rounded(self.wall_s, 2),
            "seed": self.options.seed,
            "run": self.manifest.digest.hex(),
            "nodes": [asdict(node) for node in self.nodes],
            "exchanges": view.exchanges(),
            "links": view.links(),
            "faults": [asdict(fault) for fault in view.faults],
            "disagreements": view.disagreements(),
            "sample": self.measured.text,
            "story": self.story,
            "folder": str(self.options.folder),
            "error": self.error,
        }
