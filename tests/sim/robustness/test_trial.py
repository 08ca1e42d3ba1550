"""The trial of attacks: it sees harm where there are liars and no defence."""

import json
import math
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from node.commands.app import app
from node.processes.children import child_environment
from protocol.errors import ConfigError
from sim import commands
from sim.attacks import ATTACKS, Attack, Context
from sim.robustness.commands import Asked, trial_json, trial_table
from sim.robustness.crew import KeptCourses, line_of_take, play_all
from sim.robustness.game import (
    Draw,
    Learner,
    LyingStage,
    learner_of,
    manifest_of,
    play,
    rule_named,
    undefended,
)
from sim.robustness.trial import (
    CALM,
    CASES,
    DEFAULT,
    LIMITS,
    Row,
    Take,
    limit_of,
    rows_of,
    takes_of,
)
from training.aggregation import AGGREGATORS

assert commands.sim_app is not None, "importing it registers the command"

STAGE = LyingStage(peers=8, liars=2, rounds=9, attacked_from=2)


def rows(
    stage: LyingStage, seeds: Sequence[int], cases: Sequence[str], *, bare: bool = True
) -> list[Row]:
    takes = takes_of(stage, seeds, cases, with_bare=bare)
    return rows_of(stage, seeds, cases, {take: take.play() for take in takes})


def test_course_is_the_same_for_a_seed_and_another_for_the_next(seed: int) -> None:
    rule = rule_named("default")
    first, again, other = (play(STAGE, ATTACKS["alie"](), rule, seed + n) for n in (0, 0, 1))
    assert first == again
    assert first.losses != other.losses
    assert first.losses[-1] < first.losses[0]


def test_no_loss_changes_before_the_liars_begin(seed: int) -> None:
    rule = rule_named("default")
    honest, attacked = (play(STAGE, attack(), rule, seed) for attack in (Attack, ATTACKS["scale"]))
    assert honest.losses[:2] == attacked.losses[:2]
    assert honest.losses[2:] != attacked.losses[2:]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["scale", "nan", "searched_ipm"])
def test_bare_mean_is_ruined_where_the_default_rule_goes_on(name: str, seed: int) -> None:
    assert play(STAGE, ATTACKS[name](), undefended, seed).loss_last == math.inf
    defended = play(STAGE, ATTACKS[name](), rule_named("default"), seed)
    assert defended.losses[-1] < defended.losses[1]


def test_trial_has_a_verdict_for_each_attack_and_for_none(seed: int) -> None:
    calm, zero, scale = rows(STAGE, [seed], ("zero", "scale"))
    assert [row.attack for row in (calm, zero, scale)] == [CALM, "zero", "scale"]
    assert calm.is_kept
    assert calm.bare_percent is not None
    assert abs(calm.bare_percent) < 1.0
    assert scale.bare_percent == math.inf
    assert scale.as_json()["bare_percent"] is None
    assert scale.is_kept
    assert scale.limit == 2.5 * LIMITS["scale"][0]


def test_rule_is_that_of_nodes_who_are_not_told_how_many_lie(seed: int) -> None:
    stage = LyingStage(peers=8, liars=3, rounds=5, attacked_from=2)
    rule = AGGREGATORS["default"](cell_elements=manifest_of("text").cell_elements)
    take = Take(stage, "scale", DEFAULT, seed)
    assert take.play() == play(stage, ATTACKS["scale"](), lambda rows_PN: rule(rows_PN).value, seed)


