"""The catalogue: what is explored, how far, and in words what the numbers are of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sim.exploration import branch_cases, lies
from sim.exploration.agreement import Agreement, AgreementScope
from sim.exploration.explorer import Bound, Model
from sim.exploration.leaving import LeavingModel
from sim.exploration.liars import Lying
from sim.exploration.omissions import OmissionPlan, Omissions
from sim.exploration.overlap import Overlap
from sim.exploration.rounds import Rounds, Span
from sim.exploration.running_branches import RunningBranches
from sim.exploration.supply import Losses, Supply
from sim.exploration.waking import Waking
from sim.exploration.windows import Windows
from sim.exploration.words import Words

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
    "2 attempts, any LISTs, VOTEs and SEALs": lies.LiarScope(attempts=2, every=1000),
    "2 attempts, told other things before": lies.LiarScope(attempts=2, others=2, every=1000),
    "3 attempts, L closes the second": lies.LiarScope(attempts=3, liar=1, every=1000),
    "2 attempts, a restart": lies.LiarScope(attempts=2, restarts=1, every=1000),
    "1 attempt, wrong sums, a seat more": lies.LiarScope(
        attempts=1, sums=True, members=1, every=20
    ),
    "2 attempts, wrong sums": lies.LiarScope(attempts=2, liar=1, sums=True, every=1000),
    "1 attempt, old messages": lies.LiarScope(attempts=1, replays=True, every=20),
    "1 attempt, a COMMIT that accuses": lies.LiarScope(
        attempts=1, lists=("ABC", "ABC1"), commits=1, accuses=True, every=200
    ),
    "1 attempt, 2 COMMITs, a ban": lies.LiarScope(
        attempts=1, lists=("ABC1", "ABC2"), commits=2, bans=True, every=50
    ),
    "2 attempts, 3 COMMITs": lies.LiarScope(
        attempts=2, liar=1, lists=("ABC", "ABC1", "ABC2"), commits=3, every=500
    ),
}
"""Open rules: three honest voters and the liar L, who closes the first attempt or the second."""

LIARS_WALK = lies.LiarScope(
    attempts=6, liar=2, lists=("ABC", "AB", "ABC1"), commits=3, others=2, sums=True, restarts=2
)


OMISSIONS = {
    "4 voters, the same for 7 rounds": OmissionPlan(rounds=7),
    "4 voters, L closes the third attempt": OmissionPlan(rounds=7, liar=2),
    "4 voters, 2 things at once": OmissionPlan(rounds=5, at_once=2),
    "4 voters, another thing later": OmissionPlan(rounds=5, changes=1),
    "4 voters, 3 cells": OmissionPlan(rounds=6, cells=3),
    "4 voters, 2 seats of liars more": OmissionPlan(rounds=5, members=2),
    "7 voters, 2 liars": OmissionPlan(rounds=5, voters=7, liar=1),
}
"""Open rules: what liars owe and do not give, round after round."""


WORDS: dict[str, dict[str, Any]] = {
    "3 honest, any words, 2 small LISTs": {"rounds": 6, "small": 2, "has_gone": False},
    "3 honest, one gone, any words": {"rounds": 8, "small": 0},
    "3 honest, small LISTs alone": {"rounds": 4, "small": 4, "has_gone": False, "may_lose": 1},
}
"""Open rules: what is listed, and what L says of who was there, over some rounds."""


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


def _agreement(name: str, scope: AgreementScope, *, is_walk: bool = False) -> ExplorationCase:
    return ExplorationCase("agreement", name, partial(Agreement, scope), is_walk)


def _supply(name: str, losses: Losses, scope: AgreementScope) -> ExplorationCase:
    return ExplorationCase("supply", name, partial(Supply, scope, losses))


def _rounds(name: str, span: Span, before: tuple[str, ...] = ()) -> ExplorationCase:
    return ExplorationCase("rounds", name, partial(Rounds, span, before))


def cases() -> Iterator[ExplorationCase]:
    """All cases, part by part, small ones first."""
    yield from _cases_of_agreement()
    yield from _cases_of_rounds()
    for voters in (3, 4):
        make = partial(Windows, voters=voters, rounds=7 if voters == 3 else 5)
        yield ExplorationCase("windows", f"{voters} voters, the founder dead, any LISTs", make)
    for voters, waiting, rounds in ((2, 1, 12), (3, 2, 8), (4, 2, 6)):
        make = partial(Windows, voters=voters, rounds=rounds, waiting=waiting)
        name = f"{voters} seats, {waiting} more in turn, one dies, one is late"
        yield ExplorationCase("windows", name, make)
    yield from _cases_of_leaving()
    for voters, sleepers in ((2, 2), (3, 2), (3, 3)):
        make_waking = partial(Waking, voters=voters, sleepers=sleepers)
        yield ExplorationCase("waking", f"{voters} voters, {sleepers} of them freeze", make_waking)
    for name, (model, bounds) in {**branch_cases.QUICK, **branch_cases.LARGE}.items():
        yield ExplorationCase("branches", name, partial(model, bounds))
    running = {**branch_cases.RUNNING, **branch_cases.RUNNING_LARGE}
    running |= branch_cases.RUNNING_IN_FLIGHT
    for name, span in running.items():
        yield ExplorationCase("running", name, partial(RunningBranches, span))
    yield ExplorationCase(
        "running",
        "3 voters, 5 changes, 6 attempts, 2 restarts, a freeze",
        partial(RunningBranches, branch_cases.UNLIKE),
        is_walk=True,
    )
    yield from _cases_of_liars()
    for name, overlap in branch_cases.OVERLAPS.items():
        yield ExplorationCase("overlap", name, partial(Overlap, overlap))


def _cases_of_agreement() -> Iterator[ExplorationCase]:
    yield _agreement("1 voter, 4 attempts", AgreementScope(voters=1, attempts=4, every=1))
    yield _agreement("2 voters, 2 attempts", AgreementScope(voters=2, attempts=2, every=1))
    yield _agreement("2 voters, 3 attempts", AgreementScope(voters=2, attempts=3, every=20))
    yield _agreement(
        "2 voters, 3 attempts, any closer", AgreementScope(voters=2, attempts=3, dutiful=False)
    )
    yield _agreement(
        "2 voters, 2 attempts, 2 restarts",
        AgreementScope(voters=2, attempts=2, restarts=2, every=50),
    )
    yield _agreement(
        "2 voters, 2 attempts, 2 freezes", AgreementScope(voters=2, attempts=2, sleeps=2, every=50)
    )
    yield _agreement("3 voters, 2 attempts", AgreementScope(voters=3, attempts=2, every=100))
    yield _agreement(
        "3 voters, 2 attempts, 3 LISTs", AgreementScope(voters=3, attempts=2, lists=3, every=500)
    )
    yield _agreement(
        "3 voters, 2 attempts, any closer", AgreementScope(voters=3, attempts=2, dutiful=False)
    )
    yield _agreement(
        "3 voters, 2 attempts, a restart", AgreementScope(voters=3, attempts=2, restarts=1)
    )
    yield _agreement(
        "3 voters, 2 attempts, a lost disk", AgreementScope(voters=3, attempts=2, disks=1)
    )
    yield _agreement(
        "3 voters, 3 attempts, any closer", AgreementScope(voters=3, attempts=3, dutiful=False)
    )
    yield _agreement("3 voters, 3 attempts", AgreementScope(voters=3, attempts=3))
    yield _agreement(
        "4 voters, 2 attempts, any closer", AgreementScope(voters=4, attempts=2, dutiful=False)
    )
    yield _agreement("4 voters, 2 attempts", AgreementScope(voters=4, attempts=2))
    for dutiful, whose in ((True, ""), (False, ", any closer")):
        scope = AgreementScope(voters=4, attempts=5, lists=3, restarts=2, sleeps=1, dutiful=dutiful)
        name = f"4 voters, 5 attempts, 3 LISTs, 2 restarts, a freeze{whose}"
        yield _agreement(name, scope, is_walk=True)
    yield _supply(
        "2 voters, 1 may die, 2 attempts", Losses(), AgreementScope(voters=2, attempts=2, every=1)
    )
    yield _supply(
        "2 voters, 1 may die, 3 attempts", Losses(), AgreementScope(voters=2, attempts=3, every=20)
    )
    yield _supply(
        "3 voters, 1 may die, 1 attempt", Losses(), AgreementScope(voters=3, attempts=1, every=10)
    )
    yield _supply(
        "3 voters, 1 may die, 2 attempts", Losses(), AgreementScope(voters=3, attempts=2, every=500)
    )
    yield _supply(
        "3 voters, 1 may die, 2 cells",
        Losses(num_cells=2),
        AgreementScope(voters=3, attempts=1, every=500),
    )


def _cases_of_liars() -> Iterator[ExplorationCase]:
    """One that lies, and one that is silent, late or denies."""
    for name, scope_of_lies in LIARS.items():
        yield ExplorationCase("liars", name, partial(Lying, scope_of_lies))
    name = "6 attempts, 3 COMMITs, wrong sums, 2 restarts"
    yield ExplorationCase("liars", name, partial(Lying, LIARS_WALK), is_walk=True)
    for name, words in WORDS.items():
        yield ExplorationCase("words", name, partial(Words, **words))
    for name, plan in OMISSIONS.items():
        yield ExplorationCase("omissions", name, partial(Omissions, plan))


def _cases_of_leaving() -> Iterator[ExplorationCase]:
    """R1: the only voter, and who may come after it."""
    for trust in ("friends", "open"):
        for others, leavers, rounds in ((2, 1, 6), (2, 2, 5), (3, 1, 4), (3, 2, 3)):
            for is_founding in (True, False):
                make = partial(
                    LeavingModel,
                    others=others,
                    rounds=rounds,
                    leavers=leavers,
                    is_founding=is_founding,
                    trust=trust,
                )
                which = "founding" if is_founding else "later"
                name = f"{trust}, {others} {which} members, {leavers} may leave, one may die"
                yield ExplorationCase("leaving", name, make)


def _cases_of_rounds() -> Iterator[ExplorationCase]:
    yield _rounds("2 voters, 1 round", Span(voters=2, rounds=1, every=1))
    yield _rounds("2 voters, 2 rounds", Span(voters=2, rounds=2, every=20))
    yield _rounds(
        "2 voters, 2 attempts", Span(voters=2, rounds=1, attempts=2, is_late=True, every=50)
    )
    yield _rounds(
        "2 voters, 1 round, whole vectors", Span(voters=2, rounds=1, every=10, uses_gram=True)
    )
    yield _rounds(
        "2 voters, 2 attempts, whole vectors",
        Span(voters=2, rounds=1, attempts=2, is_late=True, every=100, uses_gram=True),
    )
    yield _rounds(
        "2 voters, 1 round, whole vectors, a restart",
        Span(voters=2, rounds=1, restarts=1, every=50, uses_gram=True),
    )
    yield _rounds(
        "2 voters, 2 fragments in 2 rounds, a restart",
        Span(voters=2, rounds=2, restarts=1, every=100, fragment_cells=(1, 2)),
    )
    yield from _cases_in_flight()
    yield from _cases_of_all()
    yield _rounds("2 voters, 2 rounds, a restart", Span(voters=2, rounds=2, restarts=1, every=100))
    yield _rounds("2 voters, 2 rounds, a freeze", Span(voters=2, rounds=2, sleeps=1, every=100))
    yield _rounds("1 voter, a member becomes one", Span(voters=1, members=1, rounds=3, every=50))
    yield _rounds("1 voter, 1 joiner, 2 rounds", Span(voters=1, joiners=1, rounds=2, every=200))
    yield _rounds("3 voters, 1 round", Span(voters=3, rounds=1, every=1000))
    yield _rounds(
        "3 voters, a lost disk behind a laggard",
        Span(voters=3, rounds=2, disks=1, is_late=True, active="B"),
        LAGGARD,
    )
    yield _rounds("2 voters, 2 rounds, a lost disk", Span(voters=2, rounds=2, disks=1))
    yield _rounds(
        "2 voters, a lost disk of who was a quorum alone",
        Span(voters=2, rounds=2, disks=1, active="A"),
        ALONE,
    )
    yield _rounds(
        "3 voters, a lost disk with a SEAL that nobody heard",
        Span(voters=3, rounds=2, disks=1, is_late=True, active="A"),
        UNHEARD,
    )


def _cases_of_all() -> Iterator[ExplorationCase]:
    """R8: the same machines where everybody sums everything."""
    for name, span in (
        ("2 voters, 1 round", Span(voters=2, rounds=1, every=1)),
        ("2 voters, 2 attempts", Span(voters=2, rounds=1, attempts=2, is_late=True, every=50)),
        ("2 voters, 1 round, whole vectors", Span(voters=2, rounds=1, every=10, uses_gram=True)),
        ("2 voters, 1 round, a restart", Span(voters=2, rounds=1, restarts=1, every=20)),
        ("2 voters, 2 rounds", Span(voters=2, rounds=2, every=50)),
        ("1 voter, a member becomes one", Span(voters=1, members=1, rounds=3, every=50)),
        ("1 voter, 1 joiner, 2 rounds", Span(voters=1, joiners=1, rounds=2, every=200)),
        ("2 voters, 2 rounds, a restart", Span(voters=2, rounds=2, restarts=1, every=500)),
        ("2 voters, 2 rounds, a lost disk", Span(voters=2, rounds=2, disks=1)),
        ("3 voters, 1 round", Span(voters=3, rounds=1, every=1000)),
    ):
        yield _rounds(f"{name}, everybody sums", replace(span, everybody_sums=True))


def _cases_in_flight() -> Iterator[ExplorationCase]:
    """R5: the same machines with two rounds in flight, on two fragments."""
    two = Span(voters=2, rounds=2, fragment_cells=(1, 1), lag=2)
    yield _rounds("2 voters, 2 rounds in flight, a cell each", replace(two, every=20))
    yield _rounds(
        "2 voters, 2 rounds in flight, a restart behind all COMMITs",
        replace(two, restarts=1, every=100),
        COMMITTED,
    )
    for name, span in (
        ("1 voter, 3 rounds, 2 in flight", Span(voters=1, rounds=3)),
        ("2 voters, 2 rounds in flight", Span(voters=2, rounds=2)),
        ("2 voters, 2 rounds in flight, a restart", Span(voters=2, rounds=2, restarts=1)),
        ("2 voters, 2 rounds in flight, a lost disk", Span(voters=2, rounds=2, disks=1)),
        ("2 voters, 3 rounds, 2 in flight, a restart", Span(voters=2, rounds=3, restarts=1)),
    ):
        yield _rounds(name, replace(span, fragment_cells=(1, 2), lag=2))
