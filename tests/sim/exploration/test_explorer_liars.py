"""Open rules, three honest machines and one liar: what is promised holds in every order within the
bound; with each defence switched off the same search finds what it is for."""

from dataclasses import replace

import pytest

from sim.exploration.cases import LIARS, LIARS_WALK
from sim.exploration.explorer import Bound, Exploration, Later, explore, walk
from sim.exploration.liars import LiarScope, Lying
from tests.sim import looser_liars as looser

TWO_SEALS = "S1: two values are final in one round"
STANDS_STILL = "L1: the living do not seal within v + 2 attempts"


@pytest.mark.extended
def test_one_liar_who_says_all_there_is_of_one_attempt_breaks_nothing():
    result = explore(Lying(LiarScope(attempts=1, every=200)), Bound(states=10_000))
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.states > 4000, "an exploration in which nothing happens shows nothing"


@pytest.mark.slow
def test_one_liar_breaks_nothing_on_random_walks(seed):
    result = walk(Lying(LIARS_WALK), Bound(states=200, depth=60), seed=seed)
    assert not result.violation, (result.seed, result.trace)
    assert result.states >= 200


@pytest.mark.slow
@pytest.mark.parametrize("name", LIARS)
def test_one_liar_breaks_nothing_further_on(name):
    result = explore(Lying(LIARS[name]), Bound(seconds=25))
    assert not result.violation, result.trace
    assert result.states > 1000


# Each defence switched off -----------------------------------------------------------------------


def both_ways(loosened, scope: LiarScope, before=(), *, states: int) -> Exploration:
    """The violation that is found with the defence off, after the shipped rules have shown none."""
    with loosened():
        found = explore(Later(Lying(scope), before), Bound(states=states))
    assert found.outcome == "violated", f"not found within {found.states} states"
    shipped = explore(Later(Lying(scope), before), Bound(states=found.states))
    assert not shipped.violation, shipped.trace
    return found


def switched_off(defence: str, scope: LiarScope, *, states: int) -> Exploration:
    """The same of one that the machines themselves can be told to do without."""
    off = replace(scope, without=frozenset({defence}))
    found = explore(Lying(off), Bound(states=states))
    assert found.outcome == "violated", f"not found within {found.states} states"
    shipped = explore(Lying(scope), Bound(states=found.states))
    assert not shipped.violation, shipped.trace
    return found


def test_words_of_any_two_make_a_wrong_sum_final():
    scope = LiarScope(attempts=1, sums=True, members=1)
    found = switched_off("words", scope, states=500)
    assert found.violation == "a SEAL of a sum that the parts do not give"


def test_slots_of_no_round_make_old_messages_count():
    found = switched_off("slots", LiarScope(attempts=1, replays=True), states=500)
    assert len(found.trace) == 1


def test_evidence_that_nobody_acts_on_leaves_a_liar_its_seat():
    scope = LiarScope(attempts=1, lists=("ABC1", "ABC2"), commits=2, bans=True, every=1)
    found = switched_off("bans", scope, states=100)
    assert found.violation == "R1: who signed two messages in a slot is not banned"


def test_equivocation_that_nobody_notices_leaves_a_liar_its_seat():
    scope = LiarScope(attempts=1, lists=("ABC1", "ABC2"), commits=2, bans=True, every=1)
    found = both_ways(looser.second_is_dropped, scope, states=100)
    assert found.violation == "R1: who signed two messages in a slot is not banned"


@pytest.mark.slow
def test_equivocation_that_nobody_notices_stops_the_round():
    scope = LiarScope(attempts=1, lists=("ABC1", "ABC2"), commits=2, every=1)
    assert both_ways(looser.second_is_dropped, scope, states=500).violation == STANDS_STILL


def test_one_word_costs_honest_voters_their_seats():
    scope = LiarScope(attempts=1, lists=("ABC1",), commits=1, accuses=True)
    found = both_ways(looser.one_word_is_enough, scope, states=2000)
    assert found.violation == "an honest voter loses its seat"


def test_quorums_of_friends_make_two_values_final():
    found = both_ways(looser.friends_quorum, LiarScope(attempts=1), states=500)
    assert found.violation == TWO_SEALS


