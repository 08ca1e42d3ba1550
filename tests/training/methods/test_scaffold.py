"""SCAFFOLD: against a reference, its transaction, a latecomer's start."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.manifest import RunManifest
from tests.training.quadratics import Quadratics, Vector, quadratic_manifest
from tests.training.replicas import INNER, OUTER, small_manifest
from tests.training.solo import MOMENTS_TO_DIE, Solo
from training.channel.exchange import Contribution, Outcome, RunClock, RunStart
from training.loop.inner_state import InnerFolder
from training.methods.method import MethodNotes, MethodSetting, Pace
from training.methods.scaffold import _ANCHOR as ANCHOR
from training.methods.scaffold import Scaffold

REPLICAS, ROUNDS, STEPS = 3, 8, 5
ABSENT = frozenset({(2, 1), (3, 1), (5, 0), (5, 2)})


def reference(quadratics: Quadratics, rate: float, absent: frozenset[tuple[int, int]]):
    """The paper's algorithm 1, option II, with all clients and some that are not heard."""
    x, c = np.ones(6), np.zeros(6)
    c_i = np.zeros((REPLICAS, 6))
    for index in range(ROUNDS):
        listed = [r for r in range(REPLICAS) if (index, r) not in absent]
        steps, shifts = [], []
        for r in listed:
            y = x.copy()
            for _ in range(STEPS):
                y -= rate * (quadratics.gradient(r, y) - c_i[r] + c)
            after = c_i[r] - c + (x - y) / (STEPS * rate)
            steps.append(y - x)
            shifts.append(after - c_i[r])
            c_i[r] = after
        x = x + np.mean(steps, axis=0)
        c = c + len(listed) / REPLICAS * np.mean(shifts, axis=0)
    return x


@pytest.mark.parametrize("absent", [frozenset(), ABSENT])
def test_scaffold_equals_its_reference(seed: int, absent: frozenset[tuple[int, int]]) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    manifest = quadratic_manifest("scaffold", rounds=ROUNDS, inner_steps=STEPS)
    found = quadratics.train(manifest, absent)
    expected = reference(quadratics, 0.05, absent)
    assert np.abs(found.anchor - expected).max() <= 2e-5
    without = quadratics.train(quadratic_manifest("fedavg", rounds=ROUNDS, inner_steps=STEPS))
    assert np.abs(without.anchor - expected).max() >= 1e-2, "the reference tells them apart"


def test_scaffold_of_equal_data_is_averaging(seed: int) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    quadratics.curvature_RD[:] = quadratics.curvature_RD[0]
    quadratics.target_RD[:] = quadratics.target_RD[0]
    found, expected = (
        quadratics.train(quadratic_manifest(preset, rounds=ROUNDS)).anchor
        for preset in ("scaffold", "fedavg")
    )
    assert np.abs(found - expected).max() <= 1e-5


def clock(index: int, manifest: RunManifest, listed: int = REPLICAS) -> RunClock:
    steps = manifest.inner.inner_steps
    return RunClock(round=index, step=index * steps, tokens=index * listed * steps * 4 * 8)


def variates_at(manifest: RunManifest, index: int, anchor_N: np.ndarray) -> Scaffold:
    start = RunStart(
        anchors=(anchor_N,), clock=clock(index, manifest), lease=((0, 1),), members=REPLICAS
    )
    pace = Pace(manifest.inner)
    setting = MethodSetting(spec=manifest.outer, inner=manifest.inner, num_fragments=1, pace=pace)
    scaffold = Scaffold(setting)
    scaffold.begin_run(Vector(), manifest, start, 0)
    return scaffold


def outcome_of(
    manifest: RunManifest, index: int, anchor_N: np.ndarray, *, listed: bool = True
) -> Outcome:
    now, lease = clock(index, manifest), ((0, 1),)
    return Outcome(anchor_N=anchor_N, clock=now, lease=lease, listed=listed, members=REPLICAS)


def anchors_of(seed: int, count: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=6).astype(np.float32) for _ in range(count)]


