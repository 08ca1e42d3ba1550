"""The swarm of one run of a bench: what is asked, set up, watched, and judged at the end."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import trio

from node.processes.machine import check_machine, read_machine
from node.reporting.tracing import Record, parse_trace_line
from node.settings.run_file import topology_for
from node.state.config import SECURITIES
from protocol.errors import ConfigError, DecodeError, StateError
from protocol.identity import PeerId, parse_peer_id
from protocol.manifest import OuterSpec, RunManifest, TimingSpec
from sim.bench.exactness import Exactness
from sim.local.local_node import LocalNode
from sim.local.options import (
    ELEMENTS_MAX,
    ELEMENTS_MIN,
    PEERS_MAX,
    PEERS_MIN,
    LocalOptions,
    found_run,
)
from sim.local.swarm import LocalSwarm, Story
from sim.local.verdict import Evidence, SwarmVerdict, judge
from sim.processes.node_process import NODE_COMMAND, node_name
from sim.processes.sitting import (
    Tell,
    check_choice,
    check_range,
    claim_folder,
    clear_nodes,
    clock,
    rounded,
)
from sim.processes.usage import ADVICE, needs
from training.aggregation import AGGREGATORS
from training.compression import CODECS

TRAINER = "sim.bench.trainer"
PROFILED_NODE_COMMAND = (sys.executable, "-P", "-m", "sim.bench.sampling")

START_WITHIN_S = 120.0
"""Four nodes with 10^8 elements have four rounds behind them after 75 s on two cores. Of a founder
that goes on before the others have seats, they would run after the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What every bench is told. `folder` is where everything goes; it must be new or empty."""

    peers: int
    elements: int
    folder: Path
    seed: int = 0
    train_s: float = 0.2
    codec: str = "none"
    aggregator: str = "mean"
    momentum: float = 0.0
    """Of the outer step (Nesterov); 0 takes plain averaging, which keeps nothing."""

    security: str = "tls"
    """How connections are encrypted; see `NodeConfig.security`."""

    keep_state: bool = False
    is_profiled: bool = False
    """Whether all processes are sampled for what they work for."""

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, PEERS_MIN, PEERS_MAX)
        check_range("--elements", self.elements, ELEMENTS_MIN, ELEMENTS_MAX)
        check_choice("--codec", self.codec, CODECS)
        check_choice("--aggregator", self.aggregator, AGGREGATORS)
        check_choice("--security", self.security, SECURITIES)
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"--momentum {self.momentum} is not in [0, 1)")

    def local(self, folder: Path, seed: int, words: tuple[str, ...] = ()) -> LocalOptions:
        """The swarm of one run of the bench; `words` are more options of its trainers."""
        return LocalOptions(
            peers=self.peers,
            elements=self.elements,
            folder=folder,
            seed=seed,
            train_s=self.train_s,
            security=self.security,
            start_within_s=START_WITHIN_S,
            trainer_module=TRAINER,
            trainer_words=words,
            node_command=PROFILED_NODE_COMMAND if self.is_profiled else NODE_COMMAND,
        )


def prepare(options: BenchOptions) -> None:
    """Make the folder and look whether this machine is large enough. Raises ConfigError."""
    claim_folder(options.folder)
    wants, machine = needs(options.peers, options.elements), read_machine(options.folder)
    check_machine(wants, machine, advice=ADVICE.format("--peers or --elements"))


# The run's manifest -------------------------------------------------------------------------------

HEARTBEAT_S, SUSPECT_S = 0.4, 2.0
"""A dead peer is told by its sockets; a frozen one only by five beats that did not come. Four nodes
with 5 * 10^7 elements on two cores leave each other without a word for 1.2 s at the longest."""

DEADLINE_FLOOR_S, DEADLINE_CAP_S = 1.0, 120.0
SLOW_BYTES_PER_S = 20e6
"""What a peer gets rid of at least, before the deadlines are learned from rounds: else a swarm that
comes together with large vectors would begin one attempt after the other."""


def timing(elements: int) -> TimingSpec:
    """The deadlines of a run with vectors of so many elements."""
    floor_s = max(DEADLINE_FLOOR_S, 4.0 * elements / SLOW_BYTES_PER_S)
    return TimingSpec(
        deadline_floor_s=floor_s,
        deadline_cap_s=max(DEADLINE_CAP_S, 2.0 * floor_s),
        heartbeat_s=HEARTBEAT_S,
        suspect_s=SUSPECT_S,
    )


def bench_manifest(
    base: RunManifest, codec: str, aggregator: str, momentum: float = 0.0
) -> RunManifest:
    """The same run with plain averaging: the anchor moves by the aggregate, nothing is kept but
    the momentum, where there is one."""
    outer = OuterSpec(
        preset="diloco",
        codec=codec,
        feedback=0.0,
        aggregator=aggregator,
        optimizer="nesterov" if momentum else "sgd",
        learning_rate=1.0,
        momentum=momentum,
        overlap=1,
    )
    outer = replace(outer, topology=topology_for(outer, base.trust))
    numel = base.layout(0).fragment_numels[0]
    return replace(base, title="barnraise bench", outer=outer, timing=timing(numel))


# What nodes do, as they do it ---------------------------------------------------------------------

LOOK_S = 0.004
"""Small beside the phases of a round, and under a hundredth of a core for four nodes."""


class TraceTail:
    """One growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def news(self) -> list[Record]:
        """The records that came since the last call; lines that are none are passed over."""
        try:
            if self._path.stat().st_size == self._position:
                return []
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        records = []
        for line in lines:
            try:
                records.append(parse_trace_line(line.decode("utf-8", "replace")))
            except DecodeError:
                continue
        return records


class Watch:
    """All files of one run. `records` are all that were seen so far, by time within each look."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tails = [TraceTail(path) for path in paths]
        self.records: list[Record] = []

    async def next(self) -> list[Record]:
        """The records of one more look, none of them if nothing happened."""
        await trio.sleep(LOOK_S)
        return self.look()

    def look(self) -> list[Record]:
        """The same at once."""
        fresh = [record for tail in self._tails for record in tail.news()]
        fresh.sort(key=lambda record: record.at_s)
        self.records += fresh
        return fresh


# One run ------------------------------------------------------------------------------------------

START_S = 300.0
STUCK_S = 180.0
"""Without a seal, a run has failed."""


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


def set_stage(bench: BenchOptions, folder: Path, seed: int, *, gate: bool = False) -> BenchStage:
    """Make the folders, keys and manifest of one run. Raises ConfigError, OSError."""
    claim_folder(folder, "nodes", "logs", "traces", "gate")
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
    swarm = LocalSwarm(options, story, clock(), one_bootstrap)
    names = map(node_name, range(options.peers))
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
        clear_nodes(stage.options.folder)


def median_of(values: Sequence[float | None]) -> float | None:
    """The median of those that are known, rounded for a report."""
    known = [value for value in values if value is not None]
    return rounded(statistics.median(known)) if known else None


def yes_or_no(is_so: bool) -> str:
    """For a table, in which what is wrong is loud."""
    return "yes" if is_so else "NO"
