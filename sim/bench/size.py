"""`barnraise bench size`: what two nodes take of a machine at sizes that matter, beside what
`barnraise check` foretells.

The built-in GPT of each size is trained by two real nodes on loopback, by a run.toml as `barnraise
init` writes it. The system says what their processes take (Linux): memory where what they share
counts once, and bytes that went to the disk.
"""

import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from node.processes.children import first_error_nursery
from node.processes.machine import Wants, check_machine, held_bytes, read_machine
from node.settings.check import Costs, costs_of
from node.settings.footprint import (
    CHECKPOINT,
    MOMENTS,
    NETWORK_BASE_BYTES,
    TRAINER_BASE_BYTES,
    wants_of,
)
from node.settings.run_file import Founder, build_manifest, write_out
from node.settings.sections import (
    AuditsSection,
    InnerSection,
    ModelSection,
    OuterSection,
    RunFile,
    RunSection,
)
from protocol.errors import ConfigError, StateError
from protocol.limits import MIB
from protocol.manifest import RunManifest
from sim.bench.staging import START_S
from sim.local.local_node import LocalNode
from sim.local.options import LocalOptions, found_run
from sim.local.swarm import LocalSwarm, Story
from sim.processes import events
from sim.processes.events import Event, RoundTimed
from sim.processes.sitting import Tell, check_choice, check_range, claim_folder, clock
from sim.processes.usage import ADVICE, PeakMemory, written_bytes
from training.loop.sums import MOMENTS_FILE
from training.models.genesis import GPT_SIZES

PEERS = 2
SETTLING_ROUNDS = 2
"""Of each node, before those that are measured: a founder may have been alone in its first."""

LOOK_S, LOOK_SHARE = 0.5, 0.04
"""Between two looks at the memory, and which share of the time they may take: the system counts
every page of a process."""

ROUND_S_MAX = 3600.0
"""A round that takes longer has failed."""

STEPS_MAX, ROUNDS_MAX, BATCH_MAX = 1000, 1000, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOptions:
    """What is asked. `folder` is where everything goes; it must be new or empty."""

    sizes: tuple[str, ...]
    folder: Path
    steps: int = 10
    """Inner steps of a round (H)."""

    rounds: int = 10
    """That are measured, of each node."""

    batch: int = 2
    context: int = 64
    """Bytes of a sequence: few, so that two cores take a step within seconds."""

    fragments: int = 1
    audits: float = 0.0
    """Of each contribution, on average; the run is open where there are any."""

    seed: int = 0
    is_unchecked: bool = False
    """Whether to start even where the machine looks too small."""

    keep_state: bool = False

    def __post_init__(self) -> None:
        for name in self.sizes:
            check_choice("--sizes", name, GPT_SIZES)
        if not self.sizes:
            raise ConfigError(f"--sizes names none of {', '.join(GPT_SIZES)}")
        check_range("--steps", self.steps, 2, STEPS_MAX)
        check_range("--rounds", self.rounds, 1, ROUNDS_MAX)
        check_range("--batch", self.batch, 1, BATCH_MAX)
        check_range("--context", self.context, 1, GPT_SIZES["1b"].context)
        check_range("--audits", self.audits, 0, 1)

    def manifest(self, name: str, base: RunManifest) -> RunManifest:
        """The run of one size: what `barnraise init` writes, but for what was asked."""
        size = GPT_SIZES[name]
        settings = {**size.settings, "context": self.context}
        parsed = RunFile(
            run=RunSection(
                title="barnraise bench size", trust="open" if self.audits else "friends"
            ),
            audits=AuditsSection(rate=self.audits),
            outer=OuterSection(fragments=self.fragments),
            model=ModelSection(seed=self.seed, settings=dict(settings)),
            inner=InnerSection(
                inner_steps=self.steps, batch=self.batch, learning_rate=size.learning_rate
            ),
        )
        about = Path(f"bench size {name}")
        founder = Founder(base.founder, base.created_unix_s)
        return build_manifest(write_out(parsed, about), founder, about)


# What nodes told ----------------------------------------------------------------------------------


@dataclass(slots=True)
class RoundTold:
    """A round of one trainer: when it had its lease, and where its time went."""

    began_s: float
    timed: RoundTimed | None = None


def steps_share(rounds: Sequence[RoundTold]) -> float:
    """The share of the time of these rounds in which the trainer took inner steps. Pure."""
    timed = [one.timed for one in rounds if one.timed is not None]
    return sum(one.train_s for one in timed) / max(1e-9, sum(one.round_s for one in timed))


