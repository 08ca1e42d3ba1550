"""The trial of attacks: it sees harm where there are liars and no defence."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.commands.app import app
from protocol.errors import ConfigError
from sim import commands
from sim.attacks import ATTACKS, Attack
from sim.robustness.game import Stage, play, rule_named, undefended
from sim.robustness.trial import CALM, LIMITS, limit_of, run_trial

assert commands.sim_app is not None, "importing it registers the command"

STAGE = Stage(peers=8, liars=2, rounds=9, attacked_from=2)


def test_course_is_the_same_for_a_seed_and_another_for_the_next(seed: int) -> None:
    rule = rule_named("default", liars=2)
    first, again, other = (play(STAGE, ATTACKS["alie"](), rule, seed + n) for n in (0, 0, 1))
    assert first == again
    assert first.losses != other.losses
    assert first.losses[-1] < first.losses[0]


def test_no_loss_changes_before_the_liars_begin(seed: int) -> None:
    rule = rule_named("default", liars=2)
    honest, attacked = (play(STAGE, attack(), rule, seed) for attack in (Attack, ATTACKS["scale"]))
    assert honest.losses[:2] == attacked.losses[:2]
    assert honest.losses[2:] != attacked.losses[2:]


@pytest.mark.parametrize("name", ["scale", "nan", "searched_ipm"])
def test_bare_mean_is_ruined_where_the_default_rule_goes_on(name: str, seed: int) -> None:
    assert play(STAGE, ATTACKS[name](), undefended, seed).loss_last == math.inf
    defended = play(STAGE, ATTACKS[name](), rule_named("default", liars=2), seed)
    assert defended.losses[-1] < defended.losses[1]


def test_trial_has_a_verdict_for_each_attack_and_for_none(seed: int) -> None:
    chosen = {name: ATTACKS[name] for name in ("zero", "scale")}
    rows = run_trial(STAGE, [seed], lambda row: None, chosen)
    assert [row.attack for row in rows] == [CALM, "zero", "scale"]
    calm, _, scale = rows
    assert calm.is_kept
    assert abs(calm.bare_percent) < 1.0
    assert scale.bare_percent == math.inf
    assert scale.as_json()["bare_percent"] is None
    assert scale.is_kept
    assert scale.limit == 2.5 * LIMITS["scale"]


def test_limits_name_attacks_that_there_are_and_grow_for_small_groups() -> None:
    assert set(LIMITS) - {CALM} <= set(ATTACKS)
    assert [limit_of("zero", peers) for peers in (4, 8, 16)] == [12.0, 7.5, 3.0]


@pytest.mark.parametrize("liars", [0, 4])
def test_trial_without_liars_or_with_half_is_refused(liars: int) -> None:
    with pytest.raises(ConfigError, match="liars"):
        run_trial(Stage(peers=8, liars=liars, rounds=9), [0], lambda row: None, {})


@pytest.mark.slow
def test_default_rule_keeps_every_promise_at_a_quarter_of_liars(tmp_path: Path) -> None:
    words = ["sim", "sweep", "robustness", "--seeds", "1", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["broken"] == []
    assert set(found["attacks"]) == {CALM, *ATTACKS}
    assert found["attacks"]["scale"]["bare_percent"] is None
    assert (tmp_path / "robustness.png").stat().st_size > 10_000
    assert "searched_ipm" in (tmp_path / "robustness.txt").read_text()


def test_model_that_there_is_not_is_told_before_anything_runs() -> None:
    found = CliRunner().invoke(app, ["sim", "sweep", "robustness", "--model", "resnet"])
    assert found.exit_code != 0
    assert isinstance(found.exception, ConfigError)
    assert "there are text, gpt" in str(found.exception)


@pytest.mark.slow
def test_gpt_learns_and_its_bare_mean_is_ruined_where_the_default_rule_goes_on() -> None:
    stage = Stage(peers=8, liars=2, rounds=5, attacked_from=2, model="gpt")
    rule = rule_named("default", liars=2)
    calm = play(replace(stage, liars=0), Attack(), rule, 0)
    assert calm == play(replace(stage, liars=0), Attack(), rule, 0)
    assert calm.losses[0] > calm.losses[-1] > 0.0
    defended = play(stage, ATTACKS["scale"](), rule, 0)
    assert defended.loss_last < calm.losses[0]
    assert play(stage, ATTACKS["scale"](), undefended, 0).loss_last > 2.0 * calm.losses[0]
    bent = play(stage, ATTACKS["label_flip"](), undefended, 0)
    assert bent.losses[:2] == calm.losses[:2]
    assert bent.loss_last > calm.loss_last
