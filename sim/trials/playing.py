"""What `barnraise sim run`, `replay`, `shrink` and `list` do."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from node.reporting.tracing import Record, Tracer, trace_line
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from sim.trials import report
from sim.trials.replays import version
from sim.trials.scenario import NOT_YET, Scenario, overridden
from sim.trials.scenario_file import read_scenario, shipped_scenarios
from sim.trials.scenario_text import scenario_digest, scenario_text
from sim.trials.shrink import Shrinker, Shrunk, recorded
from sim.trials.trial import Play, play, run_trial

__all__ = ["play"]

EXIT_KEPT, EXIT_BROKEN = 0, 1


def overridden_scenario(
    text: str,
    *,
    peers: int | None,
    rounds: int | None,
    attack: str | None = None,
    audits: float | None = None,
    aggregator: str | None = None,
) -> Scenario:
    """The scenario of a name or file with a command's options. Raises ConfigError."""
    found = read_scenario(text)
    if {peers, rounds, attack, audits, aggregator} == {None}:
        return found
    # What was recorded was of the scenario as it is.
    plain = replace(found, recorded=None)
    return overridden(
        plain, peers=peers, rounds=rounds, attack=attack, audits=audits, aggregator=aggregator
    )


def show(play: Play, *, with_timeline: bool, to_stderr: bool) -> None:
    """Tell of a run."""
    console = Console(stderr=to_stderr, highlight=False)
    report.show_play(console, play, with_timeline=with_timeline)


@contextmanager
def record_writer(path: Path | None) -> Iterator[Tracer | None]:
    """Writes records as lines to a file; none without a path. Raises ConfigError."""
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"--trace: cannot write {path}: {error.strerror}") from error
    with file:

        def write(record: Record) -> None:
            file.write(trace_line(record) + "\n")

        yield write


def replay(scenario: Scenario, seed: int | None, *, tracer: Tracer | None) -> int:
    """Run a failure again and show its end; the exit status. Raises ConfigError without a seed."""
    console = Console(highlight=False)
    seed = _seed(scenario, seed)
    again = play(scenario, seed, tracer=tracer)
    known = scenario.recorded
    is_recorded = known is not None and known.seed == seed
    # Without a record of it, a second run tells whether there is one outcome at all.
    expected = known.trace_hash if known and is_recorded else run_trial(scenario, seed).trace_hash
    report.show_play(console, again, with_timeline=True)
    report.show_records(console, again)
    outcome = again.outcome
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("seed", str(seed))
    table.add_row("code", version())
    table.add_row("scenario", f"{scenario.name} {scenario_digest(scenario)}")
    table.add_row("event", str(outcome.violation.event if outcome.violation else outcome.events))
    console.print(table)
    if outcome.trace_hash != expected:
        console.print(f"[bold red]not the same:[/] the trace was {expected}", soft_wrap=True)
        if known and is_recorded and known.version != version():
            console.print(f"it was recorded with other code, {known.version}: check that out")
        else:
            console.print("the code is the same, so something in it is not deterministic")
        return EXIT_BROKEN
    console.print("the same trace as before" if is_recorded else "two runs gave the same trace")
    return EXIT_BROKEN if outcome.violation else EXIT_KEPT


def shrink(scenario: Scenario, seed: int | None, *, out: Path | None, tries_max: int) -> int:
    """Look for the smallest scenario that fails like this one; the exit status.

    The file holds the smallest one at any time, so that a search can be given up.
    """
    console = Console(highlight=False)
    seed = _seed(scenario, seed)
    path = out or Path(f"{scenario.name}-{seed}-small.toml")

    def tell(shrunk: Shrunk) -> None:
        _write(path, recorded(shrunk.scenario, shrunk.outcome, version()))
        words = "still fails" if shrunk.tries else "fails"
        console.print(f"{shrunk.tries:4d}  {words} with {_size_in_words(shrunk.scenario)}")

    shrinker = Shrinker(scenario, seed, run=run_trial, told=tell, tries_max=tries_max)
    if not shrinker.fails:
        console.print(f"{scenario.name} with seed {seed} keeps all its promises")
        return EXIT_BROKEN
    shrunk = shrinker.shrink()
    violation = shrunk.outcome.violation
    assert violation is not None
    console.print(f"{violation.name}: {violation.text}", style="red", markup=False)
    for fault in shrunk.scenario.timetable or ():
        console.print(f"      {fault}", markup=False)
    console.print(f"{shrunk.tries} worlds; see it again with")
    console.print(f"barnraise sim replay {shlex.quote(str(path))}", soft_wrap=True)
    return EXIT_KEPT


def _write(path: Path, scenario: Scenario) -> None:
    try:
        write_atomically(path, scenario_text(scenario).encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {path}: {error.strerror}") from error


def listing() -> dict[str, object]:
    """All scenarios as one JSON object."""
    return {
        "scenarios": [
            {"name": one.name, "title": one.title, "shows": one.shows}
            for one in shipped_scenarios()
        ],
        "not_yet": [{"name": name, "why": why} for name, why in NOT_YET.items()],
    }


def show_listing() -> None:
    """All scenarios, a line each."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for one in shipped_scenarios():
        table.add_row(one.name, one.title)
    for name, why in NOT_YET.items():
        table.add_row(name, f"not yet: {why}", style="dim")
    Console(highlight=False).print(table)


def _seed(scenario: Scenario, seed: int | None) -> int:
    if seed is not None:
        return seed
    if scenario.recorded is None:
        raise ConfigError(f"{scenario.name} has no seed recorded: name one with --seed")
    return scenario.recorded.seed


def _size_in_words(scenario: Scenario) -> str:
    return (
        f"{len(scenario.timetable or ())} faults, {scenario.peers[0]} peers,"
        f" {scenario.rounds} rounds, {scenario.cells} cells"
    )
