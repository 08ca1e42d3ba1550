"""Newcomers in a network that has just lost a third of its nodes."""

import pytest

from sim.strangers import Strangers


@pytest.mark.slow
def test_newcomers_meet_their_run_behind_the_blow(seed: int) -> None:
    outcome = Strangers(40, 0.3, 8, seed=seed).run()
    assert outcome.gone == 12
    assert outcome.met == outcome.met_within_10_s == outcome.trials == 8
