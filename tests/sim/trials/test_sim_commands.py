"""`barnraise sim`, as one types it."""

import json
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from node.commands.app import app
from node.processes.children import child_environment
from node.reporting.tracing import Adopted, parse_trace_line
from protocol.errors import ConfigError
from sim import commands
from sim.trials.playing import overridden_scenario
from sim.trials.scenario_file import shipped_scenarios

TINY = 'title = "tiny"\nshows = "x"\npeers = 3\nrounds = 3\ncells = 1\n'
FAILS = TINY + "[limits]\nvirtual_s = 0.5\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "fails.toml").write_text(FAILS)
    return tmp_path


def barnraise(*arguments, status=0):
    result = CliRunner().invoke(app, ["sim", *arguments], catch_exceptions=True)
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


def last_json(result):
    return json.loads(result.stdout.strip().splitlines()[-1])


def test_commands_are_registered():
    assert commands.sim_app.info.help
    for name in ("run", "sweep", "replay", "shrink", "list", "explore"):
        assert name in barnraise("--help").output


def test_run_tells_what_happened_and_what_was_kept(files):
    shown = barnraise("run", "tiny.toml", "--seed", "4").output
    assert "round 3 sealed, 3 listed" in shown
    assert "I3 no fork" in shown
    assert "3 rounds sealed, 0 carried" in shown


@pytest.mark.extended
def test_run_with_liars_tells_what_they_met_and_how_many_were_banned(files):
    nine = ("run", "open-calm", "--seed", "1", "--peers", "9", "--rounds", "6")
    assert "banned" not in barnraise(*nine).output
    liars = (*nine, "--audits", "0.5", "--attack", "scale:0.25")
    shown = " ".join(barnraise(*liars).output.split())
    assert "scale against default: 2 lie, 2 banned, 0 honest ones accused; " in shown
    assert "honest ones lost 0 votes and 0 seats; loss 1." in shown
    # What ruins it once is no longer made good by a ban.
    longer = (*liars, "--rounds", "8", "--aggregator", "mean")
    shown = " ".join(barnraise(*longer).output.split())
    assert "scale against mean: 2 lie, 2 banned, 0 honest ones accused; " in shown
    assert "honest ones lost 0 votes and 0 seats; loss inf" in shown


@pytest.mark.parametrize("attack", ["scale:0.25", "none"])
def test_runs_with_and_without_liars_have_one_rule(attack):
    asked = {"peers": None, "rounds": None, "attack": attack}
    assert overridden_scenario("open-calm", **asked).aggregator == "default"
    assert overridden_scenario("open-calm", **asked, aggregator="krum").aggregator == "krum"
    assert overridden_scenario("open-calm", peers=9, rounds=None).aggregator == "mean"


def test_run_refuses_a_rule_that_there_is_not(files):
    with pytest.raises(ConfigError, match=r"--aggregator: 'best' is none; there are .*, default, "):
        barnraise("run", "open-calm", "--aggregator", "best")


def test_run_with_json_ends_with_one_object(files):
    result = barnraise("run", "tiny.toml", "--seed", "4", "--peers", "4", "--rounds", "2", "--json")
    found = last_json(result)
    assert (found["peers"], found["rounds_sealed"], found["seed"]) == (4, 2, 4)
    assert found["loss_last"] is None
    assert "round 2 sealed" in result.stderr


def test_broken_promise_is_exit_status_one(files):
    assert "BROKEN" in barnraise("run", "fails.toml", status=1).output


def test_trace_holds_every_record(files):
    barnraise("run", "tiny.toml", "--trace", "trace.jsonl", "--no-timeline")
    records = [parse_trace_line(line) for line in (files / "trace.jsonl").read_text().splitlines()]
    assert sum(isinstance(record, Adopted) for record in records) == 9
    with pytest.raises(ConfigError, match="--trace: cannot write"):
        barnraise("run", "tiny.toml", "--trace", "no/such/folder")


def test_run_says_how_many_of_its_faults_came(files):
    late = "{kind = 'nap', round = 3, phase = 'NEWATTEMPT sent', victims = ['any']}"
    (files / "late.toml").write_text(TINY + f"timetable = [{late}]\n")
    assert "0 of 1 faults came" in barnraise("run", "late.toml").output


def test_attacks_are_refused_among_friends(files):
    with pytest.raises(ConfigError, match="--attack: tiny is a run of friends"):
        barnraise("run", "tiny.toml", "--attack", "sign_flip:0.2")


def test_list_names_all_and_what_is_to_come():
    plain = last_json(barnraise("list", "--json"))
    assert [one["name"] for one in plain["scenarios"]] == [s.name for s in shipped_scenarios()]
    assert {"name", "why"} == plain["not_yet"][0].keys()
    shown = barnraise("list").output
    assert "kill-each-phase" in shown
    assert "not yet: " in shown


@pytest.mark.extended
def test_sweep_writes_failures_that_replay(files):
    result = barnraise(
        *("sweep", "tiny.toml", "fails.toml", "--seeds", "0..1", "--jobs", "2"),
        *("--out", "swept", "--json"),
        status=1,
    )
    found = last_json(result)
    assert found["scenarios"]["tiny"]["rounds_sealed"] == 6
    assert found["scenarios"]["tiny"]["peer_rounds"] == 18
    assert found["scenarios"]["tiny"]["false_bans"] == 0
    assert "rounds of peers; honest ones accused or banned: 0" in result.stderr
    assert found["scenarios"]["fails"]["violations"] == 2
    commands_told = [failure["replay"] for failure in found["failures"]]
    assert commands_told == [f"barnraise sim replay fails.toml --seed {seed}" for seed in (0, 1)]
    assert commands_told[0] in result.stderr
    assert (files / "swept" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "tiny" in (files / "swept" / "sweep.txt").read_text()
    again = barnraise("replay", "swept/failures/fails-1.toml", status=1)
    assert "the same trace as before" in again.output


def test_sweep_of_two_files_with_one_name_is_refused(files):
    (files / "other").mkdir()
    (files / "other" / "tiny.toml").write_text(TINY)
    with pytest.raises(ConfigError, match="two scenarios are called tiny"):
        barnraise("sweep", "tiny.toml", "other/tiny.toml", "--seeds", "0")


def test_shrink_writes_the_smaller_scenario(files):
    barnraise("shrink", "fails.toml", "--seed", "1", "--tries", "8")
    assert "peers = [1, 1]" in (files / "fails-1-small.toml").read_text()


@pytest.mark.slow
def test_ctrl_c_ends_a_real_sweep_with_what_there_is(files):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "node.cli", "sim", "sweep", "tiny.toml"),
            *("--seeds", "0..999999", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=15)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert not found["is_whole"]
    assert found["scenarios"]["tiny"]["seeds"] > 0
    assert "Traceback" not in err
