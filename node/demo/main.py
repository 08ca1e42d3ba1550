"""`barnraise demo` from its options to its exit status."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import trio
from rich.console import Console

from node.demo import story
from node.demo.anchors import anchors_equal, final_checkpoint
from node.demo.director import Director, Stage
from node.demo.display import Display, open_display, print_line, print_result
from node.demo.node_process import NODE_COMMAND
from node.demo.options import DemoOptions
from node.demo.pace import Scene
from node.demo.page import render_page
from node.demo.recipe import found_run
from node.demo.result import DemoResult, Findings, gather_result
from node.demo.story import PATIENCE, Patience
from node.demo.yardstick import YARDSTICK_COMMAND, YardstickResult, YardstickSetting, measure
from protocol.errors import ConfigError, StateError
from protocol.manifest import RunManifest

PAGE_FILE, PLOT_FILE, RESULT_FILE = "index.html", "loss.png", "result.json"

EXIT_DONE, EXIT_FAILED = 0, 1
_EXIT_BY_SIGNAL = 128
_TICK_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a demo runs in. `now_s` are seconds since the command was given.

    Tests put other programs in the place of the node's and the yardstick's, and wait less.
    """

    console: Console
    now_s: Callable[[], float]
    node_command: tuple[str, ...] = NODE_COMMAND
    yardstick_command: tuple[str, ...] = YARDSTICK_COMMAND
    patience: Patience = PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoEnd:
    """The exit status, and the result of a demo that was not interrupted."""

    status: int
    result: DemoResult | None


def run_demo(options: DemoOptions, around: Surroundings) -> DemoEnd:
    """Run a demo and tell about it on the console. Leaves no process, however it ends.

    Raises ConfigError for a folder that cannot be used.
    """
    stage = _set_stage(options, around)
    manifest = found_run(options, state=stage.state("A"), manifest_path=stage.manifest)
    demo = _Demo(stage, manifest, around)
    signal_number = trio.run(demo.run)
    if signal_number is not None:
        _clear(stage, is_wanted=not options.keep_state)
        print_line(
            around.console, f"Stopped. No process is left running; the logs are in {stage.logs}"
        )
        return DemoEnd(status=_EXIT_BY_SIGNAL + signal_number, result=None)
    result = demo.result
    assert result is not None
    _clear(stage, is_wanted=not options.keep_state and result.error is None)
    print_result(around.console, result)
    _tell_files(around.console, options.folder)
    if result.error is not None:
        print_line(around.console, f"\nThe demo failed: {result.error}")
    return DemoEnd(status=EXIT_DONE if result.error is None else EXIT_FAILED, result=result)


class _Demo:
    """The run, the measurements, the report: one after the other, under one display."""

    def __init__(self, stage: Stage, manifest: RunManifest, around: Surroundings) -> None:
        self._stage = stage
        self._manifest = manifest
        self._around = around
        self.result: DemoResult | None = None

    async def run(self) -> int | None:
        """Until the report is written; the number of the signal if one ended it before.

        Raises SystemExit where nobody reads what the demo prints any more.
        """
        received: list[int] = []
        try:
            with open_display(self._around.console) as display:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_watch_signals, received, nursery.cancel_scope)
                    self.result = await self._play(display, nursery)
                    nursery.cancel_scope.cancel()
        except* SystemExit:
            # rich raises it at a broken pipe; in a group of tasks it would be a traceback.
            raise SystemExit(EXIT_FAILED) from None
        return received[0] if received else None

    async def _play(self, display: Display, nursery: trio.Nursery) -> DemoResult:
        options, now_s = self._stage.options, self._around.now_s
        director = Director(self._stage, now_s, lambda: display.changed(scene))
        scene = Scene(view=director.view, now_s=now_s)
        nursery.start_soon(_keep_drawing, display, scene)
        is_equal: bool | None = None
        measured, error = YardstickResult(), None
        try:
            await director.play()
            finishers = [self._stage.state(node.name) for node in story.finishers(director.view)]
            checkpoints = [final_checkpoint(state, self._manifest) for state in finishers]
            is_equal = await trio.to_thread.run_sync(anchors_equal, checkpoints)
            error = story.shortcoming(director.view, are_anchors_equal=is_equal)
            scene.start_measuring()
            display.changed(scene)
            measured = await measure(self._yardstick(), checkpoints[0], scene.tell_measured)
        except StateError as failure:
            error = str(failure)
        display.finish(scene)
        findings = Findings(anchors_equal=is_equal, measured=measured, wall_s=now_s(), error=error)
        result = gather_result(options, self._manifest, director.view, findings)
        try:
            # The stubs that libp2p's dependencies bring predate this argument's name.
            await trio.to_thread.run_sync(
                _write_report,
                result,
                abandon_on_cancel=True,  # type: ignore[call-arg]
            )
        except OSError as failure:
            # What was found out is told all the same.
            why = f"cannot write {failure.filename or options.folder}: {failure.strerror}"
            result = replace(result, error=result.error or why)
        # The report is part of what was waited for.
        return replace(result, wall_s=now_s())

    def _yardstick(self) -> YardstickSetting:
        return YardstickSetting(
            manifest=self._stage.manifest,
            run=self._manifest.digest,
            log=self._stage.log("yardstick"),
            command=self._around.yardstick_command,
        )


async def _watch_signals(received: list[int], scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()


async def _keep_drawing(display: Display, scene: Scene) -> None:
    while True:
        display.tick(scene)
        await trio.sleep(_TICK_S)


def _set_stage(options: DemoOptions, around: Surroundings) -> Stage:
    folder = options.folder
    stage = Stage(
        options=options,
        manifest=folder / "manifest.msgpack",
        nodes=folder / "nodes",
        logs=folder / "logs",
        node_command=around.node_command,
        patience=around.patience,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"--out {folder} is not empty: name a new folder")
        stage.nodes.mkdir()
        stage.logs.mkdir()
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be used: {error.strerror}") from error
    return stage


def _clear(stage: Stage, *, is_wanted: bool) -> None:
    """Remove the nodes' keys and checkpoints."""
    if is_wanted:
        # A file that Windows still holds open is no reason to fail.
        shutil.rmtree(stage.nodes, ignore_errors=True)


def _write_report(result: DemoResult) -> None:
    # matplotlib takes half a second to load, and only this needs it.
    from node.demo.plot import draw_plot

    folder = result.options.folder
    draw_plot(result, folder / PLOT_FILE)
    (folder / PAGE_FILE).write_text(render_page(result), "utf-8", newline="\n")
    body = result.as_json() | {"swarm_curve": result.swarm, "alone_curve": result.alone}
    (folder / RESULT_FILE).write_text(json.dumps(body, indent=1) + "\n", "utf-8", newline="\n")


def _tell_files(console: Console, folder: Path) -> None:
    shown = [name for name in (PAGE_FILE, PLOT_FILE) if (folder / name).exists()]
    if shown:
        print_line(console, f"\nThe loss plot: {' and '.join(shown)} in {folder}")
