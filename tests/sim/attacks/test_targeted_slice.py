"""The whole norm in one slice, in rounds: what it costs by the mean, and by the rule of open runs,
where each cell is judged by itself."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial

PEERS, ROUNDS = 8, 8


def loss(seed: int, attack: str | None, aggregator: str) -> float:
    """Of a run whose trainers learn a text, and in which nobody is audited."""
    calm = overridden(
        read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, attack=attack, audits=0.1
    )
    with patch("protocol.auditing.audit_rounds._meets", lambda *_: False):
        found = run_trial(replace(calm, cells=2, aggregator=aggregator), seed)
    assert found.violation is None
    assert (found.rounds_sealed, found.banned) == (ROUNDS, 0)
    assert found.loss_last is not None
    return found.loss_last


@pytest.mark.slow
def test_norm_in_one_slice_costs_by_the_mean_and_a_third_of_that_where_cells_are_judged(seed):
    attack = "targeted_slice:0.25"
    cost = {rule: loss(seed, attack, rule) - loss(seed, None, rule) for rule in ("mean", "default")}
    assert cost["mean"] > 0.02
    assert cost["default"] < cost["mean"] / 3
