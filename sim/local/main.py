"""`barnraise local` from its options to its exit status: real nodes, faults, and a verdict."""

import math
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import trio
from rich.console import Console

from node.processes.children import first_error_nursery
from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED
from node.state.stored_manifest import ANY_SIGNER
from protocol.errors import DecodeError, StateError
from protocol.identity import PeerId, parse_peer_id
from protocol.manifest import RunManifest
from sim.checks.traces import merge_traces
from sim.local.local_node import BENT_NODE, LocalNode
from sim.local.options import LocalOptions, found_run, local_manifest
from sim.local.report import Result, StoryProgress, print_result, write_report
from sim.local.swarm import LocalSwarm, ProcessChaos, ProcessFault, Story, StoryFault
from sim.local.verdict import Evidence, Rechecked, judge, rechecked, weights_of
from sim.processes.node_process import NodeProcess, node_name
from sim.processes.sitting import (
    Interrupted,
    claim_folder,
    clear_nodes,
    keep_ticking,
    run_until_signal,
)

NOBODY = PeerId(bytes(32))
"""In the place of a founder who has no key yet."""

_HUNG_S = 15.0
"""From a trainer's death to the end of its network process; it promises a second."""

PEERS_USUAL = 4
"""More of them take longer to start."""

_CALM_S = 10.0
"""So long before the end of a run of so many rounds, or for its second half, nobody is harmed: a
node takes some seconds to start and catch up."""

_END_S = 20.0
"""For a node whose run is over: it lingers for those who are still at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a local run waits, in seconds, before something is wrong."""

    start_s: float = 60.0
    """Of so many nodes as are usual."""

    stuck_s: float = 90.0
    """Without a seal."""

    settle_s: float = 60.0
    """After the last fault is undone, until every node is at the newest seal."""

    def on_line(self, exchange_s: float) -> "Patience":
        """The same where an exchange takes the line as long as that."""
        return Patience(
            start_s=self.start_s + exchange_s,
            stuck_s=self.stuck_s + exchange_s,
            settle_s=self.settle_s + exchange_s,
        )


