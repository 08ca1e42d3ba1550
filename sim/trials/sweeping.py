"""What `barnraise sim sweep` does: the request, the display, the end."""

import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from sim.compiled.builds import choose, cores
from sim.trials.outcome import Outcome
from sim.trials.playing import overridden_scenario
from sim.trials.replays import replay_command, write_failure
from sim.trials.report import peer_rounds, sweep_json, sweep_table, write_plot
from sim.trials.scenario import DEFAULT, Scenario
from sim.trials.sweep import Swept, seeds_of, sweep

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
