"""`barnraise bench fault`: runs with one fault in each, or with none, and what their records say.

A fault is dealt at a moment of a round and to a role, which follow from the seed.
"""

import math
import random
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import trio
from rich.console import Console
from rich.table import Table

from node.processes.children import first_error_nursery
from node.reporting.tracing import Adopted, Record, Signed
from protocol.errors import ConfigError, StateError
from protocol.identity import PeerId
from protocol.messages import Kind, SealValue
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import slices
from sim.bench.exactness import (
    BenchFault,
    adopted_round,
    are_equal,
    false_exclusions,
    is_together,
    next_round_s,
    recovered_s,
)
from sim.bench.staging import (
    START_S,
    STUCK_S,
    BenchOptions,
    BenchStage,
    Findings,
    look_into,
    median_of,
    prepare,
    set_stage,
    strike_stage,
    yes_or_no,
)
from sim.processes.sitting import (
    Interrupted,
    Tell,
    check_choice,
    check_range,
    check_signal,
    rounded,
    run_until_signal,
)

RANDOM = "random"

MOMENTS = ("training", "parts", "have", "vote", "sum", "seal")
"""Each begins with what `_begins` says and ends where the next one begins."""

ROLES = ("member", "reducer", "closer", "founder", "bootstrap")
FOUNDER, BOOTSTRAP = 0, 1
"""In the order of the start. The nodes behind the second are told of that one only."""

_KINDS = {
    Kind.COMMIT: "parts",
    Kind.HAVE: "have",
    Kind.LIST: "vote",
    Kind.AGG: "sum",
    Kind.SEAL: "seal",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault that is to come: `delay` is a share of the moment's usual length, [0, 1)."""

    moment: str
    role: str
    delay: float
    whom: float
    """Which of those that fit the role, [0, 1)."""


def plan(moment: str, victim: str, *, seed: int) -> FaultPlan:
    """Draws what is left to chance."""
    stream = random.Random(f"{seed}/bench fault")
    drawn_moment, drawn_role = stream.choice(MOMENTS), stream.choice(ROLES)
    return FaultPlan(
        moment=drawn_moment if moment == RANDOM else moment,
        role=drawn_role if victim == RANDOM else victim,
        delay=stream.random(),
        whom=stream.random(),
    )


def victim_of(plan: FaultPlan, peers: Sequence[PeerId], head: SealValue, num_cells: int) -> PeerId:
    """Who is struck in the round that follows `head`; `peers` in the order of their start."""
    match plan.role:
        case "founder":
            return peers[FOUNDER]
        case "bootstrap":
            return peers[BOOTSTRAP]
        case "closer":
            return rosters.closer(head.roster, head.digest, head.shard, 0)
        case "reducer":
            pieces = slices(head.roster, head.digest, num_cells, trust="friends")
            fitting: Sequence[PeerId] = sorted({piece.reducers[0] for piece in pieces})
        case _:
            fitting = [peer for peer in peers[1:] if peer in head.roster.members]
    return fitting[int(plan.whom * len(fitting))]


def stage(record: Record) -> tuple[int, str] | None:
    """The round and the moment that a record begins; None for one that begins none.

    A moment begins with its first record of anybody. "parts" of a victim begin with its own COMMIT.
    """
    if isinstance(record, Adopted):
        return record.certificate.value.round + 1, "training"
    if isinstance(record, Signed):
        slot = record.message.slot
        if slot.kind in _KINDS:
            return slot.round, _KINDS[slot.kind]
    return None


class Stages:
    """When each moment of each round began."""

    def __init__(self) -> None:
        self._began_s: dict[int, dict[str, float]] = {}

    def saw(self, record: Record) -> None:
        """Take a record of any node in."""
        found = stage(record)
        if found is not None:
            times = self._began_s.setdefault(found[0], {})
            times[found[1]] = min(record.at_s, times.get(found[1], record.at_s))

    def usual_s(self, moment: str) -> float:
        """The median length of a moment in the rounds that are over; 0 if none is."""
        lengths = []
        for index, times in self._began_s.items():
            order = [*(times.get(name) for name in MOMENTS), self._next_s(index)]
            first = order[MOMENTS.index(moment)]
            behind = [at_s for at_s in order[MOMENTS.index(moment) + 1 :] if at_s is not None]
            if first is not None and behind:
                lengths.append(max(0.0, behind[0] - first))
        return statistics.median(lengths) if lengths else 0.0

    def _next_s(self, index: int) -> float | None:
        following: Mapping[str, float] = self._began_s.get(index + 1, {})
        return following.get("training")


# What is asked ------------------------------------------------------------------------------------

FAULTS = ("kill", "freeze", "none")
PEERS_FOR_FAULT = 3
REPEAT_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions(BenchOptions):
    """`bench fault`. Without a fault it counts whom a calm swarm of `rounds` rounds excludes."""

    fault: str = "kill"
    moment: str = RANDOM
    victim: str = RANDOM
    repeat: int = 5
    rounds: int = 200

    def __post_init__(self) -> None:
        BenchOptions.__post_init__(self)
        check_choice("--fault", self.fault, FAULTS)
        check_choice("--moment", self.moment, (*MOMENTS, RANDOM))
        check_choice("--victim", self.victim, (*ROLES, RANDOM))
        if self.fault != "none" and self.peers < PEERS_FOR_FAULT:
            raise ConfigError(
                f"--fault takes at least {PEERS_FOR_FAULT} peers: of {self.peers}, one that is "
                "missing may leave no quorum"
            )
        if self.fault == "freeze":
            check_signal("--fault freeze", "SIGSTOP")
        check_range("--repeat", self.repeat, 1, REPEAT_MAX)
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds} is not above 0")

    @property
    def is_calm(self) -> bool:
        """Whether nothing is done to anybody."""
        return self.fault == "none"


