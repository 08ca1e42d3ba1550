"""One trial: its outcome is a function of scenario and seed, and each expectation can fail."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from node.holdings import journal
from node.holdings.journal import FileJournal
from node.reporting.tracing import Adopted, Record
from sim.trials.scenario import settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import LAST_RECORDS, Outcome, play, run_trial
from tests.sim.trials.scenarios import scenario, with_faults

KEYS = {
    *("rounds_sealed", "honest_digests_equal", "loss_last", "banned", "false_bans", "virtual_s"),
    *("wall_s", "trace_hash"),
}
BOUNCE = 'kind = "bounce", round = 6, victims = ["n01"], duration_s = 2.0'


def test_outcome_has_the_documented_keys_and_survives_its_json():
    outcome = run_trial(with_faults(BOUNCE), 1)
    plain = outcome.as_json()
    assert plain.keys() >= KEYS
    assert Outcome.of(json.loads(json.dumps(plain))) == outcome
    assert (outcome.rounds_sealed, outcome.rounds_carried) == (12, 0)
    assert outcome.honest_digests_equal
    assert outcome.recoveries


def test_same_seed_gives_the_same_trace_and_another_seed_another():
    one, same, other = (run_trial(scenario(), seed) for seed in (1, 1, 2))
    assert replace(one, wall_s=0.0) == replace(same, wall_s=0.0)
    assert one.trace_hash != other.trace_hash


@pytest.mark.extended
def test_what_a_seed_drew_plays_as_the_seed_itself():
    drawn = scenario('peers = [3, 6]\nrounds = 8\n[[faults]]\nkind = "bounce"\ntimes = [2, 4]')
    for seed in (1, 2):
        one, other = run_trial(drawn, seed), run_trial(settled(drawn, seed), seed)
        assert replace(one, wall_s=0.0) == replace(other, wall_s=0.0)


@pytest.mark.extended
def test_hash_seed_of_the_interpreter_changes_nothing():
    program = (
        "from tests.sim.trials.scenarios import scenario\n"
        "from sim.trials.trial import run_trial\n"
        "print(run_trial(scenario('rare = 0.2\\nencoding = 1.0'), 5).trace_hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


def test_tracer_hears_every_record_and_the_last_are_kept():
    heard: list[Record] = []
    played = play(scenario(), 1, tracer=heard.append)
    assert [record for _, record in played.last_records] == heard[-LAST_RECORDS:]
    assert sum(isinstance(record, Adopted) for record in heard) == 12


# Expectations ------------------------------------------------------------------------------------


def violation(found, seed=1):
    broken = run_trial(found, seed).violation
    return broken.name if broken is not None else None


CRASH_MOST = 'kind = "crash", round = 6, victims = ["n01", "n02", "n03"]'
CALM = 'kind = "nap", round = 6, victims = ["n01"], duration_s = 0.1'


def test_run_that_does_not_come_to_its_end_is_a_violation():
    # The last one goes on alone, provisionally, and that would be an end: it stands still too.
    asleep = 'kind = "nap", round = 6, victims = ["n00"], duration_s = 8e4'
    stops = with_faults(CRASH_MOST, asleep, rest="[limits]\nstall_s = 20.0")
    broken = run_trial(stops, 1).violation
    assert broken is not None
    assert broken.name == "finishes"
    assert "no quorum of its voters lives" in broken.text


@pytest.mark.extended
def test_run_may_stop_without_a_quorum_and_only_then():
    rest = "[expect]\nmay_stop = true\n[limits]\nstall_s = 20.0"
    assert violation(with_faults(CRASH_MOST, rest=rest)) is None
    # All links of a majority are cut for good, and a quorum lives.
    parted = 'kind = "cut", round = 6, victims = ["n00", "n01", "n02", "n03"]'
    assert violation(with_faults(parted, rest=rest)) is not None


@pytest.mark.extended
def test_standstill_is_expected_and_checked():
    rest = "[expect]\nfinishes = false\nseals_after_max = 1\n[limits]\nvirtual_s = 60.0"
    assert violation(with_faults(CRASH_MOST, rest=rest)) is None
    assert violation(with_faults(CALM, rest=rest)) == "seals_after_max"
    # A standstill for which no fault accounts proves nothing.
    never = 'kind = "crash", round = 12, after_s = 900.0, victims = ["n01"]'
    assert violation(with_faults(never, rest=rest)) == "finishes"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("expect", "allowed", "forbidden"),
    [
        ("recovery_s", 30.0, 0.001),
        ("back_rounds", 2, 9),
        ("pace_max", 2.0, 0.5),
    ],
)
def test_expectation_holds_where_it_may_and_fails_where_it_must(expect, allowed, forbidden):
    for limit, name in ((allowed, None), (forbidden, expect)):
        rest = f"[expect]\n{expect} = {limit}"
        assert violation(with_faults(BOUNCE, rounds=14, rest=rest)) == name


@pytest.mark.extended
def test_rounds_that_list_nobody_are_counted_and_may_be_too_many(monkeypatch):
    rest = "[expect]\nsealed_share = {}"
    # The rare branch in which a closer lets its round carry.
    text = "rare = 0.3\nrounds = 10\n" + rest
    seed = next(s for s in range(40) if run_trial(scenario(text.format(0.0)), s).rounds_carried)
    assert violation(scenario(text.format(0.0)), seed) is None
    assert violation(scenario(text.format(1.0)), seed) == "sealed_share"


def test_world_without_an_end_is_given_up():
    assert violation(scenario("[limits]\nevents = 100")) == "limits"


def test_error_in_the_code_is_a_violation_that_names_its_line(monkeypatch):
    def wrong(self, messages):
        raise KeyError("nothing")

    monkeypatch.setattr(FileJournal, "record", wrong)
    broken = run_trial(scenario(), 1).violation
    assert broken is not None
    assert broken.name == "error"
    assert "KeyError at test_trial.py:" in broken.text


@pytest.mark.extended
def test_code_that_forgets_its_signatures_is_found_out(monkeypatch):
    monkeypatch.setattr(FileJournal, "record", lambda self, messages: None)
    fault = 'kind = "bounce", round = 6, phase = "COMMIT sent", victims = ["any"], duration_s = 0.5'
    # The chain shows that some are missing: the node is silent until it has asked.
    assert violation(with_faults(fault)) is None
    monkeypatch.setattr(journal, "is_signed_unlogged", lambda *_: False)
    assert violation(with_faults(fault)) == "I1"


@pytest.mark.extended
@pytest.mark.parametrize("seed", [47, 125])
def test_node_that_wants_a_state_that_nobody_kept_is_told_so_and_comes_back_soon(seed):
    # A branch of many rounds became final at once; the joiner learnt of the chain in between.
    outcome = run_trial(read_scenario("partition-three"), seed)
    assert outcome.violation is None, outcome.violation


@pytest.mark.extended
def test_what_was_committed_on_a_branch_that_comes_back_is_not_what_the_trainer_holds():
    # It fell back, began anew, and had the rounds of its branch again as final ones: the residual
    # of what it had made meanwhile, and nobody was sent, passed for that of the listed one (I5).
    outcome = run_trial(read_scenario("partition-three"), 41)
    assert outcome.violation is None, outcome.violation


@pytest.mark.extended
def test_commit_in_the_round_that_a_branch_begins_with_does_not_go_on_from_the_branch():
    # Its closer woke behind four rounds of the branch: a node that had trained for that round, and
    # had told nobody, committed to it then. Its residual is not that of the branch (I5).
    outcome = run_trial(read_scenario("freeze"), 1)
    assert outcome.violation is None, outcome.violation
