"""`barnraise local` from its options to its exit status."""

import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import trio
from rich.console import Console

from node.state.stored_manifest import ANY_SIGNER
from protocol.errors import ConfigError, DecodeError, StateError
from protocol.identity import PeerId, parse_peer_id
from protocol.manifest import RunManifest
from sim.checks.traces import merge_traces
from sim.local.director import Director, Patience
from sim.local.local_node import BENT_NODE, LocalNode
from sim.local.options import LocalOptions
from sim.local.progress import StoryProgress
from sim.local.rechecking import Rechecked, rechecked
from sim.local.recipe import found_run, local_manifest
from sim.local.report import Result, print_result, write_report
from sim.local.story import Story
from sim.local.verdict import Evidence, judge
from sim.local.weights import weights_of

EXIT_DONE, EXIT_FAILED = 0, 1
NOBODY = PeerId(bytes(32))
"""In the place of a founder who has no key yet."""

_EXIT_BY_SIGNAL = 128
_TICK_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEnd:
    """The exit status, and the result of a run that was not interrupted."""

    status: int
    result: Result | None


def run_local(
    options: LocalOptions,
    console: Console,
    now_s: Callable[[], float],
    patience: Patience | None = None,
) -> LocalEnd:
    """Run real nodes and tell about it on the console. Leaves no process, however it ends.

    `now_s` are seconds since the command was given. Raises ConfigError for a folder that cannot be
    used.
    """
    manifest = _set_stage(options)
    progress = StoryProgress(console, now_s)
    story = Story(options.peers, progress.tell)
    director = Director(options, story, now_s, patience or Patience())
    received: list[int] = []
    wall_offset_s = time.time() - now_s()
    error = trio.run(_play, director, progress, received)
    if received:
        progress.tell(now_s(), f"Stopped. No process is left running; see {options.folder}")
        return LocalEnd(status=_EXIT_BY_SIGNAL + received[0], result=None)
    nodes = list(story.nodes.values())
    evidence = Evidence(
        traces=[node.trace for node in nodes],
        logs=[node.log for node in nodes],
        stayed=[node.state for node in nodes if node.status not in ("left", "dead")],
        states=[node.state for node in nodes],
        bent=_bent(options, nodes),
        liars=frozenset(parse_peer_id(n.peer) for n in nodes if n.peer and n.is_liar),
        disturbed=[wall_offset_s + at_s for at_s in story.disturbed()],
    )
    verdict = judge(manifest, evidence)
    result = Result(
        options=options,
        story=story,
        verdict=verdict,
        rechecked=_rechecked(manifest, nodes, verdict.banned),
        wall_s=now_s(),
        error=error,
        weights=_weights(manifest, evidence) if options.attack else {},
    )
    status = EXIT_DONE if result.is_good else EXIT_FAILED
    unwritten = ""
    try:
        write_report(result, options.folder)
    except OSError as failure:
        # The verdict is told all the same.
        where = failure.filename or options.folder
        status, unwritten = EXIT_FAILED, f"cannot write {where}: {failure.strerror}"
    if result.is_good and not options.keep_state:
        # A file that Windows still holds open is no reason to fail.
        shutil.rmtree(options.folder / "nodes", ignore_errors=True)
    print_result(console, result)
    console.print(f"\nTraces, logs and plot: {options.folder}", markup=False, soft_wrap=True)
    if unwritten:
        console.print(unwritten, style="bold red", markup=False, soft_wrap=True)
    return LocalEnd(status=status, result=result)


def _weights(manifest: RunManifest, evidence: Evidence) -> dict[PeerId, float]:
    try:
        return weights_of(manifest, merge_traces([p for p in evidence.traces if p.exists()]))
    except DecodeError:
        return {}  # The verdict says so.


def _rechecked(
    manifest: RunManifest, nodes: Sequence[LocalNode], banned: Collection[PeerId]
) -> Rechecked | None:
    """What the latecomer of a run with liars says of the bans; None where there was none."""
    for node in nodes:
        if node.is_checker:
            return rechecked(node.name, node.trace, banned, manifest.digest, ANY_SIGNER)
    return None


def _bent(options: LocalOptions, nodes: Sequence[LocalNode]) -> frozenset[PeerId]:
    is_switched = options.test_switch is not None
    return frozenset(
        parse_peer_id(n.peer)
        for n in nodes
        if n.peer and (n.is_liar or (is_switched and n.name == BENT_NODE))
    )


async def _play(director: Director, progress: StoryProgress, received: list[int]) -> str:
    """Why it failed, empty if it did not; the signal that ended it is in `received`."""
    error = ""
    with progress.shown():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_signals, received, nursery.cancel_scope)
            nursery.start_soon(_keep_showing, director.story, progress)
            try:
                await director.play()
            except StateError as failure:
                error = str(failure)
            nursery.cancel_scope.cancel()
    return error


async def _watch_signals(received: list[int], scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()


async def _keep_showing(story: Story, progress: StoryProgress) -> None:
    while True:
        progress.tick(story)
        await trio.sleep(_TICK_S)


def _set_stage(options: LocalOptions) -> RunManifest:
    folder = options.folder
    # Whoever corrects an option finds the folder as it was.
    local_manifest(options, NOBODY)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"--out {folder} is not empty: name a new folder")
        for name in ("nodes", "logs", "traces"):
            (folder / name).mkdir()
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be used: {error.strerror}") from error
    return found_run(
        options, state=folder / "nodes" / "A", manifest_path=folder / "manifest.msgpack"
    )
