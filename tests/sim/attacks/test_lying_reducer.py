"""A reducer that sums wrongly: among friends it is believed, in an open run never by itself."""

from dataclasses import replace

import pytest

from sim.trials.scenario import Scenario, overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial

ROUNDS = 6


def attacked(**changes) -> Scenario:
    """Nine members, of whom one lies."""
    attack = "lying_reducer:0.15"
    calm = overridden(read_scenario("open-calm"), peers=9, rounds=ROUNDS, attack=attack)
    return replace(calm, **changes)


@pytest.mark.parametrize("aggregator", ["mean", "norm_clip"])
def test_one_reducer_that_is_believed_makes_the_swarm_seal_a_wrong_sum(aggregator, seed):
    # Friends sum each cell once: the defence of two reducers is off.
    found = run_trial(attacked(trust="friends", aggregator=aggregator), seed)
    assert found.violation is not None
    assert "not what the listed bytes give" in found.violation.text


@pytest.mark.parametrize("aggregator", ["mean", "norm_clip"])
def test_open_run_seals_the_sums_of_the_listed_bytes_whatever_one_says_of_them(aggregator, seed):
    found = run_trial(attacked(aggregator=aggregator), seed)
    assert found.violation is None
    assert found.honest_digests_equal
    assert found.rounds_sealed == ROUNDS
    assert (found.banned, found.false_bans) == (0, 0)  # Which AGG is right no signature says.
