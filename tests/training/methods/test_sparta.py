"""SPARTA: against a reference, who is not listed, a restart's own weights, what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from node.settings.check import check_run_file, costs_of
from protocol.errors import ConfigError
from protocol.manifest import RunManifest, Setting
from tests.node.test_check import file
from tests.training.quadratics import DIMENSIONS, Quadratics, quadratic_manifest
from tests.training.replicas import INNER, OUTER, small_manifest
from tests.training.solo import MOMENTS_TO_DIE, Solo
from training.compression import (
    common_lots,
    join_cells,
    make_codec,
    make_feedback,
    result_codec,
)
from training.compression.seeded import RandomMaskCodec
from training.loop.replicas import Swarm
from training.methods.sparta import Sparta
from training.methods.stages import make_method

REPLICAS, ROUNDS, STEPS, RATE = 3, 40, 5, 0.05
ABSENT = frozenset({(2, 1), (3, 1), (5, 0), (5, 2), (7, 0), (7, 1), (7, 2)})


def sparta(manifest: RunManifest, density: float = 0.25) -> RunManifest:
    outer = replace(
        manifest.outer,
        preset="sparta",
        codec="random_mask",
        codec_settings=(Setting("density", density),),
        optimizer="sgd",
        learning_rate=1.0,
        momentum=0.0,
        feedback=0.0,
    )
    return replace(manifest, outer=outer)


def own_of(manifest: RunManifest) -> Sparta:
    method = make_method(manifest.outer, manifest.inner, 1)
    assert isinstance(method, Sparta)
    method.begin_run(nn.Module(), manifest, Swarm(manifest, 1).sessions()[0].start, 0)
    return method


def reference(quadratics: Quadratics, manifest: RunManifest, absent: frozenset[tuple[int, int]]):
    """Sparse parameter averaging, in float64; the mask is the run's."""
    own = own_of(manifest)
    x_RD, anchor_D = np.ones((REPLICAS, DIMENSIONS)), np.ones(DIMENSIONS)
    yes_N, no_N = np.ones(DIMENSIONS, np.float32), np.zeros(DIMENSIONS, np.float32)
    for index in range(ROUNDS):
        for r in range(REPLICAS):
            for _ in range(STEPS):
                x_RD[r] -= RATE * quadratics.gradient(r, x_RD[r])
        drawn_D = own.weights_behind(index, 0, no_N, yes_N) == 1
        listed = [r for r in range(REPLICAS) if (index, r) not in absent]
        if listed:
            anchor_D[drawn_D] = x_RD[listed].mean(axis=0)[drawn_D]
        x_RD[:, drawn_D] = anchor_D[drawn_D]
    return anchor_D


@pytest.mark.parametrize("absent", [frozenset(), ABSENT - {(7, 0), (7, 1), (7, 2)}])
def test_sparta_equals_its_reference(seed: int, absent: frozenset[tuple[int, int]]) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    manifest = sparta(quadratic_manifest("sparta", rounds=ROUNDS, inner_steps=STEPS, rate=RATE))
    found = quadratics.train(manifest, absent)
    expected = reference(quadratics, manifest, absent)
    # A drift travels in half precision, and what that rounds is in the next one again.
    assert np.abs(found.anchor - expected).max() <= 5e-3
    averaged = quadratic_manifest("local_sgd", rounds=ROUNDS, inner_steps=STEPS, rate=RATE)
    without = quadratics.train(averaged, absent)
    assert np.abs(without.anchor - expected).max() >= 1e-2, "the reference tells them apart"


def test_all_draw_the_same_in_a_round_and_others_in_the_next(seed: int) -> None:
    manifest = sparta(small_manifest(inner=INNER, outer=OUTER), 0.05)
    codec, generator = make_codec(manifest.outer), np.random.default_rng(seed)
    assert isinstance(codec, RandomMaskCodec)
    vectors = generator.normal(size=(2, 4000)).astype(np.float32)
    lots = [common_lots(round_index, cell) for round_index in range(60) for cell in (0, 1)]
    drawn = [codec.drawn(one, 4000) for one in lots]
    for one_N in vectors:
        payload = codec.encode_drawn(one_N, lots[7])
        assert np.array_equal(codec.decode(payload, 4000) != 0, drawn[7])
        assert len(payload) == codec.payload_bytes(4000)
    assert all(one.sum() == 200 for one in drawn)
    assert len({one.tobytes() for one in drawn}) == len(drawn), "another mask each time"
    assert np.any(drawn, axis=0).mean() > 0.99, "each element has its turn"