def test_latecomer_has_the_common_variate_of_all_after_one_round_of_all(seed: int) -> None:
    manifest, anchors = quadratic_manifest("scaffold", rounds=ROUNDS), anchors_of(seed, 4)
    old, new = variates_at(manifest, 0, anchors[0]), variates_at(manifest, 2, anchors[2])
    for index in (1, 2):
        old.record_drift(anchors[0])
        old.settle(outcome_of(manifest, index, anchors[index]))
    assert (old.common_N is None, new.common_N is None) == (False, True)
    expected_N = (anchors[2] - anchors[3]) / np.float32(10 * 0.05)
    found = []
    for variates in (old, new):
        variates.record_drift(anchors[0])
        variates.settle(outcome_of(manifest, 3, anchors[3]))
        assert variates.common_N is not None
        assert np.allclose(variates.common_N, expected_N, rtol=1e-5)
        found.append(variates.common_N.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("listed", [True, False])
def test_own_variate_is_taken_over_with_the_seal_alone(seed: int, listed: bool) -> None:
    manifest, anchors = quadratic_manifest("scaffold", rounds=ROUNDS), anchors_of(seed, 3)
    variates = variates_at(manifest, 0, anchors[0])
    variates.record_drift(anchors[2])
    assert variates.own_N is None, "not before the outcome"
    variates.settle(outcome_of(manifest, 1, anchors[1], listed=listed))
    assert (variates.own_N is not None) == listed
    assert variates.common_N is not None, "what others were listed with counts"


@pytest.mark.parametrize("words", ["7", "", "many few", "1 2 3"])
def test_variates_of_another_form_are_taken_up_by_nobody(seed: int, words: str) -> None:
    manifest, anchors = quadratic_manifest("scaffold", rounds=ROUNDS), anchors_of(seed, 1)
    variates = variates_at(manifest, 0, anchors[0])
    clock = RunClock(round=1, step=1, tokens=1)
    start = RunStart(anchors=(anchors[0],), clock=clock, lease=())
    variates.take_up(MethodNotes({"variates": words}, {ANCHOR: anchors[0]}), 0, start)
    assert variates.own_N is None
    assert variates.common_N is None


def test_missed_rounds_and_a_resync_begin_with_no_correction(seed: int) -> None:
    manifest, anchors = quadratic_manifest("scaffold", rounds=ROUNDS), anchors_of(seed, 4)
    for index, is_resync in ((2, True), (3, False)):
        variates = variates_at(manifest, 0, anchors[0])
        variates.record_drift(anchors[3])
        variates.settle(outcome_of(manifest, 1, anchors[1]))
        variates.record_drift(anchors[3])
        outcome = outcome_of(manifest, index, anchors[2])
        variates.settle(replace(outcome, is_resync=is_resync))
        assert variates.own_N is None
        assert variates.common_N is None


def test_round_of_nobody_changes_no_variate(seed: int) -> None:
    manifest, anchors = quadratic_manifest("scaffold", rounds=ROUNDS), anchors_of(seed, 2)
    variates = variates_at(manifest, 0, anchors[0])
    variates.record_drift(anchors[1])
    variates.settle(outcome_of(manifest, 1, anchors[1]))
    common_N = variates.common_N
    empty = replace(clock(2, manifest), tokens=clock(1, manifest).tokens)
    outcome = outcome_of(manifest, 2, anchors[1], listed=False)
    variates.settle(replace(outcome, clock=empty))
    assert common_N is variates.common_N
    assert common_N is not None


class WholeRounds(Solo):
    """A seal has the tokens of both peers, or of the other alone."""

    def seal(self, contribution: Contribution | None) -> None:
        before = self.clock.tokens
        super().seal(contribution)
        inner = self.manifest.inner
        each = inner.inner_steps * inner.batch * 8
        self.clock = replace(self.clock, tokens=before + each * (1 + self.was_listed))

    @property
    def start(self) -> RunStart:
        return replace(super().start, members=2)

    def result(self) -> Outcome:
        return replace(super().result(), members=2)


def solo_manifest() -> RunManifest:
    inner = replace(INNER, inner_steps=2, learning_rate=0.02)
    outer = replace(
        OUTER, preset="scaffold", codec="fp16", optimizer="sgd", learning_rate=0.35, momentum=0.0
    )
    return replace(small_manifest(inner=inner, outer=outer), rounds=4)


def kept_bits(solo: Solo) -> tuple[bytes | None, ...]:
    state = InnerFolder(solo.folder, solo.manifest).newest(solo.manifest.rounds)
    assert state is not None
    assert state.notes.words["variates"]
    vectors = state.notes.vectors
    names = (f"variates/{name}" for name in ("own_N", "own_after_N", "common_N", "anchor_N"))
    return tuple(vectors[name].tobytes() if name in vectors else None for name in names)


@pytest.mark.quick(3)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_a_restart_changes_no_bit_of_a_run_with_variates(
    tmp_path: Path, seed: int, moment: str, listed: bool
) -> None:
    unlisted = frozenset() if listed and moment != "forgotten" else frozenset({2})
    whole = WholeRounds(solo_manifest(), tmp_path / "never", seed, unlisted)
    expected = whole.train()
    solo = WholeRounds(solo_manifest(), tmp_path / "killed", seed, unlisted, deaths={2: moment})
    assert solo.train() == expected
    assert solo.starts == 2
    assert kept_bits(solo) == kept_bits(whole)
    assert None not in kept_bits(solo)
    plain = replace(solo_manifest(), outer=replace(solo_manifest().outer, preset="fedavg"))
    assert WholeRounds(plain, tmp_path / "plain", seed, unlisted).train() != expected
