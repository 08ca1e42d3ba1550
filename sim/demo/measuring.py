"""What the parent measures itself after the run: equal weights, and one node alone.

What a node reports about itself proves nothing about what it would start from tomorrow, so weights
are compared by the bytes of checkpoints. Losses are measured in processes of their own: this one
loads no torch.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, deserialize

from node.processes.children import JsonLine, first_error_nursery, number, run_json_child
from protocol.errors import StateError
from protocol.manifest import RunManifest
from sim.processes.node_process import log_tail
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
