"""DiLoCo against plain training and against data-parallel SGD; the transaction of a round."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from protocol.errors import ConfigError, StateError
from protocol.grid import EMPTY_ROOT
from protocol.manifest import RunManifest
from tests.training.replicas import INNER, OUTER, random_windows, small_manifest
from tests.training.solo import OneInFlight
from training.channel.exchange import Contribution, Outcome, RunClock
from training.compression import residual_root
from training.device.inner import accumulate_gradient, apply_gradient, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, Weights, run_replicas
from training.models.building import build_model, read_fragment
from training.models.genesis import shard_spec

FEDAVG = replace(OUTER, learning_rate=1.0, momentum=0.0)
FP16 = replace(OUTER, codec="fp16")
ONE_STEP = replace(INNER, inner_steps=1)


def weights(model: nn.Module, manifest: RunManifest) -> Weights:
    return read_fragment(model, manifest.shards[0], 0)


def test_one_replica_with_rate_one_and_no_momentum_equals_local_training(seed: int) -> None:
    """E1: 50 steps, largest difference 1e-6."""
    manifest = small_manifest(outer=FEDAVG)
    windows = random_windows(seed, steps=50)

    local = build_model(manifest)
    optimizer = make_optimizer(local, manifest.inner)
    for step, windows_BW in enumerate(windows):
        accumulate_gradient(local, optimizer, windows_BW)
        apply_gradient(local, optimizer, manifest, step)

    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    (session,) = Swarm(manifest, replicas=1).sessions()
    diloco = DiLoCo(model, inner, exchange=session)
    for windows_BW in windows:
        diloco.step(accumulate_gradient(model, inner, windows_BW))

    assert diloco.finished
    assert diloco.clock.round == 5
    assert np.abs(weights(local, manifest) - build_genesis(manifest)).max() > 0.01
    assert np.abs(weights(model, manifest) - weights(local, manifest)).max() <= 1e-6


def build_genesis(manifest: RunManifest) -> Weights:
    return weights(build_model(manifest), manifest)


def test_one_sgd_step_per_round_equals_data_parallel_sgd(seed: int) -> None:
    """E2: H = 1, plain SGD inside, four replicas; largest difference 1e-6 over 10 steps."""
    steps, replicas = 10, 4
    manifest = replace(
        small_manifest(
            outer=FEDAVG,
            # Clipping each replica's gradient is not clipping their mean: it is off here.
            inner=replace(ONE_STEP, learning_rate=0.5, clip_norm=0.0),
        ),
        rounds=steps,
    )
    windows = random_windows(seed, steps=steps * replicas).reshape(steps, replicas, 4, 9)

    parallel = build_model(manifest)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.0)
    for step in range(steps):
        # Batches are of equal size, so the mean gradient is that of all sequences together.
        accumulate_gradient(parallel, optimizer, windows[step].reshape(-1, 9))
        apply_gradient(parallel, optimizer, manifest, step)

    def train(session: MemorySession) -> Weights:
        model = build_model(manifest)
        inner = torch.optim.SGD(model.parameters(), lr=0.0)
        diloco = DiLoCo(model, inner, exchange=session)
        for step in range(steps):
            diloco.step(accumulate_gradient(model, inner, windows[step, session.replica]))
        return weights(model, manifest)

    swarm = Swarm(manifest, replicas=replicas)
    results = run_replicas(swarm, train)
    assert np.abs(results[0] - build_genesis(manifest)).max() > 0.01
    assert np.abs(results[0] - weights(parallel, manifest)).max() <= 1e-6
    assert all(np.array_equal(result, swarm.anchor) for result in results)


def streaming(rounds: int) -> RunManifest:
    """Two fragments of two and three tensors, half a model in each round."""
    manifest = small_manifest(outer=FP16, inner=replace(INNER, inner_steps=2))
    shards = (shard_spec(manifest.model, fragments=2),)
    return replace(manifest, shards=shards, rounds=rounds)


def test_fragments_are_synced_in_turn_and_end_equal_on_all_replicas(seed: int) -> None:
    """E5: each commits once in so many rounds; what was not synced last goes on drifting."""
    manifest, rounds = streaming(6), 6
    windows = random_windows(seed, steps=2 * rounds * 3).reshape(2 * rounds, 3, 4, 9)

    def train(session: MemorySession) -> tuple[list[int], list[Weights]]:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        fragments = []
        for step in range(2 * rounds):
            index = diloco.clock.round
            before = [read_fragment(model, manifest.shards[0], f) for f in range(2)]
            outcome = diloco.step(accumulate_gradient(model, inner, windows[step, session.replica]))
            assert (outcome is None) == (step % 2 == 0)
            if outcome is not None:
                fragments.append(index % 2)
                # The weights of the other fragment alone outlived the wait.
                assert diloco.going_on == (1 - index % 2,)
                assert outcome.anchor_N.shape == before[index % 2].shape
        return fragments, [read_fragment(model, manifest.shards[0], f) for f in range(2)]

    swarm = Swarm(manifest, replicas=3)
    results = run_replicas(swarm, train)
    sent = {key: one.fragment for key, one in swarm.contributions.items()}
    assert sent == {(index, replica): index % 2 for index in range(rounds) for replica in range(3)}
    for fragments, (first_N, last_N) in results:
        assert fragments == [0, 1, 0, 1, 0, 1]
        assert np.array_equal(last_N, swarm.anchors[1])
        assert not np.array_equal(first_N, swarm.anchors[0]), "two steps behind its last round"
    assert len({last_N.tobytes() for _, (_, last_N) in results}) == 1
    assert len({first_N.tobytes() for _, (first_N, _) in results}) == 3


@pytest.mark.parametrize("is_resync", [False, True])
def test_rounds_that_were_missed_drop_the_drift_of_their_fragments(
    seed: int, is_resync: bool
) -> None:
    manifest = streaming(9)
    (session,) = Swarm(manifest, replicas=1).sessions()
    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    anchors = [np.array(x_N) for x_N in session.swarm.anchors]
    clock = RunClock(round=1, step=2, tokens=64)
    lease = ((0, manifest.inner.inner_steps * manifest.inner.batch),)
    given = Outcome(listed=True, anchor_N=anchors[0], clock=clock, lease=lease)
    answer = _Answer(session, given)
    diloco = DiLoCo(model, inner, exchange=answer)
    windows = random_windows(seed, steps=4)
    for step in range(4):
        if step == 2:
            moved_N = anchors[0] + np.float32(0.25)
            later = RunClock(round=4, step=8, tokens=256)
            answer.given = replace(
                given, anchor_N=anchors[1], clock=later, others={0: moved_N}, is_resync=is_resync
            )
        diloco.step(accumulate_gradient(model, inner, windows[step]))
    found = [read_fragment(model, manifest.shards[0], fragment) for fragment in range(2)]
    assert np.array_equal(found[0], moved_N)
    assert np.array_equal(found[1], anchors[1])
    assert diloco.clock.round == 4
    # Of the round before it was told that it is sealed; only a resync takes that back.
    assert [x_N is None for x_N in diloco.residuals()] == [is_resync, is_resync]


def train_rounds(swarm: Swarm, seed: int, rounds: int) -> list[DiLoCo]:
    manifest = swarm.manifest
    steps = manifest.inner.inner_steps * rounds

    def train(session: MemorySession) -> DiLoCo:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        for windows_BW in random_windows(seed + session.replica, steps):
            diloco.step(accumulate_gradient(model, inner, windows_BW))
        assert np.array_equal(weights(model, manifest), swarm.anchor)
        return diloco

    return run_replicas(swarm, train)


def test_contribution_states_tokens_samples_steps_and_chained_residual_roots(seed: int) -> None:
    swarm = Swarm(small_manifest(outer=FP16), replicas=2)
    train_rounds(swarm, seed, rounds=2)
    first, second = swarm.contributions[0, 1], swarm.contributions[1, 1]
    assert (first.steps, first.samples, first.tokens) == (10, 40, 320)
    assert 5.0 < first.loss < 7.0
    assert first.residual_before == EMPTY_ROOT != first.residual_after
    assert second.residual_before == first.residual_after != second.residual_after
    numel = len(swarm.anchor)
    assert [len(payload) for payload in first.payloads] == [
        2 * min(4096, numel - start) for start in range(0, numel, 4096)
    ]


def test_round_sealed_without_me_leaves_my_residual_and_takes_the_anchor(seed: int) -> None:
    swarm = Swarm(small_manifest(outer=FP16), replicas=2, absent=frozenset({(1, 0)}))
    train_rounds(swarm, seed, rounds=3)
    first, missed, third = (swarm.contributions[index, 0] for index in range(3))
    assert missed.residual_after != missed.residual_before == first.residual_after
    assert third.residual_before == missed.residual_before
    listed = [swarm.contributions[index, 1] for index in range(3)]
    assert listed[2].residual_before == listed[1].residual_after


class _Answer(OneInFlight):
    """A Session and Ticket whose outcome is given."""

    def __init__(self, session: MemorySession, outcome: Outcome) -> None:
        self.manifest, self.start, self.given = session.manifest, session.start, outcome
        self.contributions: list[Contribution] = []

    def begin(self, fragment: int, contribution: Contribution) -> "_Answer":
        self.contributions.append(contribution)
        return self

    def result(self) -> Outcome:
        return self.given


def after_two_contributions(seed: int, **outcome: Any) -> tuple[DiLoCo, list[Contribution]]:
    """A loop whose first contribution was listed, and whose second came to that."""
    manifest = small_manifest(outer=FP16, inner=ONE_STEP)
    (session,) = Swarm(manifest, replicas=1).sessions()
    clock = RunClock(round=1, step=1, tokens=32)
    answer = _Answer(
        session,
        Outcome(listed=True, anchor_N=session.swarm.anchor, clock=clock, lease=((0, 1),)),
    )
    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    diloco = DiLoCo(model, inner, exchange=answer)
    windows = random_windows(seed, steps=3)
    diloco.step(accumulate_gradient(model, inner, windows[0]))
    assert diloco.residuals()[0] is not None

    moved = session.swarm.anchor + np.float32(0.25)
    answer.given = Outcome(anchor_N=moved, lease=((5, 6),), **outcome)
    diloco.step(accumulate_gradient(model, inner, windows[1]))
    assert diloco.clock == outcome["clock"]
    assert diloco.lease == ((5, 6),)
    assert np.array_equal(weights(model, manifest), moved)
    return diloco, answer.contributions


def root_of_residual(diloco: DiLoCo) -> bytes:
    (residual_N,) = diloco.residuals()
    return residual_root(residual_N, small_manifest().cell_elements)


@pytest.mark.parametrize("round_index", [2, 7])
@pytest.mark.parametrize("listed", [False, True])
def test_resync_starts_with_an_empty_residual_whatever_was_sealed(
    seed: int, round_index: int, listed: bool
) -> None:
    clock = RunClock(round=round_index, step=7, tokens=900)
    diloco, _ = after_two_contributions(seed, clock=clock, listed=listed, is_resync=True)
    assert diloco.residuals() == (None,)


@pytest.mark.parametrize("round_index", [2, 7])
@pytest.mark.parametrize("listed", [False, True])
def test_rounds_that_passed_without_a_resync_leave_the_residual_as_it_was_sealed(
    seed: int, round_index: int, listed: bool
) -> None:
    clock = RunClock(round=round_index, step=7, tokens=900)
    diloco, (_, last) = after_two_contributions(seed, clock=clock, listed=listed)
    assert last.residual_before != last.residual_after
    kept = last.residual_after if listed else last.residual_before
    assert root_of_residual(diloco) == kept


def test_steps_between_rounds_give_no_outcome_and_count_up(seed: int) -> None:
    manifest = small_manifest(inner=replace(INNER, inner_steps=3))
    (session,) = Swarm(manifest, replicas=1).sessions()
    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    diloco = DiLoCo(model, inner, exchange=session)
    seen = []
    for windows_BW in random_windows(seed, steps=4):
        outcome = diloco.step(accumulate_gradient(model, inner, windows_BW))
        seen.append((diloco.local_step, outcome is not None))
    assert seen == [(1, False), (2, False), (0, True), (1, False)]


def test_loss_may_be_a_tensor_or_a_numpy_number_and_is_sent_as_a_float(seed: int) -> None:
    manifest = small_manifest(inner=replace(INNER, inner_steps=2))
    swarm = Swarm(manifest, replicas=1)
    (session,) = swarm.sessions()
    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    diloco = DiLoCo(model, inner, exchange=session)
    windows = random_windows(seed, steps=2)
    accumulate_gradient(model, inner, windows[0])
    diloco.step(torch.tensor(1.0, requires_grad=True) * 2.0)
    accumulate_gradient(model, inner, windows[1])
    diloco.step(np.float32(4.0))
    sent = swarm.contributions[0, 0].loss
    assert (type(sent), sent) == (float, 3.0)


def test_restored_residual_gives_the_same_next_contribution(seed: int) -> None:
    manifest = small_manifest(outer=FP16, inner=replace(INNER, inner_steps=2))
    residual = np.random.default_rng(seed).normal(0, 1e-3, len(build_genesis(manifest)))
    contributions = []
    for restored in (residual.astype(np.float32), None):
        swarm = Swarm(manifest, replicas=1)
        (session,) = swarm.sessions()
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        diloco.restore_residuals((restored,))
        for windows_BW in random_windows(seed, steps=2):
            diloco.step(accumulate_gradient(model, inner, windows_BW))
        contributions.append(swarm.contributions[0, 0])
    assert contributions[0].residual_before != contributions[1].residual_before == EMPTY_ROOT
    assert contributions[0].payloads != contributions[1].payloads


def test_weights_that_are_not_finite_raise_instead_of_travelling(seed: int) -> None:
    manifest = small_manifest(inner=ONE_STEP)
    swarm = Swarm(manifest, replicas=1)
    (session,) = swarm.sessions()
    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    diloco = DiLoCo(model, inner, exchange=session)
    loss = accumulate_gradient(model, inner, random_windows(seed, steps=1)[0])
    with torch.no_grad():
        next(model.parameters())[0] = float("nan")
    with pytest.raises(StateError, match="diverged in round 0"):
        diloco.step(loss)
    assert swarm.contributions == {}


def test_unknown_preset_is_refused_by_name() -> None:
    manifest = small_manifest(outer=replace(OUTER, preset="teleport"))
    (session,) = Swarm(manifest, replicas=1).sessions()
    model = build_model(manifest)
    with pytest.raises(ConfigError, match=r"unknown preset 'teleport'; known: .*diloco, "):
        DiLoCo(model, make_optimizer(model, manifest.inner), exchange=session)