LOCKED = (
    "A proposes {A, B, C} in attempt 0",
    "B hears LIST {A, B, C} of attempt 0",
    "A has {A, B, C} certified in 0",
    "B has {A, B, C} certified in 0",
    "A enters attempt 1",
    "B enters attempt 1",
    "A hears LIST {A, B, C} of attempt 1",
    "B hears LIST {A, B, C} of attempt 1",
    "A enters attempt 2",
    "B enters attempt 2",
    "B proposes {A, B} in attempt 2",
)
"""A and B have SEALed one LIST, and L certified it again; B, as if it knew nothing, another."""


@pytest.mark.extended
def test_certificate_that_frees_for_any_list_makes_two_values_final():
    scope = LiarScope(attempts=3, liar=1, rules=False)
    found = both_ways(looser.any_certificate_unlocks, scope, LOCKED, states=3000)
    assert found.violation == TWO_SEALS


@pytest.mark.slow
def test_seal_of_an_attempt_that_was_left_makes_two_values_final():
    before = (
        "A proposes {A, B, C} in attempt 0",
        "B hears LIST {A, B, C} of attempt 0",
        *(f"{name} enters attempt 1" for name in "ABC"),
        "B hears LIST {A, B} of attempt 1",
        "C hears LIST {A, B} of attempt 1",
    )
    scope = LiarScope(attempts=2, liar=1, rules=False)
    assert both_ways(looser.late_seal, scope, before, states=1000).violation == TWO_SEALS


def test_closer_that_is_silent_stops_a_round_that_waits_for_it():
    found = both_ways(looser.attempts_have_no_end, LiarScope(attempts=1, every=1), states=10)
    assert found.violation.startswith("L1")


def test_parts_that_are_withheld_stop_a_round_that_lists_whoever_committed():
    scope = LiarScope(attempts=1, lists=("ABC", "ABC1"), commits=1, every=1)
    before = ("A hears COMMIT 1 of L", "B hears COMMIT 1 of L")
    found = both_ways(looser.whoever_committed_is_listed, scope, before, states=100)
    assert found.violation.startswith("L1")


# What the search itself has found -----------------------------------------------------------------


@pytest.mark.extended
def test_attempt_that_each_times_alone_is_never_one_of_all():
    """Who left the closer unheard is an attempt ahead of those who wait for its LIST, for ever.

    Where members that are late are given up (`Patience`), this scope does not show it: there they
    are not, both ways.
    """
    scope = LiarScope(attempts=1, restarts=1, every=1)
    with looser.late_members_are_not_given_up():
        found = both_ways(looser.attempts_are_timed_alone, scope, states=200)
    assert found.violation == STANDS_STILL
    shipped = explore(Later(Lying(scope), ()), Bound(states=found.states))
    assert not shipped.violation, shipped.trace


@pytest.mark.extended
def test_list_for_which_all_is_there_takes_a_while_nevertheless():
    found = both_ways(looser.lists_are_late_at_once, LiarScope(attempts=1, every=1), states=10)
    assert found.violation == STANDS_STILL


CONTRADICTED = (
    "A proposes {A, B} in attempt 0",
    "B hears LIST {A, B} of attempt 0",
    "B has {A, B} certified in 0 and its result",
    "A enters attempt 1",
    "C enters attempt 1",
    "A hears LIST {A, B, C} of attempt 1",
    "C hears LIST {A, B, C} of attempt 1",
    "A has {A, B, C} certified in 1 and its result",
)
"""B is locked on a LIST; A on another, certified later with a VOTE of L."""


@pytest.mark.quick(1)
@pytest.mark.parametrize("loosened", [looser.second_counts_for_nothing, looser.third_is_dropped])
def test_vote_that_contradicts_others_is_part_of_a_certificate(loosened):
    """L told B two other things before: then B could never be shown what frees it from its lock."""
    scope = LiarScope(attempts=3, liar=1, others=2, every=1)
    found = both_ways(loosened, scope, CONTRADICTED, states=100)
    assert found.violation == STANDS_STILL
    assert len(found.trace) == 1


@pytest.mark.slow
def test_parts_of_a_second_commit_are_pulled_where_it_is_listed():
    """One voter alone holds the part of a COMMIT that others heard second, and is locked on it."""
    scope = LiarScope(attempts=2, liar=1, lists=("ABC1", "ABC2"), commits=3, every=7)
    found = both_ways(looser.first_commits_alone_are_pulled, scope, states=2000)
    assert found.violation == STANDS_STILL