# One run ------------------------------------------------------------------------------------------

CALM_ROUNDS = 2
"""With everybody in them, before a fault: deadlines and rates are learned from rounds."""


@dataclass(slots=True, kw_only=True)
class Played:
    """What was done in a run. `dealt` is None in a calm one."""

    dealt: BenchFault | None = None
    round: int = 0
    """In which the fault was dealt."""


class FaultRun:
    """Plays one run. `play` it once."""

    def __init__(
        self, run: BenchStage, fault: str, plan: FaultPlan, tell: Tell, *, calm_rounds: int = 0
    ) -> None:
        """Without a fault it goes on until everybody has `calm_rounds` rounds."""
        self._run = run
        self._fault = fault
        self._plan = plan
        self._tell = tell
        self._calm_rounds = calm_rounds
        self._stages = Stages()
        self.played = Played()

    async def play(self) -> None:
        """Until the survivors have sealed; no process is left, however it ends.

        Raises StateError when the swarm does not start or seals nothing for long.
        """
        swarm = self._run.swarm
        try:
            async with first_error_nursery() as nursery:
                await swarm.begin(nursery, within_s=START_S)
                self._tell("all nodes have sealed")
                if self._fault == "none":
                    await self._until_all_have(self._calm_rounds)
                else:
                    await self._deal_in(await self._calm_round())
                nursery.cancel_scope.cancel()
        finally:
            await swarm.end_all()
            self._run.watch.look()

    # Before -------------------------------------------------------------------------------------

    async def _calm_round(self) -> int:
        """The last of so many rounds in a row in which everybody took part."""
        first = 0

        def last_calm() -> int:
            nonlocal first
            together = is_together(self._run.watch.records, len(self._run.nodes))
            first = first or together
            newest = min(self._adopted().values(), default=0)
            return newest if first and newest >= first + CALM_ROUNDS - 1 else 0

        await self._watch_until(lambda _: last_calm() > 0, "the swarm did not come together")
        return last_calm()

    def _adopted(self) -> dict[PeerId, int]:
        found = adopted_round(self._run.watch.records)
        return {peer: found.get(peer, 0) for peer in self._run.peers}

    async def _until_all_have(self, rounds: int) -> None:
        told = 0

        def is_over(_: list[Record]) -> bool:
            nonlocal told
            least = min(self._adopted().values())
            if least > told:
                told = least
                self._tell(f"round {least} of {rounds}")
            return least >= rounds

        await self._watch_until(is_over, "the calm swarm got stuck")

    async def _watch_until(self, is_over: Callable[[list[Record]], bool], why: str) -> None:
        """Look until that holds. Raises StateError when nothing was sealed for long."""
        sealed_s = trio.current_time()
        while True:
            fresh = await self._run.watch.next()
            for record in fresh:
                self._stages.saw(record)
            if any(isinstance(record, Adopted) for record in fresh):
                sealed_s = trio.current_time()
            if fresh and is_over(fresh):
                return
            self._run.check_nobody_died()
            if trio.current_time() > sealed_s + STUCK_S:
                raise StateError(f"{why}: no seal for {STUCK_S:.0f} s")

    # The fault ----------------------------------------------------------------------------------

    async def _deal_in(self, calm: int) -> None:
        """In the round behind the next seal."""
        heads: list[SealValue] = []

        def has_head(fresh: list[Record]) -> bool:
            heads.extend(
                record.certificate.value
                for record in fresh
                if isinstance(record, Adopted) and record.certificate.value.round > calm
            )
            return bool(heads)

        await self._watch_until(has_head, "no seal before the fault")
        head, plan, run = heads[0], self._plan, self._run
        num_cells = run.manifest.layout(head.shard).num_cells(0)
        victim = victim_of(plan, run.peers, head, num_cells)
        if plan.moment != "training":
            await self._watch_until(
                lambda fresh: any(self._begins(record, head.round + 1, victim) for record in fresh),
                f"the moment {plan.moment!r} did not come",
            )
        await trio.sleep(plan.delay * self._stages.usual_s(plan.moment))
        dealt = self._strike(victim)
        self.played.round = head.round + 1
        survivors = [peer for peer in run.peers if peer != victim]
        # Not so many rounds behind the last that was read: the trace may be behind the nodes.
        await self._watch_until(
            lambda _: next_round_s(run.watch.records, dealt, survivors) is not None,
            f"the survivors got stuck after the {self._fault} of {run.node_of(victim).name}",
        )
        run.node_of(victim).signal_both(signal.SIGKILL)

    def _begins(self, record: Record, index: int, victim: PeerId) -> bool:
        """Whether that record begins the moment, or is behind it."""
        found = stage(record)
        if found is None or found[0] < index:
            return False
        if isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            return self._plan.moment == "parts" and record.peer == victim
        return found[1] == self._plan.moment or found[0] > index

    def _strike(self, victim: PeerId) -> BenchFault:
        node = self._run.node_of(victim)
        node.is_meant_to_end = True
        node.status = "down" if self._fault == "kill" else "frozen"
        at_s = time.time()
        node.signal_both(signal.SIGKILL if self._fault == "kill" else signal.SIGSTOP)
        self.played.dealt = dealt = BenchFault(victim=victim, at_s=at_s)
        self._tell(f"{self._fault} {node.name}, {self._plan.role}, at {self._plan.moment!r}")
        return dealt


