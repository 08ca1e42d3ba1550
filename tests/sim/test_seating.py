"""Rosters worked out once more (I2): what the rule keeps for want of others is no fault of it."""

import pytest

from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial


@pytest.mark.quick(1)
@pytest.mark.parametrize(("scenario", "world_seed"), [("overlap", 16), ("open-mixed", 32)])
def test_voters_that_are_kept_though_their_list_takes_their_seats_are_no_fault(
    scenario: str, world_seed: int
) -> None:
    """A founder that was the only voter was killed: a run without a voter keeps the old ones."""
    assert run_trial(read_scenario(scenario), world_seed).violation is None


@pytest.mark.extended
@pytest.mark.parametrize("world_seed", [2, 3])
def test_seat_that_is_given_up_in_turn_is_no_fault(world_seed: int) -> None:
    """A voter that left keeps its place until others vote, so more ask than there is room for (2),
    and who asks gets none (3)."""
    assert run_trial(read_scenario("taking-turns"), world_seed).violation is None