@dataclass(slots=True)
class SeldomWrites:
    """How often a node wrote what is not written in each round, by its purpose."""

    counts: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def look(self, folder: Path) -> None:
        """At the folder of a node, at least once a round: a file that is new was written."""
        found = {(CHECKPOINT, path.name) for path in folder.glob("runs/*/checkpoints/round-*")}
        for path in folder.glob(f"runs/*/inner/{MOMENTS_FILE}"):
            with suppress(OSError):  # It is being replaced.
                found.add((MOMENTS, str(path.stat().st_mtime_ns)))
        self.counts.update(purpose for purpose, _ in found - self._seen)
        self._seen |= found


@dataclass(slots=True)
class NodeTold:
    """What one node told and took, while it goes on."""

    rounds: list[RoundTold] = field(default_factory=list)
    sealed: dict[int, bool] = field(default_factory=dict)
    """By round, whether this node's contribution is in it."""

    network: PeakMemory = field(default_factory=PeakMemory)
    trainer: PeakMemory = field(default_factory=PeakMemory)

    first: int = 0
    """How many rounds it had begun before the measured ones."""

    num_sealed: int = 0
    """So many had it heard sealed by then."""

    written_bytes: int = 0
    """By then, and at last in the measured rounds."""

    seldom: SeldomWrites = field(default_factory=SeldomWrites)
    disk_bytes: int = 0
    """The most that its folder had behind a measured round."""

    def hear(self, event: Event, now_s: float) -> None:
        """Take an event in."""
        match event:
            case events.MethodChosen():
                self.rounds.append(RoundTold(now_s))
            case events.RoundTimed() if self.rounds:
                self.rounds[-1].timed = event
            case events.RoundSealed(round=index, was_listed=was_listed):
                self.sealed[index] = was_listed
            case _:
                pass

    @property
    def measured(self) -> Sequence[RoundTold]:
        """Its measured rounds; the one in hand is not over."""
        return self.rounds[self.first : -1]

    @property
    def length_s(self) -> float:
        """What the measured rounds took, all together."""
        return self.rounds[-1].began_s - self.rounds[self.first].began_s

    @property
    def listings(self) -> Sequence[bool]:
        """Of each round that was sealed meanwhile, whether this node is in it."""
        return list(self.sealed.values())[self.num_sealed :]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """What was measured of one size, of the node that took more, and what was foretold."""

    name: str
    costs: Costs
    network_bytes: int
    trainer_bytes: int
    """Peak memory of each process, its share of what both have counted once."""

    written_bytes: float
    """By both processes, in a round."""

    foretold_bytes: float
    """The same, with what is written seldom as often as it was."""

    disk_bytes: int
    """Of a node's folder, at most."""

    steps_share: float
    listed_share: float
    round_s: float
    step_s: float

    def __str__(self) -> str:
        memory = f"{self.network_bytes / MIB:.0f} and {self.trainer_bytes / MIB:.0f} MiB"
        written = f"{self.written_bytes / MIB:.0f} MiB written a round"
        return f"{memory}, {written}, {self.steps_share:.0%} of the time in steps"

    @property
    def errors(self) -> dict[str, float]:
        """By what was foretold, how far off it is, as a share of what was measured."""
        pairs = {
            "network_memory": (self.costs.network_memory_bytes, self.network_bytes),
            "trainer_memory": (self.costs.trainer_memory_bytes, self.trainer_bytes),
            "written": (self.foretold_bytes, self.written_bytes),
        }
        return {name: told / max(1, found) - 1.0 for name, (told, found) in pairs.items()}

    def as_json(self) -> dict[str, object]:
        """One of `rows`."""
        numel = self.costs.parameters
        return {
            "size": self.name,
            "parameters": numel,
            "network_bytes_per_param": round(
                max(0, self.network_bytes - NETWORK_BASE_BYTES) / numel, 2
            ),
            "trainer_bytes_per_param": round(
                max(0, self.trainer_bytes - TRAINER_BASE_BYTES - self.costs.activation_bytes)
                / numel,
                2,
            ),
            "written_bytes_per_param_round": round(self.written_bytes / numel, 2),
            "steps_share": round(self.steps_share, 4),
            "listed_share": round(self.listed_share, 4),
            "check_error": round(max(map(abs, self.errors.values())), 4),
            "network_bytes": self.network_bytes,
            "trainer_bytes": self.trainer_bytes,
            "disk_bytes_per_param": round(self.disk_bytes / numel, 2),
            "round_s": round(self.round_s, 3),
            "step_s": round(self.step_s, 4),
            "check": {
                "network_memory_bytes": self.costs.network_memory_bytes,
                "trainer_memory_bytes": self.costs.trainer_memory_bytes,
                "activation_bytes": self.costs.activation_bytes,
                "written_bytes": round(self.foretold_bytes),
                "errors": {name: round(error, 4) for name, error in self.errors.items()},
            },
        }