# What is told ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """One run of `bench fault`. Times are seconds; None where nothing came of it."""

    seed: int
    moment: str = ""
    role: str = ""
    victim: str = ""
    """The node's name; empty in a calm run."""

    round: int = 0
    recovered_s: float | None = None
    """From the fault until the last survivor had its first seal after it."""

    next_round_s: float | None = None
    """Until the last survivor had the first round that was begun without the victim."""

    calm_round_s: float | None = None
    """The median round before the fault."""

    result_exact: bool = False
    digests_equal: bool = False
    false_exclusions: int = 0
    num_exact: int = 0
    broken: str = ""
    """The first promise that was broken, or why the run failed, in words; empty if all is well."""

    @property
    def is_good(self) -> bool:
        """Whether nothing was broken."""
        return self.result_exact and self.digests_equal and not self.broken


def fault_json(
    options: FaultOptions, commit: str, elements: int, runs: Sequence[FaultResult]
) -> dict[str, object]:
    """The line that `--json` ends with."""
    broken = next((run.broken for run in runs if run.broken), "")
    return {
        "recovered_s": _median_of_all([run.recovered_s for run in runs]),
        "result_exact": bool(runs) and all(run.result_exact for run in runs),
        "digests_equal": bool(runs) and all(run.digests_equal for run in runs),
        "false_exclusions": sum(run.false_exclusions for run in runs),
        "next_round_s": _median_of_all([run.next_round_s for run in runs]),
        "calm_round_s": median_of([run.calm_round_s for run in runs]),
        "rounds_checked": sum(run.num_exact for run in runs),
        "broken": broken,
        "fault": options.fault,
        "moment": options.moment,
        "victim": options.victim,
        "peers": options.peers,
        "elements": elements,
        "seed": options.seed,
        "commit": commit,
        "runs": [asdict(run) for run in runs],
    }


def print_faults(console: Console, options: FaultOptions, runs: Sequence[FaultResult]) -> None:
    """A line per run, and the median."""
    table = Table(
        *("seed", "victim", "moment", "first seal", "next round", "calm round", "exact", "equal"),
        *("false exclusions",),
        box=None,
        pad_edge=False,
    )
    for run in runs:
        table.add_row(
            str(run.seed),
            f"{run.victim} {run.role}".strip(),
            run.moment,
            _seconds(run.recovered_s),
            _seconds(run.next_round_s),
            _seconds(run.calm_round_s),
            yes_or_no(run.result_exact),
            yes_or_no(run.digests_equal),
            str(run.false_exclusions),
        )
    console.print(table)
    for run in runs:
        if run.broken:
            words = f"seed {run.seed}: {run.broken}; see {options.folder}"
            console.print(words, style="bold red", markup=False, soft_wrap=True)
    median_s = _median_of_all([run.recovered_s for run in runs])
    if not options.is_calm and median_s is not None:
        console.print(f"first seal of all survivors: {median_s:.2f} s after the fault (median)")


