"""R4 and R5 as code, explored: clean as they are, broken by each looser wording."""

from contextlib import nullcontext

import pytest

from sim.exploration.branches import Convergent, Healing, MeetingOrder
from sim.exploration.cases import BRANCHES, BRANCHES_LARGE, JOINER, MEETING, OVERLAPS, THREE, TWO
from sim.exploration.explorer import Bound, explore
from sim.exploration.overlap import Overlap, OverlapBounds
from tests.sim import looser_branches as looser

STATES = {
    "2 voters, 2 changes of links": 5_219,
    "1 voter and 1 joiner, 3 changes": 2_958,
    "3 voters, three branches meet in any order": 4_379,
    "3 voters, all or nobody": 4_363,
}
BROKEN = [
    pytest.param(
        looser.slots_without_the_branch,
        Convergent,
        TWO(is_partial=False, has_late=False, everybody_seals=True, attempts=1),
        ("S3: B signed COMMIT", 7),
        id="6, slots do not know the branch",
    ),
    pytest.param(
        looser.finality_by_the_roster_of_the_branch,
        Convergent,
        TWO(rounds=4, ahead=3, changes=1),
        ("S1: ", 12),
        id="7, the branch's own roster",
    ),
    pytest.param(
        looser.drift_inside_the_commit,
        Convergent,
        TWO(changes=3, attempts=3),
        ("S3: B signed COMMIT", 7),
        id="9, drift in the COMMIT",
    ),
    pytest.param(
        looser.merge_by_tokens,
        MeetingOrder,
        MEETING,
        ("S5: the outcome depends on who meets first", 8),
        id="10, tokens before locks",
    ),
    pytest.param(
        looser.barren_heads,
        Healing,
        TWO(rounds=3, ahead=3, changes=1),
        ("L1: B may seal rounds, but nobody in reach may contribute", 7),
        id="a head that names nobody in reach",
    ),
    pytest.param(
        looser.attempts_that_start_anew,
        Convergent,
        TWO(),
        ("S3: ", 5),
        id="an attempt number is used again",
    ),
    pytest.param(
        looser.locks_of_provisional_seals,
        Convergent,
        TWO(),
        ("S1: ", 5),  # Seven where another closes: that goes by digests.
        id="PSEAL locks",
    ),
]
BROKEN_SLOWLY = [
    pytest.param(
        looser.finality_by_counting,
        Convergent,
        THREE(rounds=1, ahead=1, changes=3, attempts=3),
        ("S1: ", 7),
        id="8, finality by counting",
    ),
    pytest.param(
        looser.every_loser_brings_the_drift,
        Convergent,
        JOINER(rounds=3, attempts=1),
        ("S5: a contribution counts twice", 10),
        id="9, every loser brings the drift",
    ),
]


class InFlight(Overlap):
    """Whether overlap is reached at all; where it is, that counts as found."""

    def check(self, state):
        return "two rounds are in flight" if state.in_flight > 1 else ""


def check_whole(case) -> int:
    model, bounds = case
    found = explore(model(bounds), Bound())
    assert (found.outcome, found.violation, found.trace) == ("exhausted", "", ())
    return found.states


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", BRANCHES)
def test_rules_of_branches_are_clean_in_every_state(name):
    # The number is no promise; that it does not shrink unseen is what keeps the search a search.
    assert check_whole(BRANCHES[name]) == STATES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", BRANCHES_LARGE)
def test_rules_of_branches_are_clean_within_larger_bounds(name):
    assert check_whole(BRANCHES_LARGE[name]) > 10_000


def check_loosened(loosen, model, bounds, expected):
    """The looser wording breaks with a shortest trace; the rule is clean as deep as that."""
    violation, length = expected
    with loosen():
        found = explore(model(bounds), Bound())
    assert found.violation.startswith(violation), found
    assert len(found.trace) == length, found
    clean = explore(model(bounds), Bound(depth=length))
    assert (clean.violation, clean.trace) == ("", ())


@pytest.mark.quick(2)
@pytest.mark.parametrize(("loosen", "model", "bounds", "expected"), BROKEN)
def test_looser_wording_of_branches_is_found(loosen, model, bounds, expected):
    check_loosened(loosen, model, bounds, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("loosen", "model", "bounds", "expected"), BROKEN_SLOWLY)
def test_looser_wording_of_branches_is_found_far_away(loosen, model, bounds, expected):
    check_loosened(loosen, model, bounds, expected)


@pytest.mark.extended
@pytest.mark.parametrize(
    "bounds", [*OVERLAPS.values(), pytest.param(OverlapBounds(), marks=pytest.mark.slow)]
)
def test_rules_of_overlap_are_clean_in_every_state(bounds):
    found = explore(Overlap(bounds), Bound())
    assert (found.outcome, found.violation) == ("exhausted", "")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("loosen", "lag", "is_reached"),
    [
        (nullcontext, 2, True),
        (nullcontext, 1, False),
        (looser.commit_carries_the_seal_of_the_round_before, 2, False),
    ],
)
def test_two_rounds_are_in_flight_only_if_a_commit_carries_the_seal_that_named_its_roster(
    loosen, lag, is_reached
):
    with loosen():
        found = explore(InFlight(OverlapBounds(lag=lag, rounds=4)), Bound())
    assert found.outcome == ("violated" if is_reached else "exhausted")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("loosen", "violation"),
    [
        (looser.rosters_by_the_newest_seal, "S4: the roster of round 2 is named by"),
        (looser.fragment_advances_with_sums, "R5: COMMITs of round 2 are for"),
        (looser.seals_out_of_order, "R5: round 2 is final before the round before it"),
    ],
)
def test_looser_wording_of_overlap_is_found(loosen, violation):
    with loosen():
        found = explore(Overlap(OverlapBounds(rounds=4)), Bound())
    assert found.violation.startswith(violation), found
    assert 0 < len(found.trace) <= 6


@pytest.mark.extended
def test_two_rounds_in_flight_on_one_fragment_are_for_the_version_of_the_seal_that_names_them():
    """One-step delay: who has heard of the seal before must not take its weights for the base."""
    bounds = OverlapBounds(rounds=4, fragments=1)
    with looser.base_is_the_newest_version():
        found = explore(Overlap(bounds), Bound())
        assert found.violation.startswith("R5: COMMITs of round 2 are for"), found
        assert 0 < len(found.trace) <= 8
        # Where rounds in flight are about different fragments the two wordings are one.
        apart = explore(Overlap(OverlapBounds(rounds=4)), Bound())
    assert (apart.outcome, apart.violation) == ("exhausted", "")
    assert explore(InFlight(bounds), Bound()).outcome == "violated", "two are in flight"
