"""How far branches and overlap are explored: the cases that are exhausted, by name."""

from functools import partial

from sim.exploration.branch_healing import Convergent, Healing, MeetingOrder
from sim.exploration.branch_moves import BranchSpan
from sim.exploration.branch_state import BranchBounds
from sim.exploration.branches import Branches
from sim.exploration.overlap import OverlapBounds

TWO = partial(BranchBounds, peers=2, voters=2)
THREE = partial(BranchBounds, peers=3, voters=3, is_partial=False, has_late=False)
JOINER = partial(BranchBounds, peers=3, voters=2, has_late=False, everybody_seals=True)
MEETING = THREE(is_partial=True, has_late=True, rounds=1, ahead=3, changes=1, attempts=1)

QUICK: dict[str, tuple[type[Branches], BranchBounds]] = {
    "2 voters, 2 changes of links": (Healing, TWO()),
    "1 voter and 1 joiner, 3 changes": (Healing, TWO(voters=1, rounds=3, changes=3)),
    "3 voters, three branches meet in any order": (MeetingOrder, MEETING),
    "3 voters, all or nobody": (Convergent, THREE(everybody_seals=True, attempts=1)),
}
"""Seconds each."""

LARGE: dict[str, tuple[type[Branches], BranchBounds]] = {
    "2 voters, 3 changes": (Healing, TWO(changes=3)),
    "2 voters, 3 changes, 3 attempts": (Convergent, TWO(changes=3, attempts=3)),
    "2 voters, branches of 3": (Convergent, TWO(rounds=4, ahead=3, changes=1)),
    "1 voter and 2 joiners": (
        Convergent,
        BranchBounds(peers=3, voters=1, rounds=3, ahead=1, is_partial=False),
    ),
    "2 voters and 1 joiner": (
        Convergent,
        BranchBounds(peers=3, voters=2, ahead=1, is_partial=False),
    ),
    "2 voters and 1 joiner, branches of 2": (Convergent, JOINER(rounds=3, attempts=1)),
    "3 voters, some late or unaware": (
        Healing,
        BranchBounds(peers=3, voters=3, rounds=1, ahead=1),
    ),
    "4 voters, ties": (Convergent, THREE(peers=4, voters=4, rounds=1, ahead=1, attempts=1)),
}
"""Up to a minute each."""

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

OVERLAPS: dict[str, OverlapBounds] = {
    "2 rounds in flight, 4 rounds": OverlapBounds(rounds=4),
    "2 rounds in flight, 3 fragments": OverlapBounds(rounds=3, fragments=3),
    "2 rounds in flight on 1 fragment": OverlapBounds(rounds=4, fragments=1),
    "1 round in flight": OverlapBounds(rounds=4, lag=1, fragments=1),
}
"""Seconds each, for `Overlap`; 5 rounds take a minute."""
