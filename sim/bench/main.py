"""`barnraise bench fault` from its options to its exit status."""

import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType

import trio
from rich.console import Console

from node.processes.interrupts import handling
from node.reporting.tracing import Adopted, Record
from protocol.errors import BarnraiseError, ConfigError, StateError
from sim.bench.fault import FaultRun, Played
from sim.bench.moments import FaultPlan, plan
from sim.bench.needs import check_needs, needs
from sim.bench.options import BenchOptions, FaultOptions
from sim.bench.outcome import are_equal, false_exclusions, next_round_s, recovered_s
from sim.bench.report import FaultResult
from sim.bench.staging import BenchStage, Findings, Tell, look_into, set_stage, strike_stage

EXIT_DONE, EXIT_FAILED = 0, 1
_EXIT_BY_SIGNAL = 128
_ROOT = Path(__file__).parent.parent.parent


class Interrupted(Exception):
    """A signal ended the bench; no process is left."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = _EXIT_BY_SIGNAL + number


def prepare(options: BenchOptions) -> None:
    """Make the folder and look whether this machine is large enough. Raises ConfigError."""
    folder = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"--out {folder} is not empty: name a new folder")
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be used: {error.strerror}") from error
    check_needs(needs(options.peers, options.elements), folder)


def run_until_signal(play: Callable[[], Awaitable[None]]) -> None:
    """Run it; Ctrl+C and SIGTERM end it cleanly. Raises Interrupted, and its BarnraiseErrors."""
    received: list[int] = []

    async def watch(scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                received.append(number)
                scope.cancel()

    failure: BarnraiseError | None = None

    async def main() -> None:
        nonlocal failure
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            try:
                await play()
            except BarnraiseError as error:
                failure = error
            nursery.cancel_scope.cancel()

    trio.run(main)
    if received:
        raise Interrupted(received[0])
    if failure is not None:
        raise failure


@contextmanager
def until_signal() -> Iterator[None]:
    """Ctrl+C and SIGTERM leave the block, which puts away what it began. Raises Interrupted.

    For benches that block; those that run tasks have `run_until_signal`.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise Interrupted(number)

    with handling(leave):
        yield


@dataclass(frozen=True, slots=True)
class Teller:
    """Lines about what happens, with the seconds since the command was given."""

    console: Console
    now_s: Callable[[], float]

    def __call__(self, line: str) -> None:
        """Tell one."""
        self.console.print(f"{self.now_s():7.1f} s  {line}", markup=False, soft_wrap=True)


def bench_fault(options: FaultOptions, tell: Teller) -> tuple[list[FaultResult], int]:
    """All runs, and how many elements they had. Raises ConfigError, Interrupted."""
    prepare(options)
    results: list[FaultResult] = []
    numel = options.elements
    for number in range(1 if options.is_calm else options.repeat):
        seed = options.seed + number
        chosen = plan(options.moment, options.victim, seed=seed)
        stage = set_stage(options, options.folder / f"run-{number + 1}", seed, tell.now_s)
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
    return FaultResult(
        seed=seed,
        moment="",
        role="",
        victim="",
        round=0,
        recovered_s=None,
        next_round_s=None,
        calm_round_s=None,
        result_exact=False,
        digests_equal=False,
        false_exclusions=0,
        num_exact=0,
        broken=why,
    )


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
        recovered_s=_rounded(None if dealt is None else recovered_s(records, dealt, survivors)),
        next_round_s=_rounded(None if dealt is None else next_round_s(records, dealt, survivors)),
        calm_round_s=_rounded(_calm_round_s(records, None if dealt is None else dealt.at_s)),
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def commit_named() -> str:
    """The commit of this source tree, with a plus where it was changed; empty if there is none."""
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        found = subprocess.run(
            [git, "-C", str(_ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def clock() -> Callable[[], float]:
    """Seconds since this was called."""
    began_s = time.monotonic()
    return lambda: time.monotonic() - began_s
