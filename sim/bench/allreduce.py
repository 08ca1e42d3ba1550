"""`barnraise bench allreduce`: rounds in which all hand over at one time, and what they cost."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import trio
from rich.console import Console
from rich.table import Table

from node.processes.children import first_error_nursery
from node.reporting.tracing import Adopted, Record, Signed
from protocol.errors import ConfigError, StateError
from protocol.messages import Kind
from sim.bench.exactness import adopted_round, are_equal, is_together
from sim.bench.sampling import (
    NETWORK_SUFFIX,
    TRAINER_SUFFIX,
    Profile,
    median_profile,
    stages_between,
)
from sim.bench.staging import (
    START_S,
    STUCK_S,
    BenchOptions,
    BenchStage,
    look_into,
    median_of,
    prepare,
    set_stage,
    strike_stage,
    yes_or_no,
)
from sim.bench.trainer import are_ready, let_go, say_over
from sim.processes.sitting import Interrupted, Tell, check_signal, run_until_signal
from sim.processes.usage import cpu_s, memory_bytes, resident_bytes
from training.kernels import arithmetic

_MEMORY_EVERY_S = 0.1
"""What is resident is asked so often, which costs next to nothing."""

_MORE_BYTES = 32 << 20
"""To know what is shared the system walks through all pages of a process, which waits meanwhile for
new ones. So that is asked only where so much more is resident than at any look before."""

_LOOK_EVERY_S = 0.2

MISSES_MAX = 5
"""Measured rounds in which somebody was left out, before the bench gives up: on a machine that
keeps up there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceOptions(BenchOptions):
    """`bench allreduce`: `rounds` are measured, after those in which the swarm comes together."""

    rounds: int = 3

    def __post_init__(self) -> None:
        BenchOptions.__post_init__(self)
        if self.is_profiled:
            check_signal("--profile", "SIGPROF")
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds} is not above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceRound:
    """One measured round."""

    round: int
    wall_s: float
    """From the hand-over of all contributions until every node goes on from the sealed state."""

    exchange_s: float
    """From the first COMMIT to the last SEAL."""

    cpu_s: float
    """Of all processes of all nodes, from the hand-over to the end."""

    bytes_sent_per_peer: int
    profile: Profile = field(default_factory=dict)
    """Empty where none was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceResult:
    """What `bench allreduce` measured and checked."""

    rounds: tuple[AllreduceRound, ...]
    peak_bytes: int
    max_error: float
    result_exact: bool
    digests_equal: bool
    security: str
    state_bytes: int
    """Of the peak: anchor and momentum of all nodes, which are there without an exchange."""
    broken: str

    @property
    def is_good(self) -> bool:
        """Whether nothing was broken, and something was measured."""
        return self.result_exact and self.digests_equal and not self.broken and bool(self.rounds)


def allreduce_json(
    options: AllreduceOptions, commit: str, elements: int, result: AllreduceResult
) -> dict[str, object]:
    """The line that `--json` ends with: medians over the rounds."""
    rounds = result.rounds
    return {
        "wall_s": median_of([one.wall_s for one in rounds]),
        "exchange_s": median_of([one.exchange_s for one in rounds]),
        "cpu_s": median_of([one.cpu_s for one in rounds]),
        "peak_mib": round(result.peak_bytes / 2**20, 1),
        "exchange_peak_mib": round((result.peak_bytes - result.state_bytes) / 2**20, 1),
        "bytes_sent_per_peer": median_of([float(one.bytes_sent_per_peer) for one in rounds]),
        "max_error": result.max_error,
        "digests_equal": result.digests_equal,
        "security": result.security,
        "arithmetic": arithmetic(),
        "result_exact": result.result_exact,
        "peers": options.peers,
        "elements": elements,
        "codec": options.codec,
        "aggregator": options.aggregator,
        "momentum": options.momentum,
        "seed": options.seed,
        "commit": commit,
        "broken": result.broken,
        "profile": median_profile([one.profile for one in rounds]),
        "rounds": [asdict(one) for one in rounds],
    }


def print_allreduce(console: Console, result: AllreduceResult) -> None:
    """A line per round, and what holds for all."""
    table = Table("round", "wall", "exchange", "CPU", "sent per peer", box=None, pad_edge=False)
    for one in result.rounds:
        table.add_row(
            str(one.round),
            f"{one.wall_s:.2f} s",
            f"{one.exchange_s:.2f} s",
            f"{one.cpu_s:.2f} s",
            f"{one.bytes_sent_per_peer / 1e6:.0f} MB",
        )
    console.print(table)
    _print_profile(console, median_profile([one.profile for one in result.rounds]))
    console.print(
        f"memory {result.peak_bytes / 2**20:.0f} MiB at most,"
        f" {(result.peak_bytes - result.state_bytes) / 2**20:.0f} beside the states of all,"
        f" {result.max_error:.2g} from the mean at most, exact: {yes_or_no(result.result_exact)},"
        f" equal: {yes_or_no(result.digests_equal)}, {result.security}, {arithmetic()}"
    )
    if result.broken:
        console.print(result.broken, style="bold red", markup=False)


def _print_profile(console: Console, profile: Profile) -> None:
    """CPU seconds by stage, the costliest first, of the processes of all nodes together."""
    if not any(profile.values()):
        return
    table = Table("CPU s a round", *profile, box=None, pad_edge=False)
    names = {name for stages in profile.values() for name in stages}
    total = {name: sum(stages.get(name, 0.0) for stages in profile.values()) for name in names}
    for name in sorted(names, key=lambda name: -total[name]):
        table.add_row(name, *(f"{stages.get(name, 0.0):.2f}" for stages in profile.values()))
    console.print(table)


class AllreduceRun:
    """Plays one run. `play` it once; what was measured is in `rounds` and `peak_bytes`."""

    def __init__(self, run: BenchStage, num_rounds: int, tell: Tell) -> None:
        self._run = run
        self._num_rounds = num_rounds
        self._tell = tell
        self._gate = run.options.folder / "gate"
        self._round = 0
        self._misses = 0
        self.rounds: list[AllreduceRound] = []
        self.peak_bytes = 0

    async def play(self) -> None:
        """Until so many rounds with everybody in them are measured; no process is left.

        Raises StateError when the swarm does not start, or a round takes too long.
        """
        swarm = self._run.swarm
        try:
            async with first_error_nursery() as nursery:
                nursery.start_soon(self._let_gos)
                await swarm.begin(nursery, within_s=START_S)
                nursery.start_soon(self._watch_memory)
                while len(self.rounds) < self._num_rounds:
                    await trio.sleep(_LOOK_EVERY_S)
                    self._run.check_nobody_died()
                nursery.cancel_scope.cancel()
        finally:
            await swarm.end_all()
            self._run.watch.look()

    async def _let_gos(self) -> None:
        """Let rounds begin, and measure those in which all that are there take part."""
        watch = self._run.watch
        while True:
            self._round += 1
            index = self._round
            names = await self._ready(index)
            is_whole = len(names) == len(self._run.nodes) == self._run.options.peers
            is_measured = is_whole and is_together(watch.records, len(names)) == index - 1 > 0
            pids = [pid for node in self._run.nodes for pid in node.pids]
            sent, cpu_before_s, began_s = self._sent(), cpu_s(pids), time.time()
            own_s = time.process_time()
            let_go(self._gate, index)
            await self._adopted(index, names)
            cpu_used_s, ended_s = cpu_s(pids) - cpu_before_s, time.time()
            say_over(self._gate, index)
            # One whose contribution was left out makes the round cheaper, and no measurement.
            if is_measured and is_together(watch.records, len(names)) != index:
                self._tell(f"round {index}: somebody was left out, so it does not count")
                self._note_miss()
            elif is_measured:
                profile = self._profile(began_s, ended_s)
                if profile:
                    profile["bench"] = {"watching": time.process_time() - own_s}
                # The event that counts the bytes comes with the end of the round.
                await self._run.swarm.until(
                    lambda: all(node.sealed >= self._round for node in self._run.nodes)
                )
                self.rounds.append(
                    measured(
                        watch.records,
                        index,
                        began_s=began_s,
                        cpu_s=cpu_used_s,
                        sent=(self._sent() - sent) // len(names),
                        profile=profile,
                    )
                )
                self._tell(f"round {index}: {self.rounds[-1].wall_s:.2f} s")

    def _note_miss(self) -> None:
        self._misses += 1
        if self._misses > MISSES_MAX:
            raise StateError(f"{self._misses} rounds left somebody out")

    def _profile(self, began_s: float, ended_s: float) -> Profile:
        """CPU seconds of both kinds of process between two moments; empty where none is taken."""
        if not self._run.is_profiled:
            return {}
        traces = [node.trace for node in self._run.nodes]
        return {
            kind: stages_between((t.with_suffix(suffix) for t in traces), began_s, ended_s)
            for kind, suffix in (("network", NETWORK_SUFFIX), ("trainers", TRAINER_SUFFIX))
        }

    async def _ready(self, index: int) -> list[str]:
        """Names of the nodes whose trainers wait: all that are members of the round."""
        names: list[str] = []
        while not names:
            await self._run.watch.next()
            nodes = [node for node in self._run.nodes if node.seated >= index or index == 1]
            wanted = [node.name for node in (nodes if index > 1 else nodes[:1])]
            if wanted and are_ready(self._gate, wanted, index):
                names = wanted
        return names

    async def _adopted(self, index: int, names: Sequence[str]) -> None:
        peers = [
            p for p, n in zip(self._run.peers, self._run.nodes, strict=True) if n.name in names
        ]
        until_s = trio.current_time() + STUCK_S
        found = adopted_round(self._run.watch.records)
        while not all(found.get(peer, 0) >= index for peer in peers):
            if trio.current_time() > until_s:
                raise StateError(f"round {index} did not end within {STUCK_S:.0f} s")
            if await self._run.watch.next():
                found = adopted_round(self._run.watch.records)

    def _sent(self) -> int:
        """Payload bytes that all nodes have sent, as they told with their last seals."""
        return sum(node.bytes_sent for node in self._run.nodes)

    async def _watch_memory(self) -> None:
        looked_at = 0
        while True:
            pids = [pid for node in self._run.nodes for pid in node.pids]
            resident = resident_bytes(pids)
            if resident > looked_at + _MORE_BYTES:
                looked_at = resident
                held = await trio.to_thread.run_sync(memory_bytes, pids)
                self.peak_bytes = max(self.peak_bytes, held)
            await trio.sleep(_MEMORY_EVERY_S)


def measured(
    records: Sequence[Record],
    index: int,
    *,
    began_s: float,
    cpu_s: float,
    sent: int,
    profile: Profile,
) -> AllreduceRound:
    """One round from its records, and from what was measured around it."""
    ends_s = [r.at_s for r in records if isinstance(r, Adopted) and _round(r) == index]
    signed = [r for r in records if isinstance(r, Signed) and r.message.slot.round == index]
    commits_s = [r.at_s for r in signed if r.message.slot.kind is Kind.COMMIT]
    seals_s = [r.at_s for r in signed if r.message.slot.kind is Kind.SEAL]
    return AllreduceRound(
        round=index,
        wall_s=round(max(ends_s) - began_s, 4),
        exchange_s=round(max(seals_s) - min(commits_s), 4),
        cpu_s=round(cpu_s, 3),
        bytes_sent_per_peer=sent,
        profile=profile,
    )


def offered(security: str) -> str:
    """How connections are secured: every protocol that a node offers and takes."""
    from dht.transport.libp2p_host import TransportConfig, securities  # It takes a second to load.

    return " ".join(securities(TransportConfig(security=security)))


def _round(record: Adopted) -> int:
    return record.certificate.value.round


def bench_allreduce(options: AllreduceOptions, tell: Tell) -> tuple[AllreduceResult, int]:
    """The result, and how many elements there were. Raises ConfigError, StateError, Interrupted."""
    prepare(options)
    stage = set_stage(options, options.folder / "run-1", options.seed, gate=True)
    numel = stage.manifest.layout(0).fragment_numels[0]
    tell(f"{options.peers} nodes, {numel:,} elements, seed {options.seed}")
    run = AllreduceRun(stage, options.rounds, tell)
    failed = ""
    try:
        run_until_signal(run.play)
    except StateError as error:
        if not run.rounds:
            raise
        failed = str(error)
    except Interrupted:
        strike_stage(stage, is_kept=options.keep_state)
        raise
    records = stage.watch.records
    findings = look_into(stage, records, gone=(), disturbed=(), tell=tell)
    result = AllreduceResult(
        rounds=tuple(run.rounds),
        peak_bytes=run.peak_bytes,
        max_error=findings.max_error,
        result_exact=not findings.inexact and findings.num_exact > 0,
        digests_equal=are_equal(records) and findings.verdict.checkpoints_equal,
        security=offered(options.security),
        state_bytes=4 * numel * options.peers * (2 if options.momentum else 1),
        broken=failed or findings.broken,
    )
    strike_stage(stage, is_kept=options.keep_state or not result.is_good)
    return result, numel