def test_what_a_replica_sends_of_each_cell_is_what_it_then_takes(seed: int) -> None:
    """Or a weight that all averaged stays its own, and one that nobody sent is lost."""
    manifest = sparta(small_manifest(inner=INNER, outer=OUTER))
    (numels,) = manifest.layout(0).cell_numels
    assert len(numels) > 1
    own, numel = own_of(manifest), sum(numels)
    drift_N = np.random.default_rng(seed).normal(size=numel).astype(np.float32)
    payloads = make_feedback(manifest).encode(drift_N, lots=own.lots(4)).payloads
    sent_N = join_cells(make_codec(manifest.outer), payloads, numels)
    yes_N, no_N = np.ones(numel, np.float32), np.zeros(numel, np.float32)
    drawn_N = own.weights_behind(4, 0, no_N, yes_N) == 1
    assert np.array_equal(sent_N != 0, drawn_N)
    width = numels[1]
    assert not np.array_equal(drawn_N[:width], drawn_N[numels[0] :][:width]), "cells draw apart"


def test_lots_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert common_lots(3, 1).hex() == "c94a0c02a1bc4d0f"
    drawn_N = RandomMaskCodec(density=0.05).drawn(common_lots(3, 1), 100)
    assert np.flatnonzero(drawn_N).tolist() == [7, 31, 40, 63, 92]


def test_a_founder_s_manifest_with_another_codec_is_an_error_of_ours() -> None:
    """Nobody's `check` saw it."""
    manifest = sparta(small_manifest(inner=INNER, outer=OUTER))
    with pytest.raises(ConfigError, match="and 'fp16' none"):
        own_of(replace(manifest, outer=replace(manifest.outer, codec="fp16", codec_settings=())))


def test_what_nobody_drew_has_no_result(seed: int) -> None:
    """An 8-bit lattice would move it by a step of its block."""
    manifest = sparta(small_manifest(inner=INNER, outer=OUTER), 0.05)
    codec, results = make_codec(manifest.outer), result_codec(manifest.outer)
    x_N = np.random.default_rng(seed).normal(size=4000).astype(np.float32)
    sum_N = codec.decode(codec.encode(x_N), 4000)
    assert np.array_equal(results.decode(results.encode(sum_N), 4000), sum_N)


@pytest.mark.quick(3)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_a_restart_keeps_a_replicas_own_weights_to_the_bit(
    tmp_path: Path, seed: int, moment: str, listed: bool
) -> None:
    inner = replace(INNER, inner_steps=2, learning_rate=0.02)
    manifest = sparta(replace(small_manifest(inner=inner, outer=OUTER), rounds=5))
    unlisted = frozenset() if listed and moment != "forgotten" else frozenset({2})
    expected = Solo(manifest, tmp_path / "never", seed, unlisted).train()
    solo = Solo(manifest, tmp_path / "killed", seed, unlisted, deaths={2: moment})
    assert solo.train() == expected
    assert solo.starts == 2
    assert expected.weights != expected.anchor, "they are its own"
    assert expected.residuals == (None,) * len(expected.residuals)


def test_a_resync_begins_with_the_anchor(tmp_path: Path, seed: int) -> None:
    """What is kept from before it belongs to weights long gone."""
    inner = replace(INNER, inner_steps=2, learning_rate=0.02)
    manifest = sparta(replace(small_manifest(inner=inner, outer=OUTER), rounds=5))

    class Resynced(Solo):
        @property
        def start(self):
            found = super().start
            return replace(found, since=found.clock.round) if self.starts > 1 else found

    resynced, kept = (
        kind(manifest, tmp_path / kind.__name__, seed, deaths={2: "sealed"}).train()
        for kind in (Resynced, Solo)
    )
    assert resynced.weights != kept.weights


def test_own_weights_on_the_disk_are_told_as_they_are_written(tmp_path: Path, seed: int) -> None:
    manifest = sparta(small_manifest(inner=INNER, outer=OUTER))
    averaging = replace(manifest, outer=replace(manifest.outer, preset="local_sgd"))
    told, written = [], []
    for run in (averaging, manifest):
        folder = tmp_path / run.outer.preset
        Solo(run, folder, seed).train()
        written.append(max(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
        told.append(costs_of(run, 2).disk_bytes)
    # Of each state that is kept, and of one in the making.
    assert (told[1] - told[0]) / 4 == pytest.approx(written[1] - written[0], abs=2048)


def test_a_run_file_of_it_is_gathered_and_has_one_anchor(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, "[outer]\npreset = 'sparta'\n"), 4)
    outer = found.manifest.outer
    assert (outer.codec, outer.feedback, outer.topology) == ("random_mask", 0.0, "gather")
    assert found.costs.payload_bytes < found.costs.parameters * 0.11


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("codec = 'fp16'", "set it to 'random_mask'"),
        ("feedback = 1.0", "would count twice; set it to 0"),
        ("optimizer = 'nesterov'\nmomentum = 0.5", "moves what nobody sent"),
        ("fragments = 2", "the chosen elements of 'sparta' are of a whole round"),
        ("overlap = 2", "the chosen elements of 'sparta' are of a whole round"),
        (
            "codec = 'random_mask'\nfeedback = 0.0\n[outer.then]\npreset = 'local_sgd'\n"
            "from_round = 5\n[inner]\ninner_steps = 5",
            "have weights of their own",
        ),
    ],
)
def test_what_would_move_an_own_weight_is_refused(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check_run_file(file(tmp_path, f"[outer]\npreset = 'sparta'\n{text}\n"), 4)
