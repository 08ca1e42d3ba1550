"""Two COMMITs in one slot: what they do where nobody is banned for it, and what bans do."""

from dataclasses import replace

import pytest

from protocol.errors import ConfigError
from sim.trials.scenario import Scenario, overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, run_trial
from tests.sim.trials.scenarios import scenario

ROUNDS = 6


def attacked(**changes) -> Scenario:
    """Nine voters, of whom two lie."""
    calm = overridden(read_scenario("open-calm"), peers=9, rounds=ROUNDS, attack="equivocation:0.3")
    return replace(calm, cells=2, **changes)


def seconds_a_round(outcome: Outcome) -> float:
    return outcome.virtual_s / max(1, outcome.rounds_sealed)


@pytest.mark.extended
def test_equivocation_ruins_a_run_that_bans_nobody(seed):
    calm = run_trial(attacked(attack=""), seed)
    found = run_trial(attacked(without=("bans",)), seed)
    assert found.banned == 0
    assert seconds_a_round(found) > 1.4 * seconds_a_round(calm)


def test_equivocation_is_banned_with_evidence_and_costs_the_run_nothing(seed):
    calm, found = (run_trial(attacked(**c), seed) for c in ({"attack": ""}, {}))
    assert found.violation is None
    assert found.honest_digests_equal
    assert (found.rounds_sealed, found.banned, found.false_bans) == (ROUNDS, 2, 0)
    assert sorted(found.evidence) == ["n07", "n08"]
    assert seconds_a_round(found) < 1.3 * seconds_a_round(calm)


def test_attacks_are_for_open_runs_and_by_their_names():
    with pytest.raises(ConfigError, match="friends, who trust each other"):
        overridden(scenario(), attack="equivocation:0.25")
    with pytest.raises(ConfigError, match="none that nodes can carry out"):
        run_trial(replace(attacked(), attack="nonsense:0.25"), 0)