class Director:
    """One run from the first process to the last. `play` it once; the story tells the rest."""

    def __init__(
        self,
        options: LocalOptions,
        story: Story,
        now_s: Callable[[], float],
        patience: Patience = Patience(),
    ) -> None:
        """`now_s` are seconds since the command was given."""
        self.story = story
        self.options = options
        self._patience = patience.on_line(options.exchange_s)
        self._now_s = now_s
        self._calm = trio.Event()
        """Set when faults are to be undone, and no more are dealt."""

        self._swarm = LocalSwarm(options, story, now_s)

    async def play(self) -> None:
        """Until the run is over; no process is left, however it ends.

        Raises StateError, saying where to look, when the swarm does not start, is stuck, or does
        not come together again.
        """
        try:
            async with first_error_nursery() as nursery:
                start_s = self._patience.start_s * max(1.0, self.options.peers / PEERS_USUAL)
                await self._swarm.begin(nursery, within_s=start_s)
                nursery.start_soon(self._watch_for_standstill)
                async with trio.open_nursery() as chaos:
                    if self.options.kinds:
                        chaos.start_soon(self._deal_faults)
                    if self.options.attack is not None:
                        chaos.start_soon(self._send_checker)
                    await self._until_over()
                    self._calm.set()
                await self._settle()
                nursery.cancel_scope.cancel()
        finally:
            await self._swarm.end_all()

    # Faults -------------------------------------------------------------------------------------

    async def _deal_faults(self) -> None:
        """One at every beat; each is undone in a task of its own."""
        options = self.options
        chaos = ProcessChaos(options.kinds, seed=options.seed, is_reckless=options.is_reckless)
        async with trio.open_nursery() as nursery:
            while not await self._is_calm_within(options.every_s):
                fault = chaos.next(self.story.situation())
                if fault is None:
                    self.story.num_spared += 1
                    continue
                if fault.move == "join":
                    fault = replace(fault, victim=node_name(len(self.story.nodes)))
                dealt = self.story.dealing(fault, self._now_s())
                self._swarm.tell_change()
                nursery.start_soon(self._deal, dealt)

    async def _is_calm_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self._calm.wait()
        return self._calm.is_set()

    async def _deal(self, dealt: StoryFault) -> None:
        fault = dealt.fault
        node = self.story.nodes.get(fault.victim)
        if fault.kind == "churn":
            await self._churn(fault, node)
        else:
            assert node is not None
            await self._harm(node, fault)
        dealt.undone_s = self._now_s()
        self._swarm.tell_change()

    async def _harm(self, node: LocalNode, fault: ProcessFault) -> None:
        """Deal a fault and undo it, unless the node is gone meanwhile."""
        process = node.process
        match fault.kind:
            case "kill":
                await self._kill(node, fault)
                node.status = "down"
                await self._is_calm_within(fault.lasts_s)
                await self._swarm.start(node)
            case "freeze":
                node.status = "frozen"
                node.signal_both(signal.SIGSTOP)
                await self._is_calm_within(fault.lasts_s)
                node.signal_both(signal.SIGCONT)
                self._back(node, process, "frozen")
            case "stall":
                assert self._swarm.shaper is not None
                node.status = "stalled"
                self._swarm.shaper.stall(node.name)
                await self._is_calm_within(fault.lasts_s)
                self._swarm.shaper.go_on(node.name)
                self._back(node, process, "stalled")
            case "partition":
                await self._part(fault)
            case "reset":
                assert self._swarm.shaper is not None
                self._swarm.shaper.reset(node.name)

    async def _part(self, fault: ProcessFault) -> None:
        """Nothing passes between two sides for a while."""
        shaper = self._swarm.shaper
        assert shaper is not None
        nodes = [self.story.nodes[name] for name in fault.victims]
        processes = [node.process for node in nodes]
        for node in nodes:
            node.status = "apart"
        side = frozenset(fault.victims)
        shaper.part(side)
        await self._is_calm_within(fault.lasts_s)
        shaper.join(side)
        for node, process in zip(nodes, processes, strict=True):
            self._back(node, process, "apart")

    def _back(self, node: LocalNode, process: NodeProcess | None, status: str) -> None:
        if node.process is process and node.status == status:
            node.status = "running"

    async def _kill(self, node: LocalNode, fault: ProcessFault) -> None:
        assert node.process is not None
        node.is_meant_to_end, node.status = True, "down"
        part = "network" if node.trainer_pid is None and fault.part == "trainer" else fault.part
        node.process.kill(part)
        if part == "trainer":
            with trio.move_on_after(_HUNG_S) as scope:
                await node.process.exit_status()
            if scope.cancelled_caught:
                self.story.died(node, f"it outlived its trainer by {_HUNG_S} s", self._now_s())
                node.process.kill("network")
        await node.process.exit_status()

    async def _churn(self, fault: ProcessFault, node: LocalNode | None) -> None:
        if fault.move == "join":
            await self._swarm.add()
        elif fault.move == "return":
            assert node is not None
            await self._swarm.start(node)
        else:
            assert node is not None
            assert node.process is not None
            node.is_meant_to_end, node.status = True, "left"
            await node.process.end()

    # Bans ---------------------------------------------------------------------------------------

    async def _send_checker(self) -> None:
        """One more node, once all liars are banned; half way through at the latest, so that it is
        there in time. None where the run is over by then."""
        story, options = self.story, self.options
        assert options.attack is not None
        count = options.attack.count
        half_s = math.inf if options.duration_s is None else 0.5 * options.duration_s
        half = math.inf if options.rounds is None else 0.5 * options.rounds
        with trio.move_on_after(half_s):
            await self._swarm.until(lambda: len(story.banned) >= count or story.newest >= half)
        if not self._swarm.is_over:
            await self._swarm.add(is_checker=True)

    async def _until_checked(self) -> None:
        """Until the latecomer holds evidence against all whom seals ban. Its trace is judged."""
        story = self.story
        checkers = [node for node in story.nodes.values() if node.is_checker]
        with trio.move_on_after(self._patience.settle_s):
            await self._swarm.until(
                lambda: all(
                    n.convicted >= story.banned or n.status in ("dead", "finished")
                    for n in checkers
                )
            )

    # The end ------------------------------------------------------------------------------------

    async def _until_over(self) -> None:
        options = self.options
        if options.duration_s is not None:
            await trio.sleep(options.duration_s)
            return
        assert options.rounds is not None
        rounds, story = options.rounds, self.story
        # Who is down is back before the end: nodes whose run is over go, and wait for the living.
        await self._swarm.until(
            lambda: story.newest >= rounds - min(story.rounds_within(_CALM_S), rounds // 2)
        )
        self._calm.set()
        await self._swarm.until(lambda: story.newest >= rounds)

    async def _settle(self) -> None:
        """Until every node that is not gone is where the swarm is.

        A run of so many rounds has an end that all of them reach; else it is the round that was
        the newest when the last fault was undone, and one more, so that all work together again.
        """
        story, options = self.story, self.options
        goal = story.newest + 1 if options.rounds is None else options.rounds

        def late() -> list[str]:
            nodes = [n for n in story.nodes.values() if n.status not in ("left", "dead")]
            # The banned may be cut off before they hear that the run goes on.
            nodes = [n for n in nodes if not n.is_liar]
            return [n.name for n in nodes if not (n.has_sealed_in_life and n.sealed >= goal)]

        with trio.move_on_after(self._patience.settle_s) as scope:
            await self._swarm.until(lambda: not late())
        if scope.cancelled_caught:
            raise StateError(
                f"{', '.join(late())} did not come back to the swarm within "
                f"{self._patience.settle_s:.0f} s of the last fault's end"
            )
        await self._until_checked()
        if options.rounds is not None:
            with trio.move_on_after(_END_S):
                await self._swarm.until(
                    lambda: all(
                        n.is_liar or n.status in ("left", "dead", "finished")
                        for n in story.nodes.values()
                    )
                )

    async def _watch_for_standstill(self) -> None:
        story = self.story
        while True:
            newest = story.newest
            if self.options.rounds is not None and newest >= self.options.rounds:
                return
            with trio.move_on_after(self._patience.stuck_s) as scope:
                await self._swarm.until(lambda: story.newest > newest)  # noqa: B023 - awaited here
            if scope.cancelled_caught:
                raise StateError(
                    f"no seal for {self._patience.stuck_s:.0f} s after round {newest}: "
                    + ", ".join(f"{n.name} {n.status} at {n.sealed}" for n in story.nodes.values())
                )


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
    folder = options.folder
    # Whoever corrects an option finds the folder as it was.
    local_manifest(options, NOBODY)
    claim_folder(folder, "nodes", "logs", "traces")
    manifest = found_run(
        options, state=folder / "nodes" / "A", manifest_path=folder / "manifest.msgpack"
    )
    progress = StoryProgress(console, now_s)
    director = Director(options, Story(options.peers, progress.tell), now_s, patience or Patience())
    wall_offset_s, error = time.time() - now_s(), ""

    async def play() -> None:
        with progress.shown():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_ticking, lambda: progress.tick(director.story))
                nonlocal error
                try:
                    await director.play()
                except StateError as failure:
                    error = str(failure)
                nursery.cancel_scope.cancel()

    try:
        run_until_signal(play)
    except Interrupted as end:
        progress.tell(now_s(), f"Stopped. No process is left running; see {folder}")
        return LocalEnd(status=end.status, result=None)
    result = _result(manifest, director, now_s, error=error, wall_offset_s=wall_offset_s)
    status = EXIT_DONE if result.is_good else EXIT_FAILED
    unwritten = ""
    try:
        write_report(result, folder)
    except OSError as failure:
        # The verdict is told all the same.
        where = failure.filename or folder
        status, unwritten = EXIT_FAILED, f"cannot write {where}: {failure.strerror}"
    if result.is_good and not options.keep_state:
        clear_nodes(folder)
    print_result(console, result)
    console.print(f"\nTraces, logs and plot: {folder}", markup=False, soft_wrap=True)
    if unwritten:
        console.print(unwritten, style="bold red", markup=False, soft_wrap=True)
    return LocalEnd(status=status, result=result)


def _result(
    manifest: RunManifest,
    director: Director,
    now_s: Callable[[], float],
    *,
    error: str,
    wall_offset_s: float,
) -> Result:
    """What the nodes have left is judged."""
    options, story = director.options, director.story
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
    return Result(
        options=options,
        story=story,
        verdict=verdict,
        rechecked=_rechecked(manifest, nodes, verdict.banned),
        wall_s=now_s(),
        error=error,
        weights=_weights(manifest, evidence) if options.attack else {},
    )


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
