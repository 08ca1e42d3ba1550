"""The swarm of one run of a bench: set up, started, and judged when it is over."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node.reporting.tracing import Record
from protocol.errors import ConfigError, StateError
from protocol.identity import PeerId, parse_peer_id
from protocol.manifest import RunManifest
from sim.bench.exactness import Exactness
from sim.bench.options import BenchOptions
from sim.bench.recipe import bench_manifest
from sim.bench.watch import Watch
from sim.local.local_node import LocalNode
from sim.local.options import LocalOptions
from sim.local.recipe import found_run
from sim.local.story import Story
from sim.local.swarm import LocalSwarm
from sim.local.verdict import Evidence, SwarmVerdict, judge

START_S = 300.0
STUCK_S = 180.0
"""Without a seal, a run has failed."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchStage:
    """One run: its folder, its nodes, and what they tell."""

    options: LocalOptions
    is_profiled: bool
    manifest: RunManifest
    story: Story
    swarm: LocalSwarm
    watch: Watch

    @property
    def nodes(self) -> list[LocalNode]:
        """In the order of their start; the first is the founder."""
        return list(self.story.nodes.values())

    @property
    def peers(self) -> list[PeerId]:
        """Of the nodes, in the same order; asked when all of them have said who they are."""
        return [parse_peer_id(node.peer) for node in self.nodes]

    def node_of(self, peer: PeerId) -> LocalNode:
        """The node of a peer."""
        return self.nodes[self.peers.index(peer)]

    def check_nobody_died(self) -> None:
        """Raises StateError for a node that ended though nobody told it to."""
        for death in self.story.deaths:
            raise StateError(f"{death.name} died by itself: {death.why}")


def one_bootstrap(addresses: list[str]) -> list[str]:
    """The founder's address for the second node, and that one's alone for all behind it.

    So founder and bootstrap are two nodes, and each may die.
    """
    return addresses[:2][-1:]


def set_stage(
    bench: BenchOptions, folder: Path, seed: int, now_s: Callable[[], float], *, gate: bool = False
) -> BenchStage:
    """Make the folders, keys and manifest of one run. Raises ConfigError, OSError."""
    try:
        folder.mkdir(parents=True)
        for name in ("nodes", "logs", "traces", "gate"):
            (folder / name).mkdir()
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be used: {error.strerror}") from error
    words: tuple[str, ...] = ("--gate", str(folder / "gate")) if gate else ()
    if bench.is_profiled:
        words += ("--profile", str(folder / "traces"))
    options = bench.local(folder, seed, words)
    manifest = found_run(
        options,
        state=folder / "nodes" / "A",
        manifest_path=folder / "manifest.msgpack",
        amend=partial(
            bench_manifest,
            codec=bench.codec,
            aggregator=bench.aggregator,
            momentum=bench.momentum,
        ),
    )
    story = Story(options.peers, lambda at_s, line: None)
    swarm = LocalSwarm(options, story, now_s, one_bootstrap)
    names = [chr(ord("A") + number) for number in range(options.peers)]
    watch = Watch([folder / "traces" / f"{name}.jsonl" for name in names])
    return BenchStage(
        options=options,
        is_profiled=bench.is_profiled,
        manifest=manifest,
        story=story,
        swarm=swarm,
        watch=watch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is known of a run when it is over."""

    verdict: SwarmVerdict
    inexact: str
    """The first thing that was not exact, in words; empty if all was."""

    num_exact: int
    """Rounds that were computed again."""

    max_error: float

    @property
    def broken(self) -> str:
        """The first promise that was broken, in words."""
        return self.verdict.broken or self.inexact


def look_into(
    stage: BenchStage,
    records: Sequence[Record],
    *,
    gone: Sequence[LocalNode],
    disturbed: Sequence[float],
    tell: Tell,
) -> Findings:
    """Judge the traces, the checkpoints of all but those `gone`, and every sum."""
    tell("checking traces and checkpoints")
    nodes = stage.nodes
    verdict = judge(
        stage.manifest,
        Evidence(
            traces=[node.trace for node in nodes],
            logs=[node.log for node in nodes],
            stayed=[node.state for node in nodes if node not in gone],
            states=[node.state for node in nodes],
            disturbed=disturbed,
        ),
    )
    names = {
        peer: f"{stage.options.seed}/{node.name}"
        for peer, node in zip(stage.peers, nodes, strict=True)
    }
    exactness = Exactness(stage.manifest, names)
    inexact = next(
        exactness.faults(records, lambda number: tell(f"summed round {number} again")), ""
    )
    return Findings(
        verdict=verdict,
        inexact=inexact,
        num_exact=exactness.num_rounds,
        max_error=exactness.max_error,
    )


def strike_stage(stage: BenchStage, *, is_kept: bool) -> None:
    """Remove what takes much space; traces and logs stay."""
    if not is_kept:
        shutil.rmtree(stage.options.folder / "nodes", ignore_errors=True)