def test_limits_name_attacks_that_there_are_and_grow_for_small_groups() -> None:
    assert set(LIMITS) - {CALM} <= set(CASES)
    assert [limit_of("zero", peers, peers // 4) for peers in (4, 8, 16)] == [12.0, 7.5, 3.0]
    assert [limit_of("label_flip", peers, peers // 4) for peers in (4, 8, 16)] == [3.0, 3.0, 3.0]
    assert limit_of("label_flip", 8, 3) == 2.5 * 25.0


@pytest.mark.extended
@pytest.mark.parametrize("peers", [4, 8, 16])
def test_rule_without_its_filter_breaks_a_limit_in_every_size(peers: int, seed: int) -> None:
    stage = LyingStage(peers=peers, liars=peers // 4)
    clean = play(replace(stage, liars=0), Attack(), rule_named("mean"), seed)
    limit, is_kept = limit_of("label_flip", peers, stage.liars), []
    for rule in ("default", "norm_clip"):
        found = play(stage, CASES["label_flip"](), rule_named(rule), seed)
        is_kept.append(Row("label_flip", (clean,), (found,), (), limit).is_kept)
    assert is_kept == [True, False]


@pytest.mark.extended
def test_attack_that_does_no_harm_undefended_is_told_and_not_judged(seed: int) -> None:
    found = rows(STAGE, [seed], ("zero", "scale"))
    assert [row.verdict for row in found] == ["kept", "told", "kept"]
    assert [row.is_harmless for row in found] == [False, True, False]
    assert trial_json(found, STAGE, [seed])["telling"] == ["scale"]
    assert str(trial_table(found, STAGE).caption).startswith("1 of 2 attacks tell")
    calm, zero, scale = rows(STAGE, [seed], ("zero", "scale"), bare=False)
    assert (zero.verdict, zero.is_harmless) == ("kept", False)
    assert "was not played" in str(trial_table([calm, zero, scale], STAGE).caption)
    assert replace(zero, limit=-99.0, bare=found[1].bare).verdict == "BROKEN"


def test_limits_are_those_of_the_share_of_liars_and_of_the_data() -> None:
    assert [limit_of("scale -10", 16, liars) for liars in (4, 5, 7)] == [5.0, 15.0, 15.0]
    assert limit_of("zero", 16, 7) is None
    assert [limit_of("alie", 16, liars, 0.3) for liars in (4, 7)] == [12.0, None]


def test_cases_are_what_changes_vectors_or_data_and_leave_out_what_bends_the_protocol() -> None:
    assert {"label_flip", "backdoor", "mimic", "alie z_max"} <= set(CASES)
    assert not {"equivocation", "replay", "lying_reducer", "closed_work"} & set(CASES)
    honest_HN = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)
    for name, make in CASES.items():
        context = Context(
            round=0,
            luck=np.random.default_rng(1),
            rule=undefended,
            slices=(slice(0, 40),),
            history=[honest_HN[3:5]],
        )
        sent_BN = make().send(honest_HN, honest_HN[:2], context)
        is_told = type(make()).poison is Attack.poison
        assert is_told == (not np.array_equal(sent_BN, honest_HN[:2])) or name == "backdoor", name


@pytest.mark.extended
def test_peers_of_skewed_data_are_farther_apart(seed: int) -> None:
    model = learner_of("text", manifest_of("text"), seed)
    even, skewed = (_spread(model, skew) for skew in (None, 0.3))
    assert skewed > 2.0 * even
    course, again = (
        play(replace(STAGE, skew=skew), Attack(), undefended, seed) for skew in (0.3, 0.3)
    )
    assert course == again
    assert course.losses != play(STAGE, Attack(), undefended, seed).losses


def _spread(model: Learner, skew: float | None) -> float:
    """Of the peers' work about its mean, as a share of the length of the mean."""
    shares = np.random.default_rng(0).dirichlet([skew or 1.0] * model.kinds, size=8)
    draws = [Draw(random.Random(peer), None if skew is None else shares[peer]) for peer in range(8)]
    rows_PN = model.learn(model.first_N, draws)
    mean_N = rows_PN.mean(axis=0)
    return float(np.linalg.norm(rows_PN - mean_N) / np.linalg.norm(mean_N))


def test_row_without_a_limit_is_told_and_not_judged(seed: int) -> None:
    _, zero = rows(
        LyingStage(peers=8, liars=3, rounds=4, attacked_from=2), [seed], ("zero",), bare=False
    )
    assert (zero.limit, zero.verdict, zero.bare_percent) == (None, "told", None)
    assert zero.is_kept


@pytest.mark.extended
def test_what_was_played_is_not_played_again_unless_the_sources_differ(tmp_path: Path) -> None:
    stage = LyingStage(peers=5, liars=1, rounds=3, attacked_from=1)
    takes = takes_of(stage, [0], ("scale",), with_bare=True)
    path = tmp_path / "courses.jsonl"
    kept = KeptCourses(path, "of now")
    play_all(takes, 2, kept.add)
    assert kept.courses == {take: take.play() for take in takes}
    assert any(math.inf in course.losses for course in kept.courses.values())
    with path.open("a") as file:
        file.write('\n{"sources": "of now", "take"')  # Power was cut.
    again = KeptCourses(path, "of now")
    assert again.courses == kept.courses
    again.add(replace(takes[0], seed=1), again.courses[takes[0]])
    assert len(KeptCourses(path, "of now").courses) == len(takes) + 1
    assert KeptCourses(path, "of other sources").courses == {}


def test_run_that_kills_its_process_is_an_error_and_leaves_no_process() -> None:
    bad = replace(takes_of(STAGE, [0], ("scale",))[1], case="no such attack")
    with pytest.raises(ConfigError, match="no such attack, seed 0: its process ended with 1"):
        play_all([bad], 1, lambda take, course: None)


def test_trial_says_how_many_lies_its_rule_counts_on(seed: int) -> None:
    stage = LyingStage(peers=8, liars=3, rounds=3, attacked_from=1)
    found = rows(stage, [seed], (), bare=False)
    assert trial_json(found, stage, [seed])["f"] == 2
    assert trial_table(found, stage).title == "3 liars of 8, rule with f = 2, 3 rounds"


@pytest.mark.parametrize("liars", [0, 4])
def test_trial_without_liars_or_with_half_is_refused(liars: int) -> None:
    with pytest.raises(ConfigError, match="liars"):
        takes_of(LyingStage(peers=8, liars=liars, rounds=9), [0], ())


@pytest.mark.slow
def test_default_rule_keeps_every_promise_at_a_quarter_of_liars(tmp_path: Path) -> None:
    words = ["sim", "sweep", "robustness", "--seeds", "1", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["broken"] == []
    assert set(found["attacks"]) == {CALM, *CASES}
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
    stage = LyingStage(peers=8, liars=2, rounds=5, attacked_from=2, model="gpt")
    rule = rule_named("default")
    calm = play(replace(stage, liars=0), Attack(), rule, 0)
    assert calm == play(replace(stage, liars=0), Attack(), rule, 0)
    assert calm.losses[0] > calm.losses[-1] > 0.0
    defended = play(stage, ATTACKS["scale"](), rule, 0)
    assert defended.loss_last < calm.losses[0]
    assert play(stage, ATTACKS["scale"](), undefended, 0).loss_last > 2.0 * calm.losses[0]
    honest = play(replace(stage, liars=0), Attack(), undefended, 0)
    bent = play(stage, ATTACKS["label_flip"](), undefended, 0)
    assert bent.losses[:2] == honest.losses[:2]
    assert bent.loss_last > honest.loss_last


@pytest.mark.slow
def test_gpt_that_learns_beside_others_learns_as_by_itself() -> None:
    model = learner_of("gpt", manifest_of("gpt"), 0)
    draws = [Draw(random.Random(peer)) for peer in range(3)]
    alone = model.learn(model.first_N, [Draw(random.Random(1))])[0]
    together = model.learn(model.first_N, draws)
    np.testing.assert_allclose(together[1], alone, rtol=0, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-3
    shares = np.eye(model.kinds)
    of_one_kind = [Draw(random.Random(peer), shares[3]) for peer in range(2)]
    of_others = [Draw(random.Random(peer), shares[5]) for peer in range(2)]
    rows = model.learn(model.first_N, [*of_one_kind, *of_others])
    near, far = np.linalg.norm(rows[0] - rows[1]), np.linalg.norm(rows[0] - rows[2])
    assert far > near


def test_so_few_rounds_that_nobody_lies_are_refused() -> None:
    for rounds in (0, 4):
        with pytest.raises(ConfigError, match=f"--rounds {rounds}: liars begin in round 4"):
            Asked(seeds="1", rounds=rounds).stage()
    assert Asked(seeds="1").stage() == LyingStage()


@pytest.mark.slow
def test_player_ends_at_a_ctrl_c_without_a_word() -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sim.robustness.crew"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line_of_take(takes_of(STAGE, [0], ())[0]) + "\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
