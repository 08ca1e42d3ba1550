"""What came of a demo, in one object: for the table, the JSON line, the plot and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from node.demo import story
from node.demo.options import DemoOptions
from node.demo.story import KilledRound
from node.demo.swarm_view import NodeView, ShownFault, SwarmView
from node.demo.yardstick import YardstickResult
from protocol.manifest import RunManifest

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
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
    """All of it. Losses are nats per byte of held-out text; None where it was not measured."""

    options: DemoOptions
    manifest: RunManifest
    nodes: tuple[NodeResult, ...]
    rounds_sealed: int
    rounds_carried: int
    loss_first: float | None
    loss_last: float | None
    loss_alone: float | None
    anchors_equal: bool | None
    """None where the demo failed before they were compared."""

    killed: str | None
    killed_round: KilledRound | None
    story: str
    """What became of the killed node's round and of the latecomer, in words."""

    joined_late: int
    late_name: str | None
    late_round: int | None
    """The first round that lists the latecomer's work."""

    exchanges: Mapping[str, Sequence[str]]
    """Per node, those from which it received parts of contributions."""

    links: Mapping[str, Sequence[str]]
    faults: Sequence[ShownFault]
    disagreements: Sequence[int]
    first_seal_s: float | None
    wall_s: float
    swarm: Curve
    alone: Curve
    sample: str | None
    error: str | None

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process that the swarm had."""
        return tuple(pid for node in self.nodes for pid in node.pids)

    @property
    def ahead(self) -> float | None:
        """How much lower the swarm's final loss is than that of one node alone."""
        if self.loss_alone is None or self.loss_last is None:
            return None
        return self.loss_alone - self.loss_last

    def as_json(self) -> dict[str, Json]:
        """The keys of the last line under --json, and of result.json."""
        return {
            "peers": self.options.peers,
            "rounds": self.options.rounds,
            "rounds_sealed": self.rounds_sealed,
            "rounds_carried": self.rounds_carried,
            "loss_first": self.loss_first,
            "loss_last": self.loss_last,
            "loss_alone": self.loss_alone,
            "anchors_equal": self.anchors_equal,
            "killed": int(self.killed is not None),
            "killed_round": None if self.killed_round is None else asdict(self.killed_round),
            "joined_late": self.joined_late,
            "late_round": self.late_round,
            "pids": self.pids,
            "first_seal_s": _rounded(self.first_seal_s),
            "wall_s": _rounded(self.wall_s),
            "seed": self.options.seed,
            "run": self.manifest.digest.hex(),
            "nodes": [asdict(node) for node in self.nodes],
            "exchanges": self.exchanges,
            "links": self.links,
            "faults": [asdict(fault) for fault in self.faults],
            "disagreements": self.disagreements,
            "sample": self.sample,
            "story": self.story,
            "folder": str(self.options.folder),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the parent measured itself after the run."""

    anchors_equal: bool | None
    measured: YardstickResult
    wall_s: float
    error: str | None


def gather_result(
    options: DemoOptions, manifest: RunManifest, view: SwarmView, findings: Findings
) -> DemoResult:
    """Put the picture of the swarm and the measurements together."""
    late = next((node for node in view.nodes.values() if node.role == "latecomer"), None)
    late_rounds = view.rounds_listed(late.name) if late else []
    measured, steps = findings.measured, manifest.inner.inner_steps
    verdict = story.killed_round(view)
    return DemoResult(
        options=options,
        manifest=manifest,
        nodes=tuple(_row(view, node) for node in view.nodes.values()),
        rounds_sealed=view.num_sealed,
        rounds_carried=sum(sealed.is_carried for sealed in view.rounds.values()),
        loss_first=measured.loss_first,
        loss_last=measured.loss_last,
        loss_alone=measured.loss_alone,
        anchors_equal=findings.anchors_equal,
        killed=view.killing.name if view.killing else None,
        killed_round=verdict,
        story=story.tell(options, view),
        joined_late=story.num_joined_late(view),
        late_name=late.name if late else None,
        late_round=min(late_rounds, default=None),
        exchanges=view.exchanges(),
        links=view.links(),
        faults=tuple(view.faults),
        disagreements=view.disagreements(),
        first_seal_s=min((sealed.at_s for sealed in view.rounds.values()), default=None),
        wall_s=findings.wall_s,
        swarm=tuple(view.losses.items()),
        alone=tuple((step // steps, loss) for step, loss in measured.alone_curve),
        sample=measured.text,
        error=findings.error,
    )


def _row(view: SwarmView, node: NodeView) -> NodeResult:
    return NodeResult(
        name=node.name,
        peer=node.peer,
        role=node.role,
        status=node.status,
        rounds_listed=len(view.rounds_listed(node.name)),
        bytes_up=node.bytes_up,
        bytes_down=node.bytes_down,
        validation=node.last_validation,
        resyncs=node.num_resyncs,
        pids=tuple(node.pids),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
