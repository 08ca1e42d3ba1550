"""`python -m sim.explorer`: the catalogue of what is explored, how far, and the command for it.

Cases are told one by one, with progress, and a table at the end.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer

from protocol.messages import Kind
from sim.exploration.agreement import Agreement, AgreementScope, Losses, Supply
from sim.exploration.explorer import Bound, Exploration, Model, explore, walk
from sim.exploration.liars import LiarScope, Lying
from sim.exploration.omissions import (
    PARTS,
    Habit,
    OmissionPlan,
    Omissions,
    departures,
    silences,
)
from sim.exploration.progress import COMMIT, FETCH, LONG, NOTHING, STEP, Beat, Waiting, WaitingPlan
from sim.exploration.rosters import LeavingModel, Windows, Words
from sim.exploration.rounds import Rounds, Span
from sim.exploration.running_branches import BranchSpan, RunningBranches
from sim.exploration.waking import Waking

BRISK = partial(BranchSpan, is_brisk=True, rounds=1)

RUNNING: dict[str, BranchSpan] = {
    "2 voters, 2 changes of links": BRISK(voters=2, every=20),
    "2 voters, a change, a restart": BRISK(voters=2, changes=1, restarts=1, every=20),
}
"""Seconds each, for `RunningBranches`: whole machines."""

RUNNING_LARGE: dict[str, BranchSpan] = {
    "1 voter, 1 member, 3 changes": BRISK(
        voters=1, members=1, rounds=2, ahead=2, changes=3, every=100
    ),
    "2 voters, 2 changes, step by step": BranchSpan(voters=2, rounds=1, every=50),
    "2 voters, 2 changes, 2 restarts": BRISK(voters=2, restarts=2, every=50),
    "2 voters, 2 changes, a freeze": BRISK(voters=2, sleeps=1, every=10),
    "2 voters, branches of 2, 3 changes": BRISK(voters=2, rounds=2, ahead=2, changes=3, every=100),
    "2 voters, 2 attempts, what is said cut off": BRISK(
        voters=2, attempts=2, cuts=3, is_late=True, is_unanswered=True, every=50
    ),
    "2 voters, branches of 3": BRISK(voters=2, rounds=3, ahead=3, changes=1, every=100),
    "2 voters, 3 changes, 3 attempts": BRISK(voters=2, changes=3, attempts=3, every=500),
    "1 voter, 2 members": BRISK(voters=1, members=2, every=500),
    "2 voters, 1 member, branches of 2": BRISK(
        voters=2, members=1, rounds=2, ahead=2, changes=1, every=500
    ),
    "4 voters, a change": BRISK(voters=4, changes=1, every=1000),
    "3 voters, a change": BRISK(voters=3, changes=1, every=1000),
    "3 voters, 2 changes": BRISK(voters=3, every=500),
}
"""Up to a few minutes each; the last ones are not seen to their end."""

IN_FLIGHT = partial(BRISK, rounds=2, ahead=2, lag=2, fragment_cells=(1, 1))

RUNNING_IN_FLIGHT: dict[str, BranchSpan] = {
    "2 voters, 2 rounds in flight, 2 changes": IN_FLIGHT(voters=2, every=20),
    "2 voters, 2 rounds in flight on 1 fragment": IN_FLIGHT(
        voters=2, fragment_cells=(1,), changes=1, restarts=1, every=50
    ),
    "1 voter, 1 member, 2 rounds in flight": IN_FLIGHT(voters=1, members=1, every=50),
}
"""The same with two rounds in flight (R5), seen to their end in a minute or two each."""

UNLIKE = BranchSpan(
    voters=3,
    rounds=3,
    ahead=3,
    changes=5,
    attempts=6,
    restarts=2,
    sleeps=1,
    cuts=3,
    is_brisk=True,
    is_late=True,
    is_unanswered=True,
    every=60,
)
"""For random walks: what no search gets to the end of."""

WALK_DEPTH = 80

LAGGARD = (
    "A has trained",
    "B has trained",
    "A hears the COMMIT of B",
    "A waits until its deadline",
    "B hears the COMMIT of A",
    "B hears the LIST of A",
    "A hears the VOTE of B",
    "B hears the VOTE of A",
    "B hears the SEAL of A",
    "B gets the result",
    "A hears the SEAL of B",
    "A has trained",
    "B has trained",
)
"""A and B make round 1 final and COMMIT round 2; C hears nothing of it."""

ALONE = (
    "A has trained",
    "B has trained",
    "A hears the COMMIT of B",
    "A gets the part of B",
    "A has trained",
    "B gets the result",
)
"""Of two voters the eldest makes round 1 final alone and COMMITs round 2; B is in round 1."""

UNHEARD = (
    *LAGGARD[:8],
    "B gets the result",
    "A hears the SEAL of B",
    "A has trained",
)
"""A makes round 1 final with a SEAL of its own that B and C have not heard, and COMMITs round 2."""


COMMITTED = (
    "A has trained",
    "A has trained",
    "B has trained",
    "B has trained",
    "A hears the COMMIT of B of round 1",
    "B hears the COMMIT of A of round 1",
    "A hears the COMMIT of B of round 2",
    "B hears the COMMIT of A of round 2",
)
"""With two rounds in flight: A and B have committed to both, and heard it of each other."""

LIARS = {
    "2 attempts, any LISTs, VOTEs and SEALs": LiarScope(attempts=2, every=1000),
    "2 attempts, told other things before": LiarScope(attempts=2, others=2, every=1000),
    "3 attempts, L closes the second": LiarScope(attempts=3, liar=1, every=1000),
    "2 attempts, a restart": LiarScope(attempts=2, restarts=1, every=1000),
    "1 attempt, wrong sums, a seat more": LiarScope(attempts=1, sums=True, members=1, every=20),
    "2 attempts, wrong sums": LiarScope(attempts=2, liar=1, sums=True, every=1000),
    "1 attempt, old messages": LiarScope(attempts=1, replays=True, every=20),
    "1 attempt, a COMMIT that accuses": LiarScope(
        attempts=1, lists=("ABC", "ABC1"), commits=1, accuses=True, every=200
    ),
    "1 attempt, 2 COMMITs, a ban": LiarScope(
        attempts=1, lists=("ABC1", "ABC2"), commits=2, bans=True, every=50
    ),
    "2 attempts, 3 COMMITs": LiarScope(
        attempts=2, liar=1, lists=("ABC", "ABC1", "ABC2"), commits=3, every=500
    ),
}
"""Open rules: three honest voters and the liar L, who closes the first attempt or the second."""

LIARS_WALK = LiarScope(
    attempts=6, liar=2, lists=("ABC", "AB", "ABC1"), commits=3, others=2, sums=True, restarts=2
)


LATE_AND_GONE = (
    *departures(),
    *(habit for habit in silences() if habit.kind in (Kind.COMMIT, Kind.HAVE)),
    *(Habit(None, PARTS, whom) for whom in ("", *"ABC")),
)
OMISSIONS = {
    "4 voters, the same for 7 rounds": OmissionPlan(rounds=7),
    "4 voters, L closes the third attempt": OmissionPlan(rounds=7, liar=2),
    "4 voters, 2 things at once": OmissionPlan(rounds=5, at_once=2),
    "4 voters, another thing later": OmissionPlan(rounds=5, changes=1),
    "4 voters, L is late, and then gone": OmissionPlan(rounds=4, at_once=2, habits=LATE_AND_GONE),
    "4 voters, 3 cells": OmissionPlan(rounds=6, cells=3),
    "4 voters, 2 seats of liars more": OmissionPlan(rounds=5, members=2),
    "7 voters, 2 liars": OmissionPlan(rounds=5, voters=7, liar=1),
}
"""Open rules: what liars owe and do not give, round after round."""


TOLD = (
    *(Beat(what, whom) for what in (STEP, COMMIT, FETCH) for whom in ("", "A")),
    Beat(NOTHING),
    Beat(LONG),
)
STEPS = (Beat(STEP), Beat(COMMIT))
PROGRESS = {
    "4 voters, X says what it likes of its work": WaitingPlan(beats=2, acts=TOLD, attempts=1),
    "4 voters, and it owes all else": WaitingPlan(beats=2, acts=TOLD, mute=True, place=1),
    "4 voters, and it goes on alone": WaitingPlan(beats=2, acts=TOLD, mute=True, ahead=True),
    "4 voters, everything goes to 2 of them": WaitingPlan(
        beats=2, acts=TOLD, mute=True, place=2, cells=1
    ),
    "4 voters, one of the others is slow": WaitingPlan(beats=2, acts=TOLD, mute=True, slow=4),
    "4 friends, one of whom some do not hear": WaitingPlan(
        beats=2, acts=TOLD, trust="friends", attempts=1
    ),
    "4 friends, one of whom has no link to X": WaitingPlan(
        beats=7, acts=STEPS, trust="friends", attempts=1, apart="A"
    ),
    "4 voters, one of whom has no link to X": WaitingPlan(
        beats=7, acts=STEPS, attempts=1, apart="A"
    ),
    "4 friends, everything goes to one of them": WaitingPlan(
        beats=2, acts=TOLD, trust="friends", place=1, cells=1
    ),
}
"""What one says of its work, beat by beat and then for ever."""

WORDS = {
    "3 honest, any words, 2 small LISTs": partial(Words, rounds=6, small=2, has_gone=False),
    "3 honest, one gone, any words": partial(Words, rounds=8, small=0),
    "3 honest, small LISTs alone": partial(Words, rounds=4, small=4, has_gone=False, may_lose=1),
}
"""Open rules: what is listed, and what L says of who was there, over some rounds."""

AGREEMENT = {
    "1 voter, 4 attempts": AgreementScope(voters=1, attempts=4, every=1),
    "2 voters, 2 attempts": AgreementScope(voters=2, attempts=2, every=1),
    "2 voters, 3 attempts": AgreementScope(voters=2, attempts=3, every=20),
    "2 voters, 3 attempts, any closer": AgreementScope(voters=2, attempts=3, dutiful=False),
    "2 voters, 2 attempts, 2 restarts": AgreementScope(voters=2, attempts=2, restarts=2, every=50),
    "2 voters, 2 attempts, 2 freezes": AgreementScope(voters=2, attempts=2, sleeps=2, every=50),
    "3 voters, 2 attempts": AgreementScope(voters=3, attempts=2, every=100),
    "3 voters, 2 attempts, 3 LISTs": AgreementScope(voters=3, attempts=2, lists=3, every=500),
    "3 voters, 2 attempts, any closer": AgreementScope(voters=3, attempts=2, dutiful=False),
    "3 voters, 2 attempts, a restart": AgreementScope(voters=3, attempts=2, restarts=1),
    "3 voters, 2 attempts, a lost disk": AgreementScope(voters=3, attempts=2, disks=1),
    "3 voters, 3 attempts, any closer": AgreementScope(voters=3, attempts=3, dutiful=False),
    "3 voters, 3 attempts": AgreementScope(voters=3, attempts=3),
    "4 voters, 2 attempts, any closer": AgreementScope(voters=4, attempts=2, dutiful=False),
    "4 voters, 2 attempts": AgreementScope(voters=4, attempts=2),
}

AGREEMENT_WALK = AgreementScope(voters=4, attempts=5, lists=3, restarts=2, sleeps=1)

SUPPLY = {
    "2 voters, 1 may die, 2 attempts": AgreementScope(voters=2, attempts=2, every=1),
    "2 voters, 1 may die, 3 attempts": AgreementScope(voters=2, attempts=3, every=20),
    "3 voters, 1 may die, 1 attempt": AgreementScope(voters=3, attempts=1, every=10),
    "3 voters, 1 may die, 2 attempts": AgreementScope(voters=3, attempts=2, every=500),
    "3 voters, 1 may die, 2 cells": AgreementScope(voters=3, attempts=1, every=500),
}

ROUND = partial(Span, rounds=1)
GRAM = partial(ROUND, voters=2, uses_gram=True)
ROUNDS = {
    "2 voters, 1 round": ROUND(voters=2, every=1),
    "2 voters, 2 rounds": Span(voters=2, every=20),
    "2 voters, 2 attempts": ROUND(voters=2, attempts=2, is_late=True, every=50),
    "2 voters, 1 round, whole vectors": GRAM(every=10),
    "2 voters, 2 attempts, whole vectors": GRAM(attempts=2, is_late=True, every=100),
    "2 voters, 1 round, whole vectors, a restart": GRAM(restarts=1, every=50),
    "2 voters, 2 fragments in 2 rounds, a restart": Span(
        voters=2, restarts=1, every=100, fragment_cells=(1, 2)
    ),
}

FLYING = partial(Span, fragment_cells=(1, 2), lag=2)
ROUNDS_IN_FLIGHT = {
    "2 voters, 2 rounds in flight, a cell each": FLYING(voters=2, fragment_cells=(1, 1), every=20),
    "2 voters, 2 rounds in flight, a restart behind all COMMITs": (
        FLYING(voters=2, fragment_cells=(1, 1), restarts=1, every=100),
        COMMITTED,
    ),
    "1 voter, 3 rounds, 2 in flight": FLYING(voters=1, rounds=3),
    "2 voters, 2 rounds in flight": FLYING(voters=2),
    "2 voters, 2 rounds in flight, a restart": FLYING(voters=2, restarts=1),
    "2 voters, 2 rounds in flight, a lost disk": FLYING(voters=2, disks=1),
    "2 voters, 3 rounds, 2 in flight, a restart": FLYING(voters=2, rounds=3, restarts=1),
}
"""R5: the same machines with two rounds in flight, on two fragments."""

ROUNDS_OF_ALL = {
    "2 voters, 1 round": ROUND(voters=2, every=1),
    "2 voters, 2 attempts": ROUND(voters=2, attempts=2, is_late=True, every=50),
    "2 voters, 1 round, whole vectors": GRAM(every=10),
    "2 voters, 1 round, a restart": ROUND(voters=2, restarts=1, every=20),
    "2 voters, 2 rounds": Span(voters=2, every=50),
    "1 voter, a member becomes one": Span(voters=1, members=1, rounds=3, every=50),
    "1 voter, 1 joiner, 2 rounds": Span(voters=1, joiners=1, every=200),
    "2 voters, 2 rounds, a restart": Span(voters=2, restarts=1, every=500),
    "2 voters, 2 rounds, a lost disk": Span(voters=2, disks=1),
    "3 voters, 1 round": ROUND(voters=3, every=1000),
}
"""R8: the same machines where everybody sums everything."""

ROUNDS_LARGE = {
    "2 voters, 2 rounds, a restart": Span(voters=2, restarts=1, every=100),
    "2 voters, 2 rounds, a freeze": Span(voters=2, sleeps=1, every=100),
    "1 voter, a member becomes one": Span(voters=1, members=1, rounds=3, every=50),
    "1 voter, 1 joiner, 2 rounds": Span(voters=1, joiners=1, every=200),
    "3 voters, 1 round": ROUND(voters=3, every=1000),
    "3 voters, a lost disk behind a laggard": (
        Span(voters=3, disks=1, is_late=True, active="B"),
        LAGGARD,
    ),
    "2 voters, 2 rounds, a lost disk": Span(voters=2, disks=1),
    "2 voters, a lost disk of who was a quorum alone": (
        Span(voters=2, disks=1, active="A"),
        ALONE,
    ),
    "3 voters, a lost disk with a SEAL that nobody heard": (
        Span(voters=3, disks=1, is_late=True, active="A"),
        UNHEARD,
    ),
}
"""A trace beside a case is what it begins behind."""


@dataclass(frozen=True, slots=True)
class ExplorationCase:
    """One model and how far it is explored; `is_walk` for random walks. Built when it is run."""

    part: str
    name: str
    make: Callable[[], Model[Any]]
    is_walk: bool = False

    @property
    def bound(self) -> Bound:
        """Without limits but the depth of a walk."""
        return Bound(depth=WALK_DEPTH) if self.is_walk else Bound()


def cases() -> Iterator[ExplorationCase]:
    """All cases, part by part, small ones first."""
    for part, table in _tables():
        for name, make in table.items():
            yield ExplorationCase(part, name, make)
        for name, make in _WALKS.get(part, {}).items():
            yield ExplorationCase(part, name, make, is_walk=True)


_WALKS: dict[str, dict[str, Callable[[], Model[Any]]]] = {
    "agreement": {
        f"4 voters, 5 attempts, 3 LISTs, 2 restarts, a freeze{whose}": partial(
            Agreement, replace(AGREEMENT_WALK, dutiful=not whose)
        )
        for whose in ("", ", any closer")
    },
    "running": {
        "3 voters, 5 changes, 6 attempts, 2 restarts, a freeze": partial(RunningBranches, UNLIKE)
    },
    "liars": {"6 attempts, 3 COMMITs, wrong sums, 2 restarts": partial(Lying, LIARS_WALK)},
}


def _tables() -> Iterator[tuple[str, Mapping[str, Callable[[], Model[Any]]]]]:
    """The cases of each part, by name."""
    yield "agreement", {name: partial(Agreement, scope) for name, scope in AGREEMENT.items()}
    yield (
        "supply",
        {
            name: partial(Supply, scope, Losses(num_cells=1 + ("2 cells" in name)))
            for name, scope in SUPPLY.items()
        },
    )
    of_all = {
        f"{name}, everybody sums": replace(span, everybody_sums=True)
        for name, span in ROUNDS_OF_ALL.items()
    }
    spans = {**ROUNDS, **ROUNDS_IN_FLIGHT, **of_all, **ROUNDS_LARGE}
    yield (
        "rounds",
        {
            name: partial(Rounds, *(span if isinstance(span, tuple) else (span,)))
            for name, span in spans.items()
        },
    )
    dead = {
        f"{voters} voters, the founder dead, any LISTs": partial(
            Windows, voters=voters, rounds=rounds
        )
        for voters, rounds in ((3, 7), (4, 5))
    }
    turns = {
        f"{voters} seats, {waiting} more in turn, one dies, one is late": partial(
            Windows, voters=voters, rounds=rounds, waiting=waiting
        )
        for voters, waiting, rounds in ((2, 1, 12), (3, 2, 8), (4, 2, 6))
    }
    yield "windows", {**dead, **turns}
    yield (
        "leaving",
        {
            f"{trust}, {others} {which} members, {leavers} may leave, one may die": partial(
                LeavingModel,
                others=others,
                rounds=rounds,
                leavers=leavers,
                is_founding=which == "founding",
                trust=trust,
            )
            for trust in ("friends", "open")
            for others, leavers, rounds in ((2, 1, 6), (2, 2, 5), (3, 1, 4), (3, 2, 3))
            for which in ("founding", "later")
        },
    )
    yield (
        "waking",
        {
            f"{voters} voters, {sleepers} of them freeze": partial(
                Waking, voters=voters, sleepers=sleepers
            )
            for voters, sleepers in ((2, 2), (3, 2), (3, 3))
        },
    )
    running = {**RUNNING, **RUNNING_LARGE, **RUNNING_IN_FLIGHT}
    yield "running", {name: partial(RunningBranches, span) for name, span in running.items()}
    yield "liars", {name: partial(Lying, scope) for name, scope in LIARS.items()}
    yield "words", WORDS
    yield "progress", {name: partial(Waiting, plan) for name, plan in PROGRESS.items()}
    yield "omissions", {name: partial(Omissions, plan) for name, plan in OMISSIONS.items()}


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