def size_json(options: SizeOptions, commit: str, rows: Sequence[SizeRow]) -> dict[str, object]:
    """The line that `--json` ends with."""
    return {
        "rows": [row.as_json() for row in rows],
        "steps": options.steps,
        "rounds": options.rounds,
        "batch": options.batch,
        "context": options.context,
        "fragments": options.fragments,
        "audits": options.audits,
        "seed": options.seed,
        "network_base_bytes": NETWORK_BASE_BYTES,
        "trainer_base_bytes": TRAINER_BASE_BYTES,
        "commit": commit,
    }


def print_sizes(console: Console, rows: Sequence[SizeRow]) -> None:
    """The same for people."""
    table = Table("size", box=None, pad_edge=False)
    sizes = ("network B/p", "trainer B/p", "written B/p", "disk B/p")
    for title in (*sizes, "steps", "listed", "a round"):
        table.add_column(title, justify="right")
    table.add_column("check off by", justify="right")
    for row in rows:
        found = row.as_json()
        off = " ".join(f"{error:+.0%}" for error in row.errors.values())
        table.add_row(
            f"{row.costs.parameters:,}",
            f"{found['network_bytes_per_param']:.1f}",
            f"{found['trainer_bytes_per_param']:.1f}",
            f"{found['written_bytes_per_param_round']:.1f}",
            f"{found['disk_bytes_per_param']:.1f}",
            f"{row.steps_share:.0%}",
            f"{row.listed_share:.0%}",
            f"{row.round_s:.1f} s",
            off,
        )
    console.print(table)


# One size ----------------------------------------------------------------------------------------


class SizeRun:
    """Plays all sizes, one behind the other. `play` it once; `rows` are what was found."""

    def __init__(self, options: SizeOptions, tell: Tell) -> None:
        self._options, self._tell, self._now_s = options, tell, clock()
        self.rows: list[SizeRow] = []

    async def play(self) -> None:
        """No process is left, nor the folder, however it ends; where a size fails its logs stay.

        Raises ConfigError for a folder that cannot be used or a machine that is too small,
        StateError when a swarm is stuck.
        """
        options, folder = self._options, self._options.folder
        claim_folder(folder)
        is_kept = options.keep_state
        try:
            for name in options.sizes:
                row = await self._measure(name)
                self.rows.append(row)
                self._tell(f"{name}: {row}")
        except StateError as error:
            is_kept = True
            raise StateError(f"{error}; see {folder}") from error
        finally:
            if not is_kept:
                shutil.rmtree(folder, ignore_errors=True)

    async def _measure(self, name: str) -> SizeRow:
        options = self._options
        folder = options.folder / name
        claim_folder(folder, "nodes", "logs", "traces")
        local = LocalOptions(
            peers=PEERS,
            folder=folder,
            seed=options.seed,
            trainer="real",
            start_within_s=START_S,
            validates=True,
        )
        manifest = found_run(
            local,
            state=folder / "nodes" / "A",
            manifest_path=folder / "manifest.msgpack",
            amend=lambda base: options.manifest(name, base),
        )
        costs = costs_of(manifest, PEERS)
        if not options.is_unchecked:
            each = wants_of(manifest, PEERS)
            wants = Wants(
                memory_bytes=PEERS * each.memory_bytes, disk_bytes=PEERS * each.disk_bytes
            )
            check_machine(wants, read_machine(folder), advice=ADVICE.format("--sizes"))
        self._tell(f"{name}: {costs.parameters:,} parameters, {PEERS} nodes")
        told = await self._train(local)
        if not options.keep_state:
            shutil.rmtree(folder / "nodes", ignore_errors=True)
        return row_of(name, costs, told)

    async def _train(self, local: LocalOptions) -> Sequence[NodeTold]:
        """Until enough rounds of each node are measured."""
        told: dict[str, NodeTold] = {}

        def hear(node: LocalNode, event: Event, now_s: float) -> None:
            told.setdefault(node.name, NodeTold()).hear(event, now_s)

        story = Story(PEERS, lambda at_s, line: None, also=hear)
        swarm = LocalSwarm(local, story, self._now_s)
        try:
            async with first_error_nursery() as nursery:
                nursery.start_soon(_watch_memory, story, told)
                await swarm.begin(nursery, within_s=ROUND_S_MAX)
                await self._until(swarm, told, SETTLING_ROUNDS)
                for name, one in told.items():
                    one.first, one.num_sealed = len(one.rounds) - 1, len(one.sealed)
                    one.seldom.look(story.nodes[name].state)
                    one.seldom.counts.clear()
                    one.written_bytes = written_bytes(_pids(story.nodes[name]))
                for number in range(1, self._options.rounds + 1):
                    await self._until(swarm, told, number)
                    for name, one in told.items():
                        folder = story.nodes[name].state
                        one.seldom.look(folder)
                        one.disk_bytes = max(one.disk_bytes, held_bytes(folder))
                    self._tell(f"round {number} of {self._options.rounds}")
                for name, one in told.items():
                    one.written_bytes = written_bytes(_pids(story.nodes[name])) - one.written_bytes
                nursery.cancel_scope.cancel()
        finally:
            await swarm.end_all()
        return list(told.values())

    async def _until(self, swarm: LocalSwarm, told: Mapping[str, NodeTold], over: int) -> None:
        """Until so many rounds of each node are over since it began to be measured. Raises
        StateError where nothing moves."""

        def is_reached() -> bool:
            is_over = all(len(one.rounds) - one.first > over for one in told.values())
            return bool(swarm.story.deaths) or (len(told) == PEERS and is_over)

        with trio.move_on_after(ROUND_S_MAX) as scope:
            await swarm.until(is_reached)
        if scope.cancelled_caught or swarm.story.deaths:
            why = "; ".join(f"{one.name}: {one.why}" for one in swarm.story.deaths)
            raise StateError(why or f"a round is not over after {ROUND_S_MAX:.0f} s")


