"""What `barnraise sim run`, `replay`, `shrink` and `list` do, and what they show of a world."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from node.reporting.tracing import Adopted, Advanced, Record, Signed, Tracer, trace_line
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from protocol.identity import PeerId, short_id
from protocol.messages import SealCertificate, SignedMessage
from sim.attacks.alone import lies_named
from sim.checks.invariants import ALL, TITLES
from sim.trials.expectations import expected
from sim.trials.scenario import NOT_YET, Scenario, overridden
from sim.trials.scenario_file import (
    read_scenario,
    scenario_digest,
    scenario_text,
    shipped_scenarios,
)
from sim.trials.shrink import Shrinker, Shrunk, recorded, version
from sim.trials.trial import Outcome, Play, play, run_trial

__all__ = ["play"]

EXIT_KEPT, EXIT_BROKEN = 0, 1
RECORDS_SHOWN = 24


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
    show_play(console, play, with_timeline=with_timeline)


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
    show_play(console, again, with_timeline=True)
    show_records(console, again)
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


# What is shown ------------------------------------------------------------------------------------


def show_play(console: Console, play: Play, *, with_timeline: bool) -> None:
    """One run: what it was, what happened, what was kept."""
    outcome, scenario = play.outcome, play.scenario
    console.print(
        f"[bold]{scenario.name}[/], seed {outcome.seed}: {outcome.peers} peers,"
        f" {scenario.rounds} rounds, {outcome.faults} faults",
        highlight=False,
    )
    if with_timeline:
        _show_timeline(console, play)
    console.print(_verdicts(scenario, outcome))
    summary = (
        f"{outcome.rounds_sealed} rounds sealed, {outcome.rounds_carried} carried in"
        f" {outcome.virtual_s:.1f} virtual s ({outcome.wall_s:.2f} s here,"
        f" {outcome.events} events)"
    )
    console.print(summary, highlight=False)
    if scenario.attack:
        lies = lies_named(scenario.attack, outcome.peers)
        told = (
            f"{lies.name} against {scenario.aggregator}: {lies.count} lie, {outcome.banned} banned"
        )
        told += f", {outcome.false_bans} honest ones accused"
        told += f"; honest ones lost {outcome.honest_votes_lost} votes"
        told += f" and {outcome.honest_seats_lost} seats"
        if outcome.loss_last is not None:
            told += f"; loss {outcome.loss_last:.4f}"
        console.print(told, highlight=False)
    if scenario.audits:
        share = f"{outcome.audited_share:.2%} of what was trained was run again by audits"
        console.print(share, highlight=False)
    if outcome.faults_missed or outcome.faults_partial:
        came = f"{outcome.faults - outcome.faults_missed} of {outcome.faults} faults came"
        if outcome.faults_partial:
            came += f", {outcome.faults_partial} of them to some of their victims only"
        console.print(came, highlight=False)
    console.print(f"trace {outcome.trace_hash}", highlight=False)


def _show_timeline(console: Console, play: Play) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for note in play.notes:
        style = "yellow" if note.is_fault else ""
        table.add_row(f"{note.at_s:.2f} s", note.text, style=style)
    violation = play.outcome.violation
    if violation is not None:
        table.add_row(f"{violation.at_s:.2f} s", f"{violation.name}: {violation.text}", style="red")
    console.print(table)


def _verdicts(scenario: Scenario, outcome: Outcome) -> Table:
    """A line per promise. Behind a broken one nothing was asked any more."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    violation = outcome.violation
    asked = sorted(frozenset(scenario.expect.invariants) or ALL)
    titles = {name: f"{name} {TITLES[name]}" for name in asked}
    titles |= expected(scenario)
    if violation is not None and violation.name not in titles:
        titles[violation.name] = violation.name
    for name, title in titles.items():
        if violation is None:
            table.add_row(title, "kept", style="green")
        elif violation.name == name:
            table.add_row(title, f"BROKEN: {violation.text}", style="bold red")
        else:
            kept = "kept until then" if name in TITLES else "not asked any more"
            table.add_row(title, kept, style="dim")
    return table


def show_records(console: Console, play: Play) -> None:
    """The last records before the end, aligned, with the number of the event of each."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("event", "virtual s", "node", "record", "what"):
        table.add_column(head, justify="right" if head in ("event", "virtual s") else "left")
    for event, record in play.last_records[-RECORDS_SHOWN:]:
        name = play.names.get(record.peer, short_id(record.peer))
        kind, what = _in_words(record, play.names)
        table.add_row(str(event), f"{record.at_s:.3f}", name, kind, what)
    console.print(table)


def _in_words(record: Record, names: Mapping[PeerId, str]) -> tuple[str, str]:
    match record:
        case Signed(message=message):
            slot = message.slot
            return "signed", (
                f"{slot.kind.name} round {slot.round} attempt {slot.attempt}"
                f" {message.digest.hex()[:12]}"
            )
        case (
            Adopted(certificate=certificate, was_listed=was_listed)
            | Advanced(certificate=certificate, was_listed=was_listed)
        ):
            value = certificate.value
            mine = "with its own" if was_listed else "without its own"
            return type(record).__name__.lower(), (
                f"round {value.round} {value.digest.hex()[:12]},"
                f" {len(value.commits)} listed, {mine}"
            )
        case _:
            shown = [
                f"{one.name} {_short(getattr(record, one.name), names)}"
                for one in fields(record)
                if one.name not in ("at_s", "peer")
            ]
            return type(record).__name__.lower(), ", ".join(shown)


def _short(value: object, names: Mapping[PeerId, str]) -> str:
    match value:
        case SealCertificate():
            return f"round {value.value.round} {value.value.digest.hex()[:12]}"
        case SignedMessage():
            return value.digest.hex()[:12]
        case bytes():
            return names.get(PeerId(value), value.hex()[:12])
        case _:
            return str(value)
