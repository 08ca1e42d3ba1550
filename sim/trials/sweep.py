"""What `barnraise sim sweep` does: many seeds of many scenarios, on all cores.

Workers each run one world after the other. A worker is a process of its own (`python -P -m
sim.trials.sweep`) that takes its tasks by line, so that no seed pays for the start of an
interpreter, and a world that kills its process costs one seed.
"""

import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any

from blake3 import blake3
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from node.processes.children import child_environment
from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from node.processes.interrupts import end_at_once_from_now_on
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from sim.compiled.builds import choose, cores
from sim.trials.playing import overridden_scenario
from sim.trials.scenario import DEFAULT, Scenario, settled
from sim.trials.scenario_file import scenario_of, scenario_text
from sim.trials.shrink import replay_command, write_failure
from sim.trials.trial import Outcome, Violation, run_trial
from sim.world.quiet import hush
from sim.world.sharing import shares

SEEDS_MAX = 10_000_000
LOOK_S = 0.2
"""How often the display moves although nothing has come."""

LAST_BY_SIZE = 8
"""So many worlds for each worker, at the end of a sweep, begin with the largest."""

_END_S = 2.0

Task = tuple[str, int]
"""A scenario's name and a seed."""


@dataclass(slots=True)
class Swept:
    """What came of a sweep: by scenario, in the order of seeds; `is_whole` unless interrupted."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    wall_s: float = 0.0
    is_whole: bool = True

    def failures(self) -> list[Outcome]:
        """All outcomes with a violation."""
        return [one for found in self.outcomes.values() for one in found if one.violation]

    @property
    def trace_hash(self) -> str:
        """A digest over the traces of all worlds: one text to compare two interpreters by."""
        hasher = blake3()
        for name, found in sorted(self.outcomes.items()):
            for one in found:
                hasher.update(f"{name} {one.seed} {one.trace_hash}\n".encode())
        return hasher.hexdigest()


def seeds_of(text: str) -> range:
    """The seeds of "0..199" or "7". Raises ConfigError."""
    first, dots, last = text.partition("..")
    if first.isdecimal() and first.isascii() and len(first) < 19:
        end = last if dots else first
        if end.isdecimal() and end.isascii() and len(end) < 19:
            found = range(int(first), int(end) + 1)
            if 0 < len(found) <= SEEDS_MAX:
                return found
    raise ConfigError(f"--seeds must be like 0..199 or 7, at most {SEEDS_MAX}, not {text[:40]!r}")


def sweep(
    scenarios: Mapping[str, Scenario],
    seeds: Sequence[int],
    *,
    jobs: int,
    came: Callable[[Outcome | None], None],
    build: Path | None = None,
) -> Swept:
    """Run every seed of every scenario. `came` is told of each outcome, and now and then of None.

    `build` is a folder with our packages that workers take in the place of those we run from.

    KeyboardInterrupt ends it early, with what there is; no worker is left in any case.
    """
    swept = Swept(outcomes={name: [] for name in scenarios})
    # Seed by seed over all scenarios: a sweep that is interrupted has seen some of each.
    given = [(name, seed) for seed in seeds for name in scenarios]
    # The last ones by size: no worker is to begin with a large world when the others are through.
    ends = LAST_BY_SIZE * jobs
    last = sorted(given[-ends:], key=lambda task: -settled(scenarios[task[0]], task[1]).peers[0])
    tasks = deque([*given[:-ends], *last])
    num_left = len(tasks)
    with _crew(scenarios, tasks, min(jobs, num_left), build) as results:
        try:
            while num_left:
                try:
                    outcome = results.get(timeout=LOOK_S)
                except Empty:
                    came(None)
                    continue
                if isinstance(outcome, OSError):
                    raise outcome
                num_left -= 1
                swept.outcomes[outcome.scenario].append(outcome)
                came(outcome)
        except KeyboardInterrupt:
            swept.is_whole = False
    for found in swept.outcomes.values():
        found.sort(key=lambda outcome: outcome.seed)
    return swept


Results = SimpleQueue[Outcome | OSError]


@contextmanager
def _crew(
    scenarios: Mapping[str, Scenario], tasks: deque[Task], jobs: int, build: Path | None
) -> Iterator[Results]:
    """Workers at work until the block ends; then all of them end, at once."""
    results: Results = SimpleQueue()
    workers = [_Worker(scenarios, tasks, results, build) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.thread.start()
        yield results
    finally:
        tasks.clear()
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.thread.join(_END_S)


class _Worker:
    """A process, and the thread that gives it tasks and takes what comes."""

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        tasks: deque[Task],
        results: Results,
        build: Path | None = None,
    ) -> None:
        texts = {name: scenario_text(scenario) for name, scenario in scenarios.items()}
        self._first_line = json.dumps(texts) + "\n"
        self._tasks, self._results, self._build = tasks, results, build
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_ended = False
        # A daemon, so that a sweep that is killed in the middle of this ends all the same.
        self.thread = threading.Thread(target=self._work, daemon=True)

    def end(self) -> None:
        """Kill the process: what it works on is of no interest any more."""
        with self._lock:
            self._is_ended = True
            if self._process is not None:
                self._process.kill()

    def _work(self) -> None:
        try:
            while self._tasks:
                try:
                    task = self._tasks.popleft()
                except IndexError:
                    break  # Another one took the last.
                self._results.put(self._outcome(task))
        except OSError as error:
            self._results.put(error)
        finally:
            self._close()

    def _outcome(self, task: Task) -> Outcome:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return Outcome.of(json.loads(line))
        status = process.wait()
        self._close()
        return lost_outcome(task, f"its process ended with status {status}")

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._process is None:
                # -P: a file here that is called like a module of ours is not taken for it.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "sim.trials.sweep"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=_worker_environment(self._build),
                    text=True,
                    encoding="utf-8",
                )
                assert self._process.stdin is not None
                self._process.stdin.write(self._first_line)
            if self._is_ended:
                self._process.kill()
            return self._process

    def _close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                # What was left in the buffer is for nobody.
                with suppress(BrokenPipeError):
                    pipe.close()


def lost_outcome(task: Task, why: str) -> Outcome:
    """Of a world that took its process with it."""
    name, seed = task
    violation = Violation(name="error", text=why, at_s=0.0, event=0)
    return Outcome(scenario=name, seed=seed, violation=violation)


def _worker_environment(build: Path | None = None) -> dict[str, str]:
    """One thread for each: the workers themselves fill the cores."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = child_environment() | single
    if build is not None:
        parts = [str(build), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    return environment


# What the command shows ---------------------------------------------------------------------------

FAILURES_SHOWN = 10
TABLE_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command was given."""

    names: tuple[str, ...]
    seeds: str
    jobs: int | None
    peers: int | None
    rounds: int | None
    out: Path | None
    is_interpreted: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """What came of it, and the command that replays each failure."""

    swept: Swept
    commands: list[str]

    @property
    def status(self) -> int:
        """The exit status."""
        if not self.swept.is_whole:
            return EXIT_INTERRUPTED
        return EXIT_FAILED if self.commands else EXIT_DONE

    def as_json(self) -> dict[str, object]:
        """One object for scripts."""
        return sweep_json(self.swept, self.commands)


def run_sweep(request: Request, *, to_stderr: bool) -> End:
    """Run what was asked for and tell of it. Raises ConfigError."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)  # A file has no edge.
    seeds = seeds_of(request.seeds)
    given = request.names or (DEFAULT,)
    scenarios: dict[str, Scenario] = {}
    for text in given:
        found = overridden_scenario(text, peers=request.peers, rounds=request.rounds)
        if found.name in scenarios:
            raise ConfigError(f"two scenarios are called {found.name}: give one file another name")
        scenarios[found.name] = found
    named = dict(zip(scenarios, given, strict=True))
    if request.out is not None:
        _make_folder(request.out)
    choice = choose(is_wanted=not request.is_interpreted)
    console.print(choice.text)
    began_s = time.monotonic()
    with _display(console) as display:
        shown = _Shown(display, len(seeds) * len(scenarios), request, named)
        jobs = request.jobs or cores()
        swept = sweep(scenarios, seeds, jobs=jobs, came=shown.came, build=choice.folder)
    swept.wall_s = time.monotonic() - began_s
    console.print(sweep_table(swept))
    if not swept.is_whole:
        console.print("interrupted: this is what had come until then", style="yellow")
    console.print(f"{shown.num_done} worlds in {swept.wall_s:.1f} s")
    outcomes = [one for found in swept.outcomes.values() for one in found]
    wronged = sum(one.false_bans for one in outcomes)
    console.print(
        f"{peer_rounds(outcomes)} rounds of peers; honest ones accused or banned: {wronged}"
    )
    console.print(f"traces {swept.trace_hash}")
    if request.out is not None:
        _write(request.out, scenarios, swept, console)
    commands = [shown.command(outcome) for outcome in swept.failures()]
    return End(swept, commands)


class _Shown:
    """The display of a sweep: a bar, and a line for each failure."""

    def __init__(
        self, display: Progress, total: int, request: Request, named: dict[str, str]
    ) -> None:
        self.num_done = 0
        self._display, self._request, self._named = display, request, named
        self._rounds = self._failures = 0
        self._began_s = time.monotonic()
        self._task = display.add_task("worlds", total=total, rate="")

    def came(self, outcome: Outcome | None) -> None:
        """Show one more outcome, or only that time passes."""
        if outcome is None:
            return
        self.num_done += 1
        self._rounds += outcome.rounds_sealed + outcome.rounds_carried
        if outcome.violation is not None:
            self._failures += 1
            self._tell(outcome)
        rate = self._rounds / max(1e-3, time.monotonic() - self._began_s)
        failed = f", [red]{self._failures} failed[/]" if self._failures else ""
        self._display.update(self._task, advance=1, rate=f"{rate:.0f} rounds/s{failed}")

    def command(self, outcome: Outcome) -> str:
        """What shows this failure again."""
        named = self._named[outcome.scenario]
        return replay_command(
            named, outcome, rounds=self._request.rounds, peers=self._request.peers
        )

    def _tell(self, outcome: Outcome) -> None:
        assert outcome.violation is not None
        if self._failures > FAILURES_SHOWN:
            return
        what = f"{outcome.violation.name}: {outcome.violation.text}"
        self._display.console.print(what, style="red", markup=False)
        self._display.console.print(f"    {self.command(outcome)}", soft_wrap=True)


def _display(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: cannot make {folder}: {error.strerror}") from error


def _write(folder: Path, scenarios: dict[str, Scenario], swept: Swept, console: Console) -> None:
    try:
        for outcome in swept.failures():
            write_failure(folder / "failures", scenarios[outcome.scenario], outcome)
        write_plot(swept, folder / "sweep.png")
        text = StringIO()
        Console(file=text, width=TABLE_WIDTH).print(sweep_table(swept))
        write_atomically(folder / "sweep.txt", text.getvalue().encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"--out: cannot write to {folder}: {error.strerror}") from error
    console.print(f"plot, table and failures are in {folder}")


def _sums(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What came of the seeds of a scenario, as JSON has it."""
    took_s = [seconds for one in outcomes for _, seconds in one.recoveries]
    return {
        "seeds": len(outcomes),
        "rounds_sealed": sum(one.rounds_sealed for one in outcomes),
        "rounds_carried": sum(one.rounds_carried for one in outcomes),
        "peer_rounds": peer_rounds(outcomes),
        "banned": sum(one.banned for one in outcomes),
        "false_bans": sum(one.false_bans for one in outcomes),
        "violations": sum(one.violation is not None for one in outcomes),
        "recovery_median_s": median(took_s) if took_s else None,
        "recovery_max_s": max(took_s, default=None),
    }


def sweep_table(swept: Swept) -> Table:
    """A row per scenario: how many seeds, what they sealed, how soon they recovered, what broke."""
    table = Table(title=None)
    table.add_column("scenario", no_wrap=True)
    for head in ("seeds", "sealed", "carried", "recovery", "longest", "rounds/s", "broken"):
        table.add_column(head, justify="right")
    for name, outcomes in swept.outcomes.items():
        sums = _sums(outcomes)
        sealed, carried, broken = (
            sums[key] for key in ("rounds_sealed", "rounds_carried", "violations")
        )
        recovery_s = (sums["recovery_median_s"], sums["recovery_max_s"])
        busy_s = sum(one.wall_s for one in outcomes)
        counted = map(str, (sums["seeds"], sealed, carried))
        took = ("-" if span_s is None else f"{span_s:.1f} s" for span_s in recovery_s)
        rate = f"{(sealed + carried) / busy_s:.0f}" if busy_s else "-"
        style = "red" if broken else ""
        table.add_row(name, *counted, *took, rate, str(broken), style=style)
    return table


def peer_rounds(outcomes: Sequence[Outcome]) -> int:
    """Rounds that sealed somebody, times the peers of their world."""
    return sum(one.peers * one.rounds_sealed for one in outcomes)


def sweep_json(swept: Swept, commands: Sequence[str]) -> dict[str, object]:
    """A sweep as one object; `failures` hold the command that replays each."""
    coverage = sum(
        (Counter(one.coverage) for found in swept.outcomes.values() for one in found),
        Counter[str](),
    )
    failures = [
        {**outcome.as_json(), "replay": command}
        for outcome, command in zip(swept.failures(), commands, strict=True)
    ]
    scenarios = {name: _sums(found) for name, found in swept.outcomes.items()}
    for sums in scenarios.values():
        median_s = sums["recovery_median_s"]
        sums["recovery_median_s"] = None if median_s is None else round(median_s, 3)
    return {
        "is_whole": swept.is_whole,
        "wall_s": round(swept.wall_s, 3),
        "trace_hash": swept.trace_hash,
        "scenarios": scenarios,
        "coverage": dict(sorted(coverage.items())),
        "failures": failures,
    }


def write_plot(swept: Swept, path: Path) -> None:
    """Rounds over seeds, and how soon each kind of fault was recovered from; a PNG."""
    # matplotlib takes half a second to load, and only this needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    rounds, recovery = figure.subplots(2, 1)
    for name, outcomes in swept.outcomes.items():
        seeds = [one.seed for one in outcomes]
        rounds.plot(seeds, [one.rounds_sealed for one in outcomes], ".", label=name)
        broken = [one for one in outcomes if one.violation]
        rounds.plot(
            [one.seed for one in broken], [one.rounds_sealed for one in broken], "x", color="red"
        )
    rounds.set(xlabel="seed", ylabel="rounds sealed", title="Rounds that list somebody")
    rounds.legend(fontsize="small")
    by_kind: dict[str, list[float]] = defaultdict(list)
    for outcomes in swept.outcomes.values():
        for one in outcomes:
            for kind, seconds in one.recoveries:
                by_kind[kind].append(seconds)
    kinds = sorted(by_kind)
    if kinds:
        recovery.hist([by_kind[kind] for kind in kinds], bins=30, stacked=True, label=kinds)
        recovery.set_yscale("log")
        recovery.legend(fontsize="small", ncols=2)
    recovery.set(
        xlabel="virtual seconds from the end of a fault to the next sealed round",
        ylabel="faults",
        title="Recovery by kind of fault",
    )
    figure.savefig(path, dpi=120)


# A worker -----------------------------------------------------------------------------------------


def work() -> None:
    """A worker: run the worlds of the lines that come in, a line of JSON out for each.

    The first line holds the scenarios as text, by name; each further one a name and a seed. It ends
    with its input, so that it never outlives the sweep.
    """
    hush()
    # The sweep itself says what a Ctrl+C means; a traceback of each worker would say nothing.
    end_at_once_from_now_on()
    scenarios = _scenarios(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        name, seed = json.loads(line)
        outcome = run_trial(scenarios[name], seed, is_sharing=shares(seed))
        sys.stdout.write(json.dumps(outcome.as_json(), separators=(",", ":")) + "\n")
        sys.stdout.flush()


def _scenarios(texts: dict[str, str]) -> dict[str, Scenario]:
    return {
        name: scenario_of(tomllib.loads(text), Path(f"{name}.toml")) for name, text in texts.items()
    }


if __name__ == "__main__":
    work()
