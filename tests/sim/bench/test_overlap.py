"""`bench overlap`: its numbers from what nodes told."""

import pytest

from protocol.errors import StateError
from sim.bench.overlap import overlap_json, overlap_result
from sim.processes.events import MethodChosen


def told(
    steps: int, training_s: float, waiting_s: float, flight_s: float = 1.0, hidden_s: float = 0.0
) -> MethodChosen:
    return MethodChosen(
        steps=1,
        steps_max=1,
        last_steps=steps,
        training_s=training_s,
        waiting_s=waiting_s,
        flight_s=flight_s,
        hidden_s=hidden_s,
    )


def test_a_step_while_syncing_has_its_share_of_the_wait() -> None:
    found = overlap_result([0.08, 0.12], [told(90, 9.0, 1.0), told(10, 1.0, 1.0)])
    assert found.step_s_alone == pytest.approx(0.1)
    assert found.step_s_syncing == pytest.approx(12.0 / 100)
    assert found.ratio == pytest.approx(1.2)
    assert found.computing == pytest.approx(10.0 / 12.0)
    assert (found.rounds, found.steps_per_round, found.exchange_s) == (2, 50.0, 1.0)


def test_share_of_the_flights_that_was_stepped_is_by_seconds_and_not_by_rounds() -> None:
    found = overlap_result([0.1], [told(9, 9.0, 1.0, 8.0, 7.0), told(9, 9.0, 1.0, 2.0, 0.5)])
    assert found.hidden_fraction == pytest.approx(0.75)
    assert (found.exchange_s, found.waiting_s) == (5.0, 1.0)


def test_rounds_from_which_nothing_came_back_are_no_measurement() -> None:
    with pytest.raises(StateError, match="came back"):
        overlap_result([0.1], [told(9, 9.0, 1.0, 0.0, 0.0)])


def test_json_has_the_keys_that_are_promised() -> None:
    found = overlap_json(overlap_result([0.1], [told(10, 1.0, 0.1)]), {"peers": 3})
    assert {"step_s_alone", "step_s_syncing", "hidden_fraction", "peers"} <= set(found)
