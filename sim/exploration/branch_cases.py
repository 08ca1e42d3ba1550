"""How far branches and overlap are explored: the cases that are exhausted, by name."""

from functools import partial

from sim.exploration.branch_healing import Convergent, Healing, MeetingOrder
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

OVERLAPS: dict[str, OverlapBounds] = {
    "2 rounds in flight, 4 rounds": OverlapBounds(rounds=4),
    "2 rounds in flight, 3 fragments": OverlapBounds(rounds=3, fragments=3),
    "1 round in flight": OverlapBounds(rounds=4, lag=1, fragments=1),
}
"""Seconds each, for `Overlap`; 5 rounds take a minute."""
