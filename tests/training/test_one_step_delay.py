"""E6: a round of delay on one fragment (R5): one-step delay and eager against references."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.manifest import RunManifest
from tests.training.in_flight_run import MOMENTS_TO_DIE, InFlightRun
from tests.training.methods.test_method import method
from tests.training.replicas import INNER, OUTER, random_windows, small_manifest
from tests.training.solo import Killed
from training.channel.exchange import RunStart
from training.compression import make_codec, residual_root
from training.device.inner import accumulate_gradient, apply_gradient, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.methods.method import Due
from training.methods.presets import PRESETS
from training.models.building import build_model, read_fragment, write_fragment
from training.models.genesis import genesis_weights, shard_spec

STEPS, ROUNDS = 3, 6
DELAYED = tuple(name for name in sorted(PRESETS) if PRESETS[name](100).is_delayed)

Weights = NDArray[np.floating]


def manifest_of(
    preset: str = "one_step_delay", *, codec: str = "none", overlap: int = 2, momentum: float = 0.5
) -> RunManifest:
    return replace(
        small_manifest(
            inner=replace(INNER, inner_steps=STEPS, learning_rate=0.02),
            outer=replace(OUTER, preset=preset, overlap=overlap, codec=codec, momentum=momentum),
        ),
        rounds=ROUNDS,
        cell_elements=1 << 16,
    )


def windows_of(seed: int, replicas: int) -> NDArray[np.uint8]:
    steps = ROUNDS * STEPS
    return random_windows(seed, steps=steps * replicas).reshape(steps, replicas, 4, 9)


def trained(manifest: RunManifest, seed: int, replicas: int) -> tuple[Swarm, list[list[Weights]]]:
    """The swarm behind its last round, and what each replica began the rounds from the second on
    with, the weights behind the last one among them."""
    windows = windows_of(seed, replicas)

    def train(session: MemorySession) -> list[Weights]:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        begun = []
        for step in range(ROUNDS * STEPS):
            diloco.step(accumulate_gradient(model, inner, windows[step, session.replica]))
            if diloco.local_step == 0:
                begun.append(read_fragment(model, manifest.shards[0], 0))
        assert diloco.finished
        return begun

    swarm = Swarm(manifest, replicas)
    return swarm, run_replicas(swarm, train)


def drifts_of(
    manifest: RunManifest, seed: int, replicas: int
) -> Iterator[tuple[list[Weights], list[Weights]]]:
    """Per round what the replicas drifted from the weights in the list, which the caller changes in
    place before it asks for the next round."""
    windows, shard = windows_of(seed, replicas), manifest.shards[0]
    models = [build_model(manifest) for _ in range(replicas)]
    inners = [make_optimizer(model, manifest.inner) for model in models]
    begun = [read_fragment(model, shard, 0) for model in models]
    for index in range(ROUNDS):
        drifts = []
        for r, (model, inner) in enumerate(zip(models, inners, strict=True)):
            write_fragment(model, shard, 0, begun[r].astype(np.float32))
            for step in range(index * STEPS, (index + 1) * STEPS):
                accumulate_gradient(model, inner, windows[step, r])
                apply_gradient(model, inner, manifest, step)
            drifts.append(begun[r] - read_fragment(model, shard, 0))
        yield begun, drifts


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_step_delay_equals_its_reference(seed: int, momentum: float) -> None:
    """PCCL's order: the drift first, then the step of the round before, then on from there."""
    manifest, rate = manifest_of(momentum=momentum), OUTER.learning_rate
    theta = genesis_weights(manifest)[0].astype(np.float64)
    velocity, in_flight, expected = np.zeros_like(theta), None, []

    def stepped(theta, delta):
        velocity[:] = momentum * velocity + delta
        return theta - rate * (delta + momentum * velocity)

    for begun, drifts in drifts_of(manifest, seed, 2):
        if in_flight is not None:
            theta = stepped(theta, in_flight)
        in_flight = np.mean(drifts, axis=0)
        begun[:] = [theta, theta]
        expected.append(theta)
    swarm, found = trained(manifest, seed, 2)
    assert np.abs(stepped(theta, in_flight) - swarm.anchor).max() <= 2e-6
    for begun_by_one in found:
        differences = zip(begun_by_one[:-1], expected[:-1], strict=True)
        assert max(np.abs(a - b).max() for a, b in differences) <= 2e-6
    # The first outcome comes home a round late: the second round begins where the first one did.
    assert np.array_equal(found[0][0], genesis_weights(manifest)[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_eager_equals_its_reference(seed: int, momentum: float) -> None:
    """Kale et al. 2025 with weights and momentum of each replica: own fresh part, others' stale."""
    manifest, rate, replicas = manifest_of("eager", momentum=momentum), OUTER.learning_rate, 3
    theta = [genesis_weights(manifest)[0].astype(np.float64) for _ in range(replicas)]
    velocity, late = np.zeros((replicas, len(theta[0]))), np.zeros((replicas, len(theta[0])))
    expected = []
    for begun, drifts in drifts_of(manifest, seed, replicas):
        for r in range(replicas):
            delta = (drifts[r] + late.sum(axis=0) - late[r]) / replicas
            velocity[r] = momentum * velocity[r] + delta
            theta[r] = theta[r] - rate * (delta + momentum * velocity[r])
        late = np.array(drifts)
        begun[:] = theta
        expected.append(list(theta))
    _, found = trained(manifest, seed, replicas)
    for index in range(ROUNDS - 1):
        for r in range(replicas):
            assert np.abs(found[r][index] - expected[index][r]).max() <= 3e-6
        if index:
            assert not np.array_equal(found[0][index], found[1][index]), "own parts run ahead"
    assert all(np.array_equal(found[0][-1], other[-1]) for other in found), "in the end all is in"


@pytest.mark.parametrize("codec", ["none", "fp16", "int4"])
def test_eager_of_one_replica_is_diloco(seed: int, codec: str) -> None:
    plain, expected = trained(manifest_of("diloco", codec=codec, overlap=1), seed, 1)
    eager, found = trained(manifest_of("eager", codec=codec), seed, 1)
    if codec != "int4":
        assert np.array_equal(plain.anchor, eager.anchor)
        assert all(np.array_equal(a_N, b_N) for a_N, b_N in zip(*expected, *found, strict=False))
    # Below 16 bits a result is rounded once more, and only the swarm knows how.
    assert np.abs(plain.anchor - eager.anchor).max() <= (0 if codec != "int4" else 0.02)
    delayed, _ = trained(manifest_of(codec=codec), seed, 1)
    assert not np.array_equal(delayed.anchor, eager.anchor)


@pytest.mark.quick(2)
@pytest.mark.parametrize("preset", DELAYED)
def test_what_was_applied_is_what_was_sealed(seed: int, preset: str) -> None:
    """Off by one round in time, by nothing in the sum; all replicas end with equal bits."""
    manifest = manifest_of(preset, momentum=0.0)
    outer = replace(manifest.outer, optimizer="sgd", learning_rate=1.0)
    manifest = replace(manifest, outer=outer)
    swarm, found = trained(manifest, seed, 3)
    codec, numel = make_codec(outer), len(swarm.anchor)
    means = [
        np.mean(
            [codec.decode(swarm.contributions[index, r].payloads[0], numel) for r in range(3)],
            axis=0,
            dtype=np.float64,
        )
        for index in range(ROUNDS)
    ]
    applied = genesis_weights(manifest)[0].astype(np.float64) - swarm.anchor
    assert np.abs(applied - np.sum(means, axis=0)).max() <= 2e-6
    assert np.abs(means).max() >= 0.01
    assert all(np.array_equal(begun[-1], swarm.anchor) for begun in found)


def test_outcome_is_joined_before_the_next_hand_over() -> None:
    schedule = method("delayed", inner_steps=3, fragments=1, overlap=2)
    assert [schedule.due(step, 5) for step in (1, 2, 3)] == [
        Due(),
        Due(),
        Due(join=(0,), begin=(0,)),
    ]


@pytest.mark.parametrize(("overlap", "fragments"), [(1, 1), (2, 2)])
def test_flight_that_a_delay_has_no_rule_for_is_refused(overlap: int, fragments: int) -> None:
    manifest = manifest_of(overlap=overlap)
    shards = (shard_spec(manifest.model, fragments=fragments),)
    manifest = replace(manifest, shards=shards)
    with pytest.raises(ConfigError, match="one_step_delay"):
        DiLoCo(
            model := build_model(manifest),
            make_optimizer(model, manifest.inner),
            exchange=MemorySession(Swarm(manifest, 1), 0),
        )


@pytest.mark.parametrize("is_early", [False, True])
def test_residuals_are_chained_by_round_whatever_is_sealed_without_us(
    tmp_path: Path, seed: int, is_early: bool
) -> None:
    """R6: the residual of round r knows what became of round r - 1, though that was in flight."""
    manifest = manifest_of(codec="int4")
    run = InFlightRun(manifest, tmp_path, seed, unlisted=frozenset({2, 3}), is_early=is_early)
    run.train()
    assert run.listed == {0, 1, 4, 5}
    for index in range(1, ROUNDS):
        before, now = run.sent[index - 1][0], run.sent[index][0]
        is_sealed = index - 1 in run.listed
        kept = before.residual_after if is_sealed else before.residual_before
        assert now.residual_before == kept
        assert now.residual_after != kept


def test_resync_leaves_no_residual_behind_it(tmp_path: Path, seed: int) -> None:
    run = InFlightRun(manifest_of(codec="int4"), tmp_path, seed, resyncs=frozenset({3}))
    run.train()
    assert run.sent[4][0].residual_before == residual_root(None)
    assert run.sent[5][0].residual_before == run.sent[4][0].residual_after


@pytest.mark.parametrize("is_early", [False, True])
def test_drift_counts_from_the_version_that_named_the_round(
    tmp_path: Path, seed: int, is_early: bool
) -> None:
    """A seal that comes in the midst of a round changes neither its base nor its drift (R5)."""
    manifest = manifest_of()
    calm = InFlightRun(manifest, tmp_path / "calm", seed)
    expected = calm.train()
    run = InFlightRun(manifest, tmp_path / "early", seed, is_early=is_early)
    assert run.train() == expected
    assert run.sent == calm.sent


@pytest.mark.quick(4)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_a_restart_with_a_round_of_delay_changes_no_bit(
    tmp_path: Path, seed: int, moment: str, is_early: bool, listed: bool
) -> None:
    """Where the round before is sealed by then (`is_early`), the anchor that the round began from
    is no longer the newest: what it began with is kept."""
    unlisted = frozenset() if listed else frozenset({2, 3})
    manifest = manifest_of(codec="int4")
    whole = InFlightRun(manifest, tmp_path / "never", seed, unlisted=unlisted, is_early=is_early)
    expected = whole.train()
    run = InFlightRun(
        manifest,
        tmp_path / "killed",
        seed,
        unlisted=unlisted,
        is_early=is_early,
        deaths={3: moment},
    )
    found = run.train()
    assert run.starts == 2
    for index in range(ROUNDS):
        # What was handed over is handed over again, byte for byte.
        assert set(run.sent[index]) == set(whole.sent[index])
    assert found == expected


def test_state_of_a_round_that_no_seal_is_known_for_any_more_is_passed_over(
    tmp_path: Path, seed: int
) -> None:
    """The node lost the last seal: what was contributed to the round before is handed over again,
    though a later round's state lies beside it."""

    class Remembering(InFlightRun):
        def seal(self) -> None:
            before.append([anchor_N.copy() for anchor_N in self.anchors])
            super().seal()

    before: list[list[Weights]] = []
    run = Remembering(manifest_of(codec="int4"), tmp_path, seed, deaths={3: "saving"})
    with pytest.raises(Killed):
        run.live()
    assert run.sealed == 2
    run.sealed, run.anchors = 1, before[2]
    run.listed.discard(2)
    run.live()
    first, again = run.sent[2]
    assert first == again


def test_newcomer_that_dies_hands_over_the_same_bytes_though_it_never_heard_of_the_seal_before(
    tmp_path: Path, seed: int
) -> None:
    """It contributed to round 3 by the seal of round 1, and is told of that of round 2 alone."""

    class Newcomer(InFlightRun):
        @property
        def start(self) -> RunStart:
            start = super().start
            self.next_round = self.sealed + (2 if self.starts == 1 else 1)
            lease, clock = self.lease(self.next_round), self.clock(self.next_round)
            return replace(start, clock=clock, lease=lease)

    unlisted = frozenset({0, 1, 2})
    run = Newcomer(
        manifest_of(codec="int4"),
        tmp_path,
        seed,
        unlisted=unlisted,
        deaths={3: "announced"},
        is_early=True,
    )
    run.seal()
    run.seal()
    run.train()
    assert run.starts == 2
    assert sorted(run.sent) == [3, 4, 5]
    first, again = run.sent[3]
    assert first == again
    assert run.sent[4][0].residual_before == first.residual_after


@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_eager_hands_over_the_same_bytes_again(tmp_path: Path, seed: int, moment: str) -> None:
    run = InFlightRun(manifest_of("eager", codec="int4"), tmp_path, seed, deaths={3: moment})
    run.train()
    assert run.starts == 2
    assert all(len(set(sent)) == 1 for sent in run.sent.values())
    for index in range(1, ROUNDS):
        assert run.sent[index][0].residual_before == run.sent[index - 1][0].residual_after
