"""What one says of its work, to all or to some, holds no round for longer than it may cost, and
costs nobody else a seat, a vote or a name; with each rule loosened the same search finds whom."""

from dataclasses import replace

import pytest

from sim.exploration.cases import PROGRESS
from sim.exploration.explorer import Bound, explore
from sim.exploration.progress import (
    COMMIT,
    FETCH,
    LONG,
    NOTHING,
    STEP,
    Beat,
    Waiting,
    WaitingPlan,
)
from tests.sim import looser_progress as looser

HELD = "L1: X holds the round for longer than it may cost"
ENDED = "L1: an attempt ends in which all do what they owe"
LEFT_OUT = "R3: X is left out for one that has no link to it"
NAMED = "R8: an honest member is named for a lapse"


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", PROGRESS)
def test_words_about_work_cost_what_a_few_may_cost_and_harm_nobody(name):
    result = explore(Waiting(replace(PROGRESS[name], beats=1, rounds=2)), Bound())
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.states > 3 * len(PROGRESS[name].acts)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRESS)
def test_words_about_work_that_change_harm_nobody(name):
    result = explore(Waiting(PROGRESS[name]), Bound(seconds=60))
    assert not result.violation, result.trace
    assert result.states > 100


def plan(*acts: Beat, **fields) -> WaitingPlan:
    return WaitingPlan(beats=1, acts=acts, rounds=2, **fields)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("loosened", "tried", "violation"),
    [
        pytest.param(
            looser.who_moves_is_waited_for_without_a_cap,
            plan(Beat(STEP), mute=True),
            HELD,
            id="no cap",
        ),
        pytest.param(
            looser.steps_behind_a_commit_count,
            plan(Beat(COMMIT), Beat(STEP), mute=True),
            HELD,
            id="steps behind a COMMIT",
        ),
        pytest.param(
            looser.what_is_fetched_ahead_counts,
            plan(Beat(COMMIT), Beat(FETCH), mute=True, ahead=True),
            HELD,
            id="what is fetched ahead counts",
        ),
        pytest.param(
            looser.clock_goes_on_from_where_it_stood,
            plan(Beat(LONG), Beat(NOTHING), attempts=1),
            ENDED,
            id="the clock goes on from where it stood",
        ),
        pytest.param(
            looser.each_waits_for_whom_it_hears,
            plan(Beat(STEP, "A"), mute=True, place=1),
            HELD,
            id="each waits alone",
        ),
        pytest.param(
            looser.haves_are_owed_whoever_is_missing,
            plan(Beat(LONG, "A"), Beat(NOTHING), mute=True, cells=1),
            NAMED,
            id="HAVEs are owed whoever is missing",
        ),
        pytest.param(
            looser.lists_are_owed_whoever_is_missing,
            plan(Beat(COMMIT), Beat(FETCH, "A"), mute=True, place=1),
            NAMED,
            id="LISTs are owed whoever is missing",
        ),
        pytest.param(
            looser.late_commits_withhold,
            plan(Beat(COMMIT), mute=True, slow=9),
            NAMED,
            id="late COMMITs withhold",
        ),
        pytest.param(
            looser.each_judges_by_its_own_deadline,
            plan(Beat(LONG, "A"), Beat(NOTHING), mute=True, cells=1),
            NAMED,
            id="each judges by its own deadline",
        ),
        pytest.param(
            looser.one_word_without_is_enough,
            plan(Beat(STEP), trust="friends", attempts=1, apart="A"),
            LEFT_OUT,
            id="one friend without a link decides for all",
        ),
        pytest.param(
            looser.who_waits_tells_nobody,
            plan(Beat(STEP), trust="friends", attempts=1, apart="A"),
            ENDED,
            id="who waits tells nobody",
        ),
    ],
)
def test_looser_rule_lets_words_about_work_cost_the_others(loosened, tried, violation):
    with loosened():
        found = explore(Waiting(tried), Bound())
    assert found.violation == violation, found
    shipped = explore(Waiting(tried), Bound(states=found.states))
    assert not shipped.violation, shipped.trace