def row_of(name: str, costs: Costs, told: Sequence[NodeTold]) -> SizeRow:
    """What two nodes told and took, as a row. Pure."""
    num_rounds = [len(one.measured) for one in told]
    each_s = [one.length_s / count for one, count in zip(told, num_rounds, strict=True)]
    written = [
        (one.written_bytes / count, costs.written_bytes + _seldom_bytes(costs, one) / count)
        for one, count in zip(told, num_rounds, strict=True)
    ]
    listings = [is_in for one in told for is_in in one.listings]
    timed = [round_.timed for one in told for round_ in one.measured if round_.timed is not None]
    steps = [one.train_s / max(1, one.steps) for one in timed]
    return SizeRow(
        name=name,
        costs=costs,
        network_bytes=max(one.network.num_bytes for one in told),
        trainer_bytes=max(one.trainer.num_bytes for one in told),
        written_bytes=max(written)[0],
        foretold_bytes=max(written)[1],
        disk_bytes=max(one.disk_bytes for one in told),
        steps_share=min(steps_share(one.measured) for one in told),
        listed_share=sum(listings) / max(1, len(listings)),
        round_s=statistics.mean(each_s),
        step_s=statistics.median(steps),
    )


def _seldom_bytes(costs: Costs, told: NodeTold) -> int:
    """What `check` says of what was written seldom, as often as it was."""
    counts = told.seldom.counts
    return counts[CHECKPOINT] * costs.checkpoint_bytes + counts[MOMENTS] * costs.moments_bytes


async def _watch_memory(story: Story, told: Mapping[str, NodeTold]) -> None:
    """Keep the most that each process takes, until cancelled."""
    while True:
        began_s = trio.current_time()
        # As of now: a node may begin to tell while another one is looked at.
        for name, one in list(told.items()):
            await trio.to_thread.run_sync(_look_at_memory, story.nodes[name], one)
        took_s = trio.current_time() - began_s
        await trio.sleep(max(LOOK_S, took_s / LOOK_SHARE))


def _look_at_memory(node: LocalNode, told: NodeTold) -> None:
    """Of both processes, as far as they are there."""
    if node.process is not None:
        told.network.look(node.process.pid)
    if node.trainer_pid is not None:
        told.trainer.look(node.trainer_pid)


def _pids(node: LocalNode) -> Sequence[int]:
    """Of both its processes."""
    pids = () if node.process is None else (node.process.pid,)
    return pids if node.trainer_pid is None else (*pids, node.trainer_pid)
