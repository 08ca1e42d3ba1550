"""Newcomers in a network that has just lost a third of its nodes."""

import pytest

from sim.crowds.strangers import Strangers


@pytest.mark.slow
def test_newcomers_meet_their_run_behind_the_blow(seed: int) -> None:
    outcome = Strangers(40, 0.3, 8, seed=seed).run()
    assert outcome.gone == 12
    assert outcome.met == outcome.met_within_10_s == outcome.trials == 8


@pytest.mark.slow
@pytest.mark.parametrize("world", range(4))
def test_newcomers_to_1000_nodes_of_which_300_vanished_meet_within_10_s(world: int) -> None:
    """The four worlds of `--nodes 1000 --trials 250 --worlds 4` are the 1,000 trials that are
    promised for 999; here nobody at all is late, in minutes of processor time each."""
    outcome = Strangers(1000, 0.3, 250, seed=world).run()
    assert outcome.met_within_10_s == 250, outcome
