"""Shrinking: the same promise broken by less, and a file that shows it again."""

import pytest

from node.holdings.journal import FileJournal
from protocol.errors import ConfigError
from sim.trials.playing import replay, shrink
from sim.trials.scenario_file import read_scenario
from sim.trials.shrink import Shrinker, recorded
from sim.trials.trial import run_trial
from tests.sim.trials.scenarios import scenario

WILD = """
peers = 6
rounds = 8
[[faults]]
kind = "nap"
times = 4
[[faults]]
kind = "bounce"
times = 2
phases = ["COMMIT sent", "VOTE sent"]
who = ["any"]
[[faults]]
kind = "cut"
times = 2
"""


@pytest.fixture
def forgetful(monkeypatch):
    """A broken build: signatures are not durable before they leave (R12)."""
    monkeypatch.setattr(FileJournal, "record", lambda self, messages: None)


def failing_seed():
    return next(seed for seed in range(20) if run_trial(scenario(WILD), seed).violation)


def test_failure_is_found_shrunk_and_replayed_with_its_trace(forgetful, tmp_path, capsys):
    seed = failing_seed()
    path = tmp_path / "small.toml"
    assert shrink(scenario(WILD), seed, out=path, tries_max=60) == 0
    small = read_scenario(str(path))
    assert small.timetable is not None
    assert len(small.timetable) == 1
    assert small.timetable[0].kind == "bounce"
    assert small.peers[0] < 6
    assert small.cells == 1
    assert small.recorded is not None
    assert small.recorded.violation == "I1"
    assert f"barnraise sim replay {path}" in capsys.readouterr().out.replace("\n", "")
    again = run_trial(small, small.recorded.seed).violation
    assert again is not None
    assert again.name == "I1"
    assert replay(small, None, tracer=None) == 1
    shown = capsys.readouterr().out
    assert "the same trace as before" in shown
    assert "I1" in shown
    assert "adopted" in shown


@pytest.mark.extended
def test_replay_says_when_the_trace_is_another_one(forgetful, tmp_path, capsys, monkeypatch):
    seed = failing_seed()
    path = tmp_path / "small.toml"
    shrink(scenario(WILD), seed, out=path, tries_max=10)
    monkeypatch.undo()  # The fault is mended, so what was recorded does not come again.
    assert replay(read_scenario(str(path)), None, tracer=None) == 1
    assert "not the same" in capsys.readouterr().out


def test_scenario_that_keeps_its_promises_is_not_shrunk(tmp_path):
    assert shrink(scenario(), 1, out=tmp_path / "none.toml", tries_max=9) == 1
    assert not (tmp_path / "none.toml").exists()


def test_replay_of_a_scenario_runs_it_twice_and_needs_a_seed(capsys):
    assert replay(scenario(), 1, tracer=None) == 0
    assert "two runs gave the same trace" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="name one with --seed"):
        replay(scenario(), None, tracer=None)


def outcome_if(fails, found, seed):
    """An outcome of a made-up run, broken where `fails` says so."""
    whole = run_trial(scenario("rounds = 1"), 0)
    name = fails(found)
    broken = None if name is None else {"name": name, "text": "", "at_s": 0.0, "event": 0}
    return type(whole).of({**whole.as_json(), "violation": broken, "seed": seed})


def shrunk(fails, text=WILD):
    tried = []

    def run(found, seed):
        tried.append(found)
        return outcome_if(fails, found, seed)

    shrinker = Shrinker(scenario(text), 3, run=run, told=lambda _: None)
    return shrinker.shrink(), tried


@pytest.mark.extended
def test_two_faults_that_are_needed_together_both_stay():
    def fails(found):
        kinds = [fault.kind for fault in found.timetable]
        return "I3" if {"nap", "bounce"} <= set(kinds) else None

    best = shrunk(fails)[0].scenario
    assert sorted(fault.kind for fault in best.timetable) == ["bounce", "nap"]
    assert (best.peers, best.rounds, best.cells) != ((6, 6), 8, 2)


@pytest.mark.extended
def test_another_promise_that_breaks_is_another_failure():
    def fails(found):
        return "I3" if len(found.timetable) > 2 else "I1"

    assert len(shrunk(fails)[0].scenario.timetable) == 3


def test_size_goes_down_to_what_is_needed():
    def fails(found):
        return "I3" if found.peers[0] >= 3 and found.rounds >= 5 else None

    best = shrunk(fails)[0].scenario
    assert (best.peers, best.rounds, best.cells, best.timetable) == ((3, 3), 5, 1, ())


@pytest.mark.extended
def test_search_ends_when_its_tries_are_spent():
    _, tried = shrunk(lambda found: "I3" if len(found.timetable) == 8 else None)
    assert len(tried) < 100
    spent = Shrinker(
        scenario(WILD),
        3,
        run=lambda found, seed: outcome_if(lambda _: "I3", found, seed),
        told=lambda _: None,
        tries_max=4,
    ).shrink()
    assert spent.tries == 4


def test_recorded_failure_holds_what_a_replay_compares():
    outcome = run_trial(scenario(), 1)
    kept = recorded(scenario(), outcome, "v").recorded
    assert kept is not None
    assert (kept.seed, kept.trace_hash, kept.version) == (1, outcome.trace_hash, "v")


def test_run_with_liars_is_not_shrunk_to_where_half_would_lie():
    text = "trust = 'open'\nattack = 'scale:0.25'\n" + WILD
    best, tried = shrunk(lambda found: "I3", text)
    assert min(one.peers[0] for one in tried) == best.scenario.peers[0] == 3


def test_rounds_that_go_take_their_faults_along():
    best, tried = shrunk(lambda found: "I3" if found.timetable else None)
    assert best.scenario.timetable is not None
    (fault,) = best.scenario.timetable
    assert best.scenario.rounds == fault.round
    for one in tried:
        assert all(fault.round <= one.rounds for fault in one.timetable)
