"""Slow lines and unequal machines: who is listed, and how much of the time is trained."""

from dataclasses import replace

import pytest

from node.trainers.choosing import Fit
from protocol.rounds.patience import Patience
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, run_trial


def slow_lines(exchange_s: int) -> Outcome:
    """The scenario on the line on which an exchange takes so long."""
    found = read_scenario("slow-lines")
    links = {10: 0, 90: 1, 350: 2, 700: 3}
    link = found.links[links[exchange_s]]
    return run_trial(replace(found, links=(link,), rounds=5), 1)


def unequal_speeds(trains_s: float, *, lag: int = 1) -> Outcome:
    """The scenario where each machine is a usual one, or takes so long for a whole round."""
    found = read_scenario("unequal-speeds")
    usual = replace(found.devices[0], train_s=(60.0, 61.0))
    slow = replace(usual, train_s=(trains_s, trains_s + 1.0))
    found = replace(found, devices=(usual, slow), rounds=9, lag=lag, fragments=2 * lag - 1)
    return run_trial(found, 2)


@pytest.mark.parametrize("exchange_s", [90, pytest.param(350, marks=pytest.mark.slow)])
def test_all_are_listed_on_slow_lines_from_the_founding_on(exchange_s):
    outcome = slow_lines(exchange_s)
    assert outcome.violation is None
    assert set(outcome.listed_share.values()) == {1.0}


def test_without_waiting_for_progress_slow_lines_lose_rounds(monkeypatch):
    monkeypatch.setattr(Patience, "wait", lambda self, view, **times: None)
    outcome = slow_lines(90)
    assert outcome.violation is not None
    assert min(outcome.listed_share.values()) < 1.0


@pytest.mark.parametrize("lag", [1, 2])
def test_all_are_listed_and_train_most_of_the_time_on_unequal_machines(lag):
    outcome = unequal_speeds(240.0, lag=lag)
    assert outcome.violation is None
    assert min(outcome.listed_share.values()) >= 0.95
    assert outcome.computing_share >= 0.85


def test_with_two_rounds_in_flight_a_usual_machine_of_uneven_rounds_does_not_fall_behind():
    """One that takes 60 to 90 s for a whole round beside one of 60 s begins no round with it."""
    found = read_scenario("unequal-speeds")
    outcome = run_trial(replace(found, lag=2, fragments=3, rounds=16), 0)
    assert outcome.violation is None
    assert min(outcome.listed_share.values()) >= 0.95


@pytest.mark.parametrize("lag", [1, 2])
def test_with_equal_steps_the_fast_wait_for_the_slow(monkeypatch, lag):
    monkeypatch.setattr(Fit, "steps", lambda self, steps_max: steps_max)
    outcome = unequal_speeds(240.0, lag=lag)
    assert outcome.violation is not None
    assert outcome.violation.name in ("computing_share", "listed_share")
