"""A wave of fresh identities in worlds: it outweighs all others at once, or it has to earn it."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from protocol.rounds import seating as ramp
from sim.attacks.alone import lies_named
from sim.local.verdict import weights_of
from sim.trials.scenario import Scenario, overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, build_world, run_trial

PEERS, ROUNDS = 10, 10


def attacked(**changes) -> Scenario:
    """Four who vote, and six identities that come five seconds later."""
    calm = overridden(
        read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, attack="sybil_wave:0.6"
    )
    return replace(calm, cells=2, aggregator="default", **changes)


def played(scenario: Scenario, seed: int) -> tuple[Outcome, float]:
    """What came of it, and the wave's mean share in the factors of the rounds that list it."""
    records: list[Any] = []
    outcome = run_trial(scenario, seed, tracer=records.append)
    world = build_world(settled(scenario, seed), seed)
    weights, wave = weights_of(world.manifest, records), world.settings.liars.keys()
    assert wave & set(weights), "nobody of the wave was listed"
    return outcome, sum(weight for peer, weight in weights.items() if peer in wave)


@pytest.mark.extended
def test_wave_outweighs_whoever_was_there_where_there_is_no_ramp(seed):
    outcome, share = played(attacked(without=("ramp",)), seed)
    assert outcome.violation is None
    assert share > 0.5


@pytest.mark.extended
def test_wave_weighs_nothing_in_its_probation_and_costs_the_run_nothing(seed):
    outcome, share = played(attacked(), seed)
    assert outcome.violation is None
    assert outcome.honest_digests_equal
    assert (outcome.rounds_sealed, outcome.false_bans) == (ROUNDS, 0)
    assert share == 0.0


def test_wave_may_be_more_than_a_half_of_all():
    assert lies_named("sybil_wave:0.75", 8).count == 6


def _counts_at_once(seat, law):
    return max(1, law.ramp)


def _earned_twice(seats, listed, round_index, law):
    return ramp.earned(ramp.earned(seats, listed, round_index, law), listed, round_index, law)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("broken", "substitute", "told"),
    [
        ("protocol.rounds.seating.parts", _counts_at_once, "not what the listed bytes give"),
        ("protocol.rounds.roster.earned", _earned_twice, "towards its weight"),
    ],
)
def test_build_in_which_newcomers_count_too_soon_is_found(broken, substitute, told, seed):
    # All nodes are broken alike, so they agree: only who works it out again can tell.
    with patch(broken, substitute):
        violation = run_trial(attacked(), seed).violation
    assert violation is not None
    assert violation.name == "I2"
    assert told in violation.text
