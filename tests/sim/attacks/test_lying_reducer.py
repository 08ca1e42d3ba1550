"""Reducers that sum wrongly and tell one lie: not believed, and banned by what voters found."""

from dataclasses import replace

import pytest

from sim.trials.scenario import Scenario, overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial

ROUNDS = 4


def attacked(attack: str = "lying_reducer:0.25", **changes) -> Scenario:
    """Nine voters, of whom two lie; or with 0.15 one."""
    calm = overridden(read_scenario("open-calm"), peers=9, rounds=ROUNDS, attack=attack)
    return replace(calm, **changes)


@pytest.mark.extended
@pytest.mark.parametrize("aggregator", ["mean", "norm_clip"])
def test_one_reducer_that_is_believed_makes_the_swarm_seal_a_wrong_sum(aggregator, seed):
    # Friends sum each cell once; in some rounds the liar sums nothing.
    lied_to = attacked("lying_reducer:0.15", trust="friends", aggregator=aggregator, rounds=30)
    found = run_trial(lied_to, seed)
    assert found.violation is not None
    assert "not what the listed bytes give" in found.violation.text


@pytest.mark.extended
@pytest.mark.parametrize("aggregator", ["mean", "norm_clip"])
def test_two_words_of_anybody_make_the_swarm_seal_what_two_liars_say(aggregator, seed):
    # Slices are drawn anew in each round: two given voters of nine are soon a pair.
    lied_to = attacked(without=("bans", "words"), aggregator=aggregator, rounds=30)
    found = run_trial(lied_to, seed)
    assert found.violation is not None
    # No such bytes were listed, or not all have the same; or who sums rightly is accused for it.
    assert found.violation.name in ("I2", "I6")


@pytest.mark.extended
@pytest.mark.parametrize("aggregator", ["mean", "norm_clip"])
def test_two_liars_who_agree_are_not_believed_though_nobody_bans_them(aggregator, seed):
    found = run_trial(attacked(without=("bans",), aggregator=aggregator), seed)
    assert found.violation is None
    assert found.honest_digests_equal
    assert (found.rounds_sealed, found.banned, found.false_bans) == (ROUNDS, 0, 0)


@pytest.mark.quick(1)
@pytest.mark.parametrize("aggregator", ["mean", "norm_clip"])
def test_liars_are_banned_with_evidence_whatever_the_rule_is(aggregator, seed):
    found = run_trial(attacked(aggregator=aggregator), seed)
    assert found.violation is None
    assert found.honest_digests_equal
    assert (found.rounds_sealed, found.banned, found.false_bans) == (ROUNDS, 2, 0)
    assert sorted(found.evidence) == ["n07", "n08"]
