"""What the simulator's commands show: a run's timeline and verdicts, a sweep's table and plots."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from node.reporting.tracing import Adopted, Advanced, Record, Signed
from protocol.identity import PeerId, short_id
from protocol.messages import SealCertificate, SignedMessage
from sim.attacks.alone import lies_named
from sim.checks.invariants import ALL, TITLES
from sim.trials.expectations import expected
from sim.trials.outcome import Outcome
from sim.trials.scenario import Scenario
from sim.trials.sweep import Swept
from sim.trials.trial import Play

RECORDS_SHOWN = 24


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


def sweep_table(swept: Swept) -> Table:
    """A row per scenario: how many seeds, what they sealed, how soon they recovered, what broke."""
    table = Table(title=None)
    table.add_column("scenario", no_wrap=True)
    for head in ("seeds", "sealed", "carried", "recovery", "longest", "rounds/s", "broken"):
        table.add_column(head, justify="right")
    for name, outcomes in swept.outcomes.items():
        took_s = [seconds for one in outcomes for _, seconds in one.recoveries]
        broken = sum(one.violation is not None for one in outcomes)
        rounds = sum(one.rounds_sealed + one.rounds_carried for one in outcomes)
        busy_s = sum(one.wall_s for one in outcomes)
        table.add_row(
            name,
            str(len(outcomes)),
            str(sum(one.rounds_sealed for one in outcomes)),
            str(sum(one.rounds_carried for one in outcomes)),
            f"{median(took_s):.1f} s" if took_s else "-",
            f"{max(took_s):.1f} s" if took_s else "-",
            f"{rounds / busy_s:.0f}" if busy_s else "-",
            str(broken),
            style="red" if broken else "",
        )
    return table


def peer_rounds(outcomes: Sequence[Outcome]) -> int:
    """Rounds that sealed somebody, times the peers of their world."""
    return sum(one.peers * one.rounds_sealed for one in outcomes)


def sweep_json(swept: Swept, commands: Sequence[str]) -> dict[str, object]:
    """A sweep as one object; `failures` hold the command that replays each."""
    coverage: dict[str, int] = defaultdict(int)
    scenarios: dict[str, object] = {}
    for name, outcomes in swept.outcomes.items():
        took_s = [seconds for one in outcomes for _, seconds in one.recoveries]
        for one in outcomes:
            for label, count in one.coverage.items():
                coverage[label] += count
        scenarios[name] = {
            "seeds": len(outcomes),
            "rounds_sealed": sum(one.rounds_sealed for one in outcomes),
            "rounds_carried": sum(one.rounds_carried for one in outcomes),
            "peer_rounds": peer_rounds(outcomes),
            "banned": sum(one.banned for one in outcomes),
            "false_bans": sum(one.false_bans for one in outcomes),
            "violations": sum(one.violation is not None for one in outcomes),
            "recovery_median_s": round(median(took_s), 3) if took_s else None,
            "recovery_max_s": max(took_s, default=None),
        }
    failures = [
        {**outcome.as_json(), "replay": command}
        for outcome, command in zip(swept.failures(), commands, strict=True)
    ]
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
