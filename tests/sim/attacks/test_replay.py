"""Old messages of others said again: each has a slot of one round, and is nothing in any other."""

from dataclasses import replace

import pytest

from sim.checks import bounds
from sim.trials.scenario import Scenario, overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, run_trial

ROUNDS = 4


@pytest.fixture(autouse=True)
def look_behind_every_event(monkeypatch):
    """What is kept is seen at once, and not only if it is still there at the next look: without the
    defence an honest peer's VOTEs of two rounds meet in one slot soon, and then all ends."""
    monkeypatch.setattr(bounds, "EVERY", 1)


def attacked(**changes) -> Scenario:
    """Nine voters, of whom two say everything again."""
    calm = overridden(read_scenario("open-calm"), peers=9, rounds=ROUNDS, attack="replay:0.25")
    return replace(calm, cells=2, **changes)


def seconds_a_round(outcome: Outcome) -> float:
    return outcome.virtual_s / max(1, outcome.rounds_sealed)


def test_replay_breaks_a_run_in_which_slots_are_of_no_round(seed):
    found = run_trial(attacked(without=("slots",)), seed)
    assert found.violation is not None
    # What was said of another round is kept in this one, and honest peers are held to it.
    assert found.violation.name in ("I6", "I7")


def test_replay_changes_nothing_and_has_nobody_accused(seed):
    calm, found = (run_trial(attacked(**c), seed) for c in ({"attack": ""}, {}))
    assert found.violation is None
    assert (found.rounds_sealed, found.banned, found.false_bans) == (ROUNDS, 0, 0)
    assert seconds_a_round(found) < 1.1 * seconds_a_round(calm)
