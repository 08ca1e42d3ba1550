"""`python -m sim.explorer`: the catalogue, case by case, with progress and a table at
the end."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer

from sim.exploration.cases import ExplorationCase, cases
from sim.exploration.explorer import Bound, Exploration, explore, walk

WALK_SECONDS = 20.0

app = typer.Typer(add_completion=False)


@app.command()
def main(
    part: Annotated[
        str,
        typer.Argument(
            help="Name of a part, or a piece of the name of a case.", show_default="all"
        ),
    ] = "",
    states: Annotated[
        int, typer.Option(help="Maximum number of states per case.", min=1)
    ] = 300_000,
    seconds: Annotated[
        float, typer.Option(help="Maximum number of seconds per case.", min=0)
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the random walks.", min=0)] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per case.")
    ] = False,
) -> None:
    """Explore the machines of a round: every order, loss, crash, restart and freeze in bounds."""
    parts = list(dict.fromkeys(case.part for case in cases()))
    if part in parts:
        chosen = [case for case in cases() if case.part == part]
    else:
        chosen = [case for case in cases() if part in case.name]
    if not chosen:
        raise typer.BadParameter(f"no part or case {part!r}; the parts are {', '.join(parts)}")
    found = []
    for case in chosen:
        bound = replace(case.bound, states=states, seconds=seconds)
        found.append((case, run_case(case, bound, seed=seed)))
        if as_json:
            row = {"part": case.part, "case": case.name, **asdict(found[-1][1])}
            typer.echo(json.dumps(row))
        else:
            typer.echo(row_of(case, found[-1][1]))
    violated = [entry for entry in found if entry[1].violation]
    if not as_json:
        typer.echo(f"{len(found)} cases, {len(violated)} of them with a violation")
    raise typer.Exit(1 if violated else 0)


def run_case(case: ExplorationCase, bound: Bound, *, seed: int) -> Exploration:
    """One case, with its progress on standard error where that is a terminal."""
    is_shown = sys.stderr.isatty()

    def report(num_states: int, depth: int) -> None:
        if is_shown:
            typer.echo(
                f"\r{case.part}: {case.name}: {num_states} states, depth {depth}\033[K",
                err=True,
                nl=False,
            )

    if case.is_walk:
        limited = replace(bound, seconds=min(bound.seconds, WALK_SECONDS))
        result = walk(case.make(), limited, seed=seed, report=report)
    else:
        result = explore(case.make(), bound, report)
    if is_shown:
        typer.echo("\r\033[K", err=True, nl=False)
    return result


def row_of(case: ExplorationCase, result: Exploration) -> str:
    """A line of the table; a violation is followed by its trace, and the seed that finds it."""
    how = f"{result.outcome}, seed {result.seed}" if result.seed >= 0 else result.outcome
    line = (
        f"{case.part:10} {case.name:58} {result.states:>9} states {result.transitions:>9} moves"
        f"  depth {result.depth:>3}  {how:16} {result.seconds:6.1f} s"
        f"  {result.violation or 'clean'}"
    )
    return "\n".join([line, *indented(result.trace)])


def indented(trace: Sequence[str]) -> list[str]:
    """A trace, a move per line."""
    return [f"    {number}. {label}" for number, label in enumerate(trace, 1)]