def _median_of_all(values: Sequence[float | None]) -> float | None:
    """The median where None is longer than any time: who never recovers makes no swarm faster.

    None where the median is such a one, or there is nothing.
    """
    if not values:
        return None
    found = statistics.median([math.inf if value is None else value for value in values])
    return round(found, 3) if math.isfinite(found) else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


# All runs -----------------------------------------------------------------------------------------


def bench_fault(options: FaultOptions, tell: Tell) -> tuple[list[FaultResult], int]:
    """All runs, and how many elements they had. Raises ConfigError, Interrupted."""
    prepare(options)
    results: list[FaultResult] = []
    numel = options.elements
    for number in range(1 if options.is_calm else options.repeat):
        seed = options.seed + number
        chosen = plan(options.moment, options.victim, seed=seed)
        stage = set_stage(options, options.folder / f"run-{number + 1}", seed)
        numel = stage.manifest.layout(0).fragment_numels[0]
        tell(f"run {number + 1}: {options.peers} nodes, {numel:,} elements, seed {seed}")
        results.append(_one(options, stage, chosen, tell))
        strike_stage(stage, is_kept=options.keep_state or not results[-1].is_good)
    return results, numel


def _one(options: FaultOptions, stage: BenchStage, chosen: FaultPlan, tell: Tell) -> FaultResult:
    run = FaultRun(stage, options.fault, chosen, tell, calm_rounds=options.rounds)
    failed = ""
    try:
        run_until_signal(run.play)
    except StateError as error:
        failed = str(error)
    except Interrupted:
        strike_stage(stage, is_kept=options.keep_state)
        raise
    records, dealt = stage.watch.records, run.played.dealt
    gone = [] if dealt is None else [stage.node_of(dealt.victim)]
    disturbed = [] if dealt is None else [dealt.at_s]
    if failed and len({node.peer for node in stage.nodes} - {""}) < options.peers:
        # It did not even start: there is nothing to judge, and what other runs gave stays.
        return not_started(stage.options.seed, failed)
    findings = look_into(stage, records, gone=gone, disturbed=disturbed, tell=tell)
    return _result(options, stage, run.played, chosen, findings=findings, failed=failed)


def not_started(seed: int, why: str) -> FaultResult:
    """What came of a run whose nodes were never all there."""
    return FaultResult(seed=seed, broken=why)


def _result(
    options: FaultOptions,
    stage: BenchStage,
    played: Played,
    chosen: FaultPlan,
    *,
    findings: Findings,
    failed: str,
) -> FaultResult:
    records, dealt = sorted(stage.watch.records, key=lambda record: record.at_s), played.dealt
    survivors = [peer for peer in stage.peers if dealt is None or peer != dealt.victim]
    excluded = false_exclusions(records, dealt)
    has_dealt = dealt is not None
    return FaultResult(
        seed=stage.options.seed,
        moment=chosen.moment if has_dealt else "",
        role=chosen.role if has_dealt else "",
        victim=stage.node_of(dealt.victim).name if dealt is not None else "",
        round=played.round,
        recovered_s=rounded(None if dealt is None else recovered_s(records, dealt, survivors)),
        next_round_s=rounded(None if dealt is None else next_round_s(records, dealt, survivors)),
        calm_round_s=rounded(_calm_round_s(records, None if dealt is None else dealt.at_s)),
        result_exact=not findings.inexact and findings.num_exact > 0,
        digests_equal=are_equal(records) and findings.verdict.checkpoints_equal,
        false_exclusions=len(excluded),
        num_exact=findings.num_exact,
        broken=failed or findings.broken or (excluded[0] if excluded and options.is_calm else ""),
    )


def _calm_round_s(records: Sequence[Record], until_s: float | None) -> float | None:
    """The median time between the first adoptions of rounds, before the fault."""
    first: dict[int, float] = {}
    for record in records:
        if isinstance(record, Adopted) and (until_s is None or record.at_s < until_s):
            first.setdefault(record.certificate.value.round, record.at_s)
    ordered = [first[index] for index in sorted(first)]
    gaps = [after - before for before, after in pairwise(ordered)]
    return statistics.median(gaps) if gaps else None
