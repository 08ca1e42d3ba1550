"""`barnraise demo` from its options to its exit status."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import trio
from rich.console import Console

from node.exit_codes import EXIT_DONE, EXIT_FAILED
from protocol.errors import StateError
from protocol.manifest import RunManifest
from sim.demo import story
from sim.demo.director import Director, Stage
from sim.demo.display import Display, Scene, open_display, print_line, print_result
from sim.demo.measuring import (
    YARDSTICK_COMMAND,
    YardstickResult,
    YardstickSetting,
    anchors_equal,
    final_checkpoint,
    measure,
)
from sim.demo.options import DemoOptions
from sim.demo.result import DemoResult
from sim.demo.story import PATIENCE, Patience
from sim.processes.node_process import NODE_COMMAND
from sim.processes.recipe import sign_run, small_manifest
from sim.processes.sitting import (
    Interrupted,
    claim_folder,
    clear_nodes,
    keep_ticking,
    run_until_signal,
)

PAGE_FILE, PLOT_FILE, RESULT_FILE = "index.html", "loss.png", "result.json"


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
    folder, console = options.folder, around.console
    claim_folder(folder, "nodes", "logs")
    stage = Stage(options=options, node_command=around.node_command, patience=around.patience)
    make = partial(small_manifest, "barnraise demo", rounds=options.rounds, seed=options.seed)
    manifest = sign_run(make, stage.state("A"), stage.manifest)
    results: list[DemoResult] = []

    async def play() -> None:
        try:
            with open_display(console) as display:
                results.append(await _play(stage, manifest, around, display))
        except* SystemExit:
            # rich raises it at a broken pipe; in a group of tasks it would be a traceback.
            raise SystemExit(EXIT_FAILED) from None

    try:
        run_until_signal(play)
    except Interrupted as end:
        if not options.keep_state:
            clear_nodes(folder)
        logs = f"Stopped. No process is left running; the logs are in {stage.logs}"
        print_line(console, logs)
        return DemoEnd(status=end.status, result=None)
    (result,) = results
    if not options.keep_state and result.error is None:
        clear_nodes(folder)
    print_result(console, result)
    shown = [name for name in (PAGE_FILE, PLOT_FILE) if (folder / name).exists()]
    if shown:
        print_line(console, f"\nThe loss plot: {' and '.join(shown)} in {folder}")
    if result.error is not None:
        print_line(console, f"\nThe demo failed: {result.error}")
    return DemoEnd(status=EXIT_DONE if result.error is None else EXIT_FAILED, result=result)


async def _play(
    stage: Stage, manifest: RunManifest, around: Surroundings, display: Display
) -> DemoResult:
    """The run, the measurements, the report: one after the other, under one display."""
    director = Director(stage, around.now_s, lambda: display.changed(scene))
    scene = Scene(view=director.view, now_s=around.now_s)
    yardstick = YardstickSetting(
        manifest=stage.manifest,
        run=manifest.digest,
        log=stage.log("yardstick"),
        command=around.yardstick_command,
    )
    is_equal: bool | None = None
    measured, error = YardstickResult(), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_ticking, lambda: display.tick(scene))
        try:
            await director.play()
            finishers = [stage.state(node.name) for node in story.finishers(director.view)]
            checkpoints = [final_checkpoint(state, manifest) for state in finishers]
            is_equal = await trio.to_thread.run_sync(anchors_equal, checkpoints)
            error = story.shortcoming(director.view, are_anchors_equal=is_equal)
            scene.start_measuring()
            display.changed(scene)
            measured = await measure(yardstick, checkpoints[0], scene.tell_measured)
        except StateError as failure:
            error = str(failure)
        display.finish(scene)
        result = DemoResult(
            options=stage.options,
            manifest=manifest,
            view=director.view,
            measured=measured,
            anchors_equal=is_equal,
            wall_s=around.now_s(),
            error=error,
        )
        try:
            # The stubs that libp2p's dependencies bring predate this argument's name.
            await trio.to_thread.run_sync(
                _write_report,
                result,
                abandon_on_cancel=True,  # type: ignore[call-arg]
            )
        except OSError as failure:
            # What was found out is told all the same.
            why = f"cannot write {failure.filename or stage.options.folder}: {failure.strerror}"
            result = replace(result, error=result.error or why)
        nursery.cancel_scope.cancel()
    # The report is part of what was waited for.
    return replace(result, wall_s=around.now_s())


def _write_report(result: DemoResult) -> None:
    # matplotlib takes half a second to load, and only this needs it.
    from sim.demo.chart import write_chart
    from sim.demo.page import render_page

    folder = result.options.folder
    write_chart(result, folder / PLOT_FILE)
    (folder / PAGE_FILE).write_text(render_page(result), "utf-8", newline="\n")
    body = result.as_json() | {"swarm_curve": result.swarm, "alone_curve": result.alone}
    (folder / RESULT_FILE).write_text(json.dumps(body, indent=1) + "\n", "utf-8", newline="\n")
