"""Two rounds in flight (R5): streaming against a reference, its transaction, its restarts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.leases import Lease, part_of_lease
from protocol.manifest import RunManifest
from tests.training.in_flight_run import MOMENTS_TO_DIE, InFlightRun
from tests.training.methods.test_method import method
from tests.training.replicas import INNER, OUTER, random_windows, small_manifest
from tests.training.solo import Killed
from training.channel.exchange import Outcome, RunClock, Turn
from training.compression import join_cells, make_codec, residual_root
from training.device.inner import accumulate_gradient, apply_gradient, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, Weights, run_replicas
from training.methods.method import Due, has_equal_steps
from training.methods.presets import PRESETS
from training.models.building import build_model, read_fragment, write_fragment
from training.models.genesis import genesis_weights, shard_spec

STEPS, ROUNDS = 4, 6
TAU = PRESETS["streaming_diloco"](100).tau


def manifest_of(
    preset: str = "streaming_diloco", *, overlap: int = 2, codec: str = "fp16", fragments: int = 2
) -> RunManifest:
    manifest = small_manifest(
        inner=replace(INNER, inner_steps=STEPS, learning_rate=0.02),
        outer=replace(OUTER, preset=preset, overlap=overlap, codec=codec),
    )
    shards = (shard_spec(manifest.model, fragments=fragments),)
    # One cell: there is nothing here that a grid would change.
    return replace(manifest, shards=shards, rounds=ROUNDS, cell_elements=1 << 16)


def trained(manifest: RunManifest, seed: int, replicas: int) -> tuple[Swarm, list[list[Weights]]]:
    """The swarm behind its last round, and the working weights of each replica."""
    steps = manifest.rounds * STEPS
    windows = random_windows(seed, steps=steps * replicas).reshape(steps, replicas, 4, 9)

    def train(session: MemorySession) -> list[Weights]:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        for step in range(steps):
            diloco.step(accumulate_gradient(model, inner, windows[step, session.replica]))
        assert diloco.finished
        fragments = range(len(manifest.shards[0].fragments))
        return [read_fragment(model, manifest.shards[0], fragment) for fragment in fragments]

    swarm = Swarm(manifest, replicas)
    return swarm, run_replicas(swarm, train)


class Unequal(Swarm):
    """Each replica has a lease of one step more than the one before."""

    def lease(self, replica: int, round_index: int) -> Lease:
        """See Swarm."""
        lease = super().lease(replica, round_index)
        return part_of_lease(lease, 0, (replica + 1) * self.manifest.inner.batch) if lease else ()


@pytest.mark.parametrize("preset", ["diloco", "streaming_diloco"])
def test_replicas_of_unequal_steps_step_to_one_anchor_and_weigh_by_tokens(
    seed: int, preset: str
) -> None:
    """Who takes one step of four hands over, and takes over what was in flight before, as whoever
    takes all of them does."""
    manifest, replicas = manifest_of(preset, codec="none"), 3
    plain = replace(manifest.outer, optimizer="sgd", learning_rate=1.0, momentum=0.0)
    manifest = replace(manifest, outer=plain, rounds=2)
    assert not has_equal_steps(manifest)
    swarm = Unequal(manifest, replicas)
    windows = random_windows(seed, 2 * STEPS * replicas).reshape(replicas, 2 * STEPS, 4, 9)

    def train(session: MemorySession) -> int:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco, taken = DiLoCo(model, inner, exchange=session), 0
        while not diloco.finished:
            loss = accumulate_gradient(model, inner, windows[session.replica, taken])
            diloco.step(loss)
            taken += 1
        return taken

    assert run_replicas(swarm, train) == [2, 4, 6]
    codec, layout, genesis = (
        make_codec(manifest.outer),
        manifest.layout(0),
        genesis_weights(manifest),
    )
    for index in range(2):
        sent = [swarm.contributions[index, replica] for replica in range(replicas)]
        assert [(one.steps, one.tokens) for one in sent] == [(1, 32), (2, 64), (3, 96)]
        drifts = [join_cells(codec, one.payloads, layout.cell_numels[index]) for one in sent]
        mean_N = (drifts[0] + 2 * drifts[1] + 3 * drifts[2]) / 6
        assert np.abs(drifts[2]).max() > 0.01
        assert np.abs(genesis[index] - mean_N - swarm.anchors[index]).max() <= 1e-6


@pytest.mark.quick(1)
@pytest.mark.parametrize("codec", ["fp16", "int4"])
def test_outcomes_that_are_here_at_once_change_no_bit(seed: int, codec: str) -> None:
    """E5: tau 0 and nothing of the drift kept is what it is with one round in flight."""
    plain, expected = trained(manifest_of("diloco", overlap=1, codec=codec), seed, 3)
    flown, found = trained(manifest_of("diloco", overlap=2, codec=codec), seed, 3)
    assert np.array_equal(plain.anchor, flown.anchor)
    assert plain.clock == flown.clock
    for ours, theirs in zip(found, expected, strict=True):
        assert all(np.array_equal(a_N, b_N) for a_N, b_N in zip(ours, theirs, strict=True))
    late, _ = trained(manifest_of(overlap=2, codec=codec), seed, 3)
    assert not np.array_equal(late.anchor, flown.anchor)


def test_streaming_equals_its_reference(seed: int) -> None:
    """Algorithm 2 of Douillard et al. 2025 for one replica, by its formulas, but that all of what
    was trained in flight stays."""
    manifest = manifest_of(codec="none", fragments=3)
    outer, shard = manifest.outer, manifest.shards[0]
    windows = random_windows(seed, steps=ROUNDS * STEPS)
    model = build_model(manifest)
    inner = make_optimizer(model, manifest.inner)
    theta = [read_fragment(model, shard, p).astype(np.float64) for p in range(3)]
    velocity = [np.zeros(len(theta_N)) for theta_N in theta]
    sent: dict[int, Weights] = {}
    for step in range(ROUNDS * STEPS):
        accumulate_gradient(model, inner, windows[step])
        apply_gradient(model, inner, manifest, step)
        index, done = divmod(step, STEPS)
        if index and done + 1 == TAU:
            p = (index - 1) % 3
            local = read_fragment(model, shard, p)
            merged = theta[p] + local - sent[p]
            write_fragment(model, shard, p, merged.astype(np.float32))
        if done + 1 == STEPS:
            p = index % 3
            sent[p] = read_fragment(model, shard, p)
            delta = theta[p] - sent[p]
            velocity[p] = outer.momentum * velocity[p] + delta
            step_N = delta + outer.momentum * velocity[p]
            theta[p] = theta[p] - outer.learning_rate * step_N
    swarm, _ = trained(manifest, seed, 1)
    for p in range(3):
        assert np.abs(theta[p] - swarm.anchors[p]).max() <= 2e-6


def test_outcome_is_awaited_by_tau_at_the_earliest_and_the_next_hand_over_at_the_latest() -> None:
    schedule = method("in_flight", inner_steps=4, fragments=3, overlap=2, tau=2)
    dues = [schedule.due(step, 5) for step in (1, 2, 3, 4)]
    assert dues == [Due(), Due(take=(1,)), Due(take=(1,)), Due(begin=(2,))]
    at_once = method("in_flight", inner_steps=1, fragments=3, overlap=2)
    assert at_once.due(1, 5) == Due(begin=(2,), take=(2,))


def test_what_was_trained_in_flight_is_carried_over_whole() -> None:
    local_N, anchor_N, sent_N = np.array([[1.5, -2.0], [7.0, 7.5], [1.0, 1.0]], dtype=np.float32)
    streaming = method("streaming", inner_steps=4, fragments=3, overlap=2, tau=2)
    outcome = Outcome(
        anchor_N=anchor_N, listed=True, lease=(), clock=RunClock(round=6, step=0, tokens=0)
    )
    assert streaming.take_in(5, outcome, lambda: local_N, sent_N).tolist() == [7.5, 4.5]
    assert streaming.take_in(5, replace(outcome, listed=False), lambda: local_N, sent_N) is anchor_N
    unknown_N = streaming.take_in(5, outcome, lambda: local_N, None)
    assert unknown_N is anchor_N, "what was sent is not known any more"


@pytest.mark.parametrize(("late", "after"), [(0, TAU), (2, TAU + 2), (100, STEPS)])
def test_outcome_is_taken_over_when_it_is_here(
    tmp_path: Path, seed: int, late: int, after: int
) -> None:
    run = InFlightRun(manifest_of(), tmp_path, seed, late=late)
    run.train()
    assert [run.taken_after[index] for index in range(ROUNDS - 1)] == [after] * (ROUNDS - 1)
    assert run.taken_after[ROUNDS - 1] == 0, "nothing to train meanwhile"


@pytest.mark.parametrize("late", [0, 100])
def test_residuals_are_chained_by_fragment_whatever_is_sealed_without_us(
    tmp_path: Path, seed: int, late: int
) -> None:
    run = InFlightRun(manifest_of(), tmp_path, seed, late=late, unlisted=frozenset({2, 3}))
    run.train()
    for index in range(2, ROUNDS):
        before, now = run.sent[index - 2][0], run.sent[index][0]
        is_sealed = index - 2 in run.listed
        kept = before.residual_after if is_sealed else before.residual_before
        assert now.residual_before == kept
        assert now.residual_after != kept


@pytest.mark.parametrize("late", [0, 100])
def test_resync_voids_what_is_in_flight_behind_it(tmp_path: Path, seed: int, late: int) -> None:
    """Rounds 3 and 4 are in flight where it is late, and 4 is sealed with us all the same."""
    run = InFlightRun(manifest_of(), tmp_path, seed, late=late, resyncs=frozenset({3}))
    run.train()
    empty = run.sent[0][0].residual_before
    assert run.sent[5][0].residual_before == empty
    assert (run.sent[4][0].residual_before == empty) == (late == 0)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("moment", "late", "listed"),
    [(moment, late, True) for moment in MOMENTS_TO_DIE for late in (0, 100)]
    + [("turned", 100, False)],
)
def test_a_restart_with_rounds_in_flight_changes_no_bit(
    tmp_path: Path, seed: int, moment: str, late: int, listed: bool
) -> None:
    unlisted = frozenset() if listed else frozenset({2, 3})
    # Without a blend: of that a restart keeps the anchor alone, where it knows the outcome.
    manifest = manifest_of("diloco")
    whole = InFlightRun(manifest, tmp_path / "never", seed, late, unlisted)
    expected = whole.train()
    run = InFlightRun(manifest, tmp_path / "killed", seed, late, unlisted, deaths={3: moment})
    found = run.train()
    assert run.starts == 2
    for index in range(ROUNDS):
        # What was handed over is handed over again, byte for byte.
        assert set(run.sent[index]) == set(whole.sent[index])
    assert found == expected


@pytest.mark.parametrize("late", [0, 100])
def test_restart_with_drift_in_flight_keeps_payloads_and_residuals(
    tmp_path: Path, seed: int, late: int
) -> None:
    run = InFlightRun(manifest_of(), tmp_path, seed, late, deaths={3: "turned", 4: "announced"})
    run.train()
    assert run.starts == 3
    assert all(len(set(sent)) == 1 for sent in run.sent.values())
    for index in range(2, ROUNDS):
        assert run.sent[index][0].residual_before == run.sent[index - 2][0].residual_after


class HurriedRun(InFlightRun):
    """What the trainer contributed before it died is sealed while it hands the first of it over."""

    def proceed(self) -> Turn:
        last = max(self.sent)
        if self.starts == 1 or self.next_round > last:
            return super().proceed()
        skipped = [index % len(self.anchors) for index in range(self.next_round, last + 1)]
        while self.sealed < last:
            self.seal()
        self.next_round = last + 1
        return Turn(
            clock=self.clock(self.next_round),
            lease=self.lease(self.next_round),
            others={fragment: self.anchors[fragment] for fragment in skipped},
            listed=tuple(sorted(self.listed)),
        )


@pytest.mark.parametrize("is_listed", [True, False])
def test_round_that_is_over_before_it_is_handed_over_again_leaves_its_residual(
    tmp_path: Path, seed: int, is_listed: bool
) -> None:
    unlisted = frozenset() if is_listed else frozenset({3})
    run = HurriedRun(manifest_of(), tmp_path, seed, 100, unlisted, deaths={3: "announced"})
    run.train()
    assert run.starts == 2
    assert [len(run.sent[index]) for index in (2, 3)] == [2, 1]
    before, now = run.sent[3][0], run.sent[5][0]
    kept = before.residual_after if is_listed else before.residual_before
    assert now.residual_before == kept
    assert run.sent[4][0].residual_before == run.sent[2][0].residual_after


def test_resync_forgets_what_was_under_way_before_the_restart(tmp_path: Path, seed: int) -> None:
    """Round 3 is sealed with us, and its residual belongs to weights long gone all the same."""
    resyncs = frozenset({2})
    run = HurriedRun(manifest_of(), tmp_path, seed, 100, resyncs=resyncs, deaths={3: "announced"})
    run.train()
    assert run.starts == 2
    assert [len(run.sent[index]) for index in (2, 3)] == [2, 1]
    empty = residual_root(None)
    assert [run.sent[index][0].residual_before for index in (4, 5)] == [empty, empty]


def test_left_contribution_to_another_version_is_not_sent_again(tmp_path: Path, seed: int) -> None:
    run = InFlightRun(manifest_of(), tmp_path, seed, late=100, deaths={3: "announced"})
    with pytest.raises(Killed):
        run.live()
    run.anchors[1] = run.anchors[1] + np.float32(0.25)
    run.live()
    first, again = run.sent[3]
    assert first.payloads != again.payloads
    assert again.residual_before == residual_root(None)
