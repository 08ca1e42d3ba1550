"""What the swarm is held against, measured in processes of their own: this one loads no torch."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.demo.log_tail import log_tail
from node.processes.first_error import first_error_nursery
from node.processes.json_child import Line, number, run_json_child
from protocol.errors import StateError

THREADS_MAX = 4
"""The demo's model is so small that more threads only wait for each other."""

TEXT_BYTES = 200

YARDSTICK_COMMAND = (sys.executable, "-P", "-m", "training.yardstick_main")


@dataclass(frozen=True, slots=True, kw_only=True)
class YardstickSetting:
    """Which run is measured, and with which program."""

    manifest: Path
    run: bytes
    log: Path
    command: tuple[str, ...] = YARDSTICK_COMMAND

    def arguments(self, task: tuple[str, ...]) -> list[str]:
        """The command line of one task, for one of two that run beside each other."""
        threads = max(1, min(THREADS_MAX, (os.cpu_count() or 1) // 2))
        line = [*self.command, "--manifest", str(self.manifest), "--run", self.run.hex()]
        return [*line, "--threads", str(threads), "--child", *task]


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
    setting: YardstickSetting, checkpoint: Path | None, tell: Callable[[float], None]
) -> YardstickResult:
    """Train one node alone, and measure genesis and `checkpoint`; `tell` gets the share done.

    Without a checkpoint only the former. Raises StateError with its last words if a process fails.
    """
    measured = YardstickResult()

    def hear_alone(line: Line) -> None:
        if line["kind"] == "point":
            step = int(number(line["step"]))
            measured.alone_curve.append((step, number(line["loss"])))
            tell(step / number(line["steps"]))
        else:
            measured.loss_alone = number(line["loss_alone"])

    def hear_swarm(line: Line) -> None:
        measured.loss_first = number(line["loss_first"])
        measured.loss_last = number(line["loss_last"])
        measured.text = str(line["text"])

    async with first_error_nursery() as nursery:
        nursery.start_soon(_run, setting, ("alone",), hear_alone)
        if checkpoint is not None:
            task = ("measure", str(checkpoint), "--text-bytes", str(TEXT_BYTES))
            nursery.start_soon(_run, setting, task, hear_swarm)
    return measured


async def _run(
    setting: YardstickSetting, task: tuple[str, ...], hear: Callable[[Line], None]
) -> None:
    """One yardstick process from its start to its end, whatever ends us."""
    with setting.log.open("ab") as log:
        status = await run_json_child(setting.arguments(task), hear, stderr=log)
    if status != 0:
        raise StateError(
            f"the yardstick ended with status {status}; its last words:\n{log_tail(setting.log)}"
        )
