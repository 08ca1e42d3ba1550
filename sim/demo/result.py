"""What came of a demo, in one object: for the table, the JSON line, the plot and the page.

The parent measures some of it itself: what a node reports about itself proves nothing about what it
would start from tomorrow, so weights are compared by the bytes of checkpoints. Losses are measured
in processes of their own: this one loads no torch.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError, deserialize

from node.processes.children import JsonLine, first_error_nursery, number, run_json_child
from protocol.errors import StateError
from protocol.manifest import RunManifest
from sim.demo import story
from sim.demo.story import DemoOptions
from sim.demo.swarm_view import SwarmView
from sim.processes.node_process import log_tail
from sim.processes.sitting import rounded
from training.files.state import ANCHOR_FILE, checkpoint_name

THREADS_MAX = 4
"""The demo's model is so small that more threads only wait for each other."""

TEXT_BYTES = 200

YARDSTICK_COMMAND = (sys.executable, "-P", "-m", "training.yardstick_main")

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Per tensor its dtype, shape and raw bytes."""


def final_checkpoint(state: Path, manifest: RunManifest) -> Path:
    """Where the node with this state folder keeps what the last round of the run made."""
    run = state / "runs" / manifest.digest.hex()[:12]
    # A checkpoint is named after the round that starts from it, and rounds count from 1.
    return run / "checkpoints" / checkpoint_name(manifest.rounds + 1)


def anchor_bytes(checkpoint: Path) -> Tensors | None:
    """The tensors of the anchor in a checkpoint folder; None if there is no whole one."""
    try:
        data = (checkpoint / ANCHOR_FILE).read_bytes()
        parts = deserialize(data)  # type: ignore[no-untyped-call]  # unannotated upstream
    except (OSError, SafetensorError):
        return None
    return {
        name: (str(part["dtype"]), tuple(part["shape"]), bytes(part["data"]))
        for name, part in parts
    }


def anchors_equal(checkpoints: Sequence[Path]) -> bool:
    """Whether all these checkpoints exist and hold the same bytes under the same names.

    The caller names one checkpoint of the same round per surviving node.
    """
    anchors = [anchor_bytes(path) for path in checkpoints]
    return bool(anchors) and anchors[0] is not None and all(a == anchors[0] for a in anchors)


@dataclass(frozen=True, slots=True, kw_only=True)
class YardstickSetting:
    """Which run is measured, and with which program."""

    manifest: Path
    run: bytes
    log: Path
    command: tuple[str, ...] = YARDSTICK_COMMAND


@dataclass(slots=True, kw_only=True)
class YardstickResult:
    """What was found out; filled in as it comes. Losses are nats per byte."""

    loss_first: float | None = None
    loss_last: float | None = None
    loss_alone: float | None = None
    text: str | None = None
    alone_curve: list[tuple[int, float]] = field(default_factory=list)
    """(inner step, loss) of one node that trained alone."""


async def measure(
    setting: YardstickSetting, checkpoint: Path, tell: Callable[[float], None]
) -> YardstickResult:
    """Train one node alone, and measure genesis and `checkpoint`; `tell` gets the share done.

    Raises StateError with its last words if a process fails.
    """
    measured = YardstickResult()

    def hear(line: JsonLine) -> None:
        if line.get("kind") == "point":
            step = int(number(line["step"]))
            measured.alone_curve.append((step, number(line["loss"])))
            tell(step / number(line["steps"]))
            return
        if "loss_alone" in line:
            measured.loss_alone = number(line["loss_alone"])
            return
        measured.loss_first = number(line["loss_first"])
        measured.loss_last = number(line["loss_last"])
        measured.text = str(line["text"])

    async def run(*task: str) -> None:
        # One task of two that run beside each other.
        threads = max(1, min(THREADS_MAX, (os.cpu_count() or 1) // 2))
        line = [*setting.command, "--manifest", str(setting.manifest), "--run", setting.run.hex()]
        line += ["--threads", str(threads), "--child", *task]
        with setting.log.open("ab") as log:
            status = await run_json_child(line, hear, stderr=log)
        if status != 0:
            tail = log_tail(setting.log)
            raise StateError(f"the yardstick ended with status {status}; its last words:\n{tail}")

    async with first_error_nursery() as nursery:
        nursery.start_soon(run, "alone")
        nursery.start_soon(run, "measure", str(checkpoint), "--text-bytes", str(TEXT_BYTES))
    return measured


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
