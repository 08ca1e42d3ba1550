"""`barnraise demo` from its options to its exit status: nodes start, one is killed, one comes late,
and all are watched until they have finished."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio
from rich.console import Console

from node.processes.children import first_error_nursery, trainer_threads
from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED
from protocol.errors import StateError
from protocol.manifest import RunManifest
from sim.demo import story
from sim.demo.display import Display, Scene, open_display, print_line, print_result
from sim.demo.result import (
    YARDSTICK_COMMAND,
    DemoResult,
    YardstickResult,
    YardstickSetting,
    anchors_equal,
    final_checkpoint,
    measure,
)
from sim.demo.story import PATIENCE, DemoOptions, DemoPatience
from sim.demo.swarm_view import NodeView, Role, SwarmView
from sim.processes.node_process import (
    NODE_COMMAND,
    ChangeBell,
    NodeProcess,
    end_nodes,
    log_tail,
    start_node,
)
from sim.processes.recipe import sign_run, small_manifest
from sim.processes.sitting import (
    Interrupted,
    claim_folder,
    clear_nodes,
    keep_ticking,
    run_until_signal,
)

VALIDATIONS = 40
"""Points of a node's curve: each costs the time of some three inner steps."""

START_WITHIN_S = 60.0
"""How long the founder waits for the others. Where cores are free they are there in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the demo plays, and the program of a node."""

    options: DemoOptions
    node_command: tuple[str, ...] = NODE_COMMAND
    patience: DemoPatience = PATIENCE

    @property
    def manifest(self) -> Path:
        """The signed manifest, as a file for all nodes."""
        return self.options.folder / "manifest.msgpack"

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.options.folder / "logs"

    def state(self, name: str) -> Path:
        """State folder of a node."""
        return self.options.folder / "nodes" / name

    def log(self, name: str) -> Path:
        """What a node's processes had to say."""
        return self.logs / f"{name}.log"

    def arguments(self, node: NodeView, bootstrap: str | None) -> list[str]:
        """The command line of a node. `bootstrap` is the only address that it is told."""
        options = self.options
        line = [*self.node_command, "--state", str(self.state(node.name))]
        line += ["--manifest", str(self.manifest), "--listen", "/ip4/127.0.0.1/tcp/0"]
        line += ["--threads", str(trainer_threads(options.peers + 1))]
        # Five small models share a GPU badly, and in bf16 the tuned numbers are others.
        line += ["--device", "cpu"]
        # A curve is what people watch it for: all of the time that is left over may go into it.
        line += ["--validate-every", str(max(1, options.rounds // VALIDATIONS)), "--events"]
        line += ["--validation-share", "1"]
        if bootstrap is None:
            line += ["--start-with", str(options.peers), "--start-within-s", str(START_WITHIN_S)]
        else:
            line += ["--bootstrap", bootstrap]
        for switch in options.switches_for(is_late=node.role == "latecomer"):
            line += ["--test-switch", switch]
        return line


class DemoDirector(ChangeBell):
    """One demo from the first process to the last seal. `play` it once; the view tells the rest."""

    def __init__(self, stage: Stage, now_s: Callable[[], float], show: Callable[[], None]) -> None:
        """`now_s` are seconds since the demo began; `show` is called after every event."""
        super().__init__()
        self.view = SwarmView(num_rounds=stage.options.rounds)
        self._stage = stage
        self._options = stage.options
        self._patience = stage.patience
        self._show = show
        self._now_s = now_s
        self._processes: dict[str, NodeProcess] = {}

    async def play(self) -> None:
        """Until every survivor has finished; no process is left, however it ends.

        Raises StateError, saying where to look, when a node dies or the swarm is stuck.
        """
        try:
            async with first_error_nursery() as nursery:
                await self._start_swarm(nursery)
                nursery.start_soon(self._watch_for_stalls)
                await self.until(partial(story.should_start_latecomer, self._options, self.view))
                # The second node is alive also where the founder is not. Its address is all that
                # is told.
                helper = next(node for node in self.view.survivors if node.role == "peer")
                await self._start(nursery, "latecomer", bootstrap=helper.address)
                await self.until(partial(story.is_over_but_for_latecomer, self.view))
                with trio.move_on_after(self._patience.latecomer_s):
                    await self.until(partial(story.is_over, self.view))
                with trio.move_on_after(self._patience.last_words_s):
                    await self.until(partial(story.has_last_losses, self.view))
                nursery.cancel_scope.cancel()
        finally:
            await end_nodes(self._processes.values())

    async def _start_swarm(self, nursery: trio.Nursery) -> None:
        with trio.move_on_after(self._patience.start_s) as scope:
            founder = await self._start(nursery, "founder", bootstrap=None)
            await self.until(lambda: founder.address != "")
            for _ in range(self._options.peers - 1):
                await self._start(nursery, "peer", bootstrap=founder.address)
            nodes = list(self.view.nodes.values())
            await self.until(lambda: all(node.address for node in nodes))
        if scope.cancelled_caught:
            silent = [node.name for node in self.view.nodes.values() if not node.address]
            raise StateError(
                f"node {' and '.join(silent)} did not listen within "
                f"{self._patience.start_s:.0f} s; the logs are in {self._stage.logs}"
            )

    async def _start(self, nursery: trio.Nursery, role: Role, *, bootstrap: str | None) -> NodeView:
        node = self.view.add(role)
        words, log = self._stage.arguments(node, bootstrap), self._stage.log(node.name)
        process = await start_node(node.name, words, log)
        self._processes[node.name] = process
        self.view.started(node.name, process.pid, self._now_s())
        nursery.start_soon(self._listen_to, node, process)
        return node

    async def _listen_to(self, node: NodeView, process: NodeProcess) -> None:
        async for event in process.events():
            self.view.fold(node.name, event, self._now_s())
            # Before all else: the founder's parts are on their way for milliseconds only.
            if story.should_kill_founder(self._options, self.view):
                founder = self.view.founder
                self._processes[founder.name].kill()
                self.view.kill(founder.name, self._now_s())
            self._notice()
        status = await process.exit_status()
        node.has_ended = True
        self._notice()
        if not process.is_ending and (node.status != "finished" or status != 0):
            why = node.error or f"it ended with status {status}"
            raise StateError(
                f"node {node.name} died: {why}; the end of {process.log}:\n{log_tail(process.log)}"
            )

    async def _watch_for_stalls(self) -> None:
        while True:
            num_sealed = self.view.num_sealed
            with trio.move_on_after(self._patience.stall_s) as scope:
                await self.until(lambda: self.view.num_sealed > num_sealed)  # noqa: B023
            if scope.cancelled_caught:
                raise StateError(
                    f"the swarm is stuck: no seal for {self._patience.stall_s:.0f} s after "
                    f"{num_sealed} rounds; the logs are in {self._stage.logs}"
                )

    def _notice(self) -> None:
        self.tell_change()
        self._show()


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
    patience: DemoPatience = PATIENCE


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
    director = DemoDirector(stage, around.now_s, lambda: display.changed(scene))
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
    from sim.demo.chart import render_page, write_chart

    folder = result.options.folder
    write_chart(result, folder / PLOT_FILE)
    (folder / PAGE_FILE).write_text(render_page(result), "utf-8", newline="\n")
    body = result.as_json() | {"swarm_curve": result.swarm, "alone_curve": result.alone}
    (folder / RESULT_FILE).write_text(json.dumps(body, indent=1) + "\n", "utf-8", newline="\n")
