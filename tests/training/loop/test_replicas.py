"""Rounds of a whole loop: the outer step against torch, results, leases, who fails."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protocol.leases import Lease
from tests.training.replicas import INNER, OUTER, random_windows, small_manifest
from training.compression import join_cells, make_codec
from training.device.inner import accumulate_gradient, learning_rate, make_optimizer
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, Weights, run_replicas
from training.models.building import build_model
from training.models.genesis import genesis_weights

REPLICAS = 3


def run_swarm(swarm: Swarm, seed: int) -> list[Weights]:
    """Train to the end; the anchors after each round."""
    manifest, anchors = swarm.manifest, []
    steps = manifest.total_inner_steps

    def train(session: MemorySession) -> None:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        for windows_BW in random_windows(seed * REPLICAS + session.replica, steps):
            outcome = diloco.step(accumulate_gradient(model, inner, windows_BW))
            if outcome is not None and session.replica == 0:
                anchors.append(outcome.anchor_N)

    run_replicas(swarm, train)
    return anchors


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["nesterov", "heavy_ball", "sgd"])
def test_anchors_of_a_run_are_torch_sgd_over_the_means_of_what_was_sent(
    name: str, seed: int
) -> None:
    momentum = 0.0 if name == "sgd" else 0.9
    outer = replace(OUTER, optimizer=name, learning_rate=0.7, momentum=momentum)
    manifest = replace(small_manifest(outer=outer, inner=replace(INNER, inner_steps=3)), rounds=6)
    swarm = Swarm(manifest, REPLICAS)
    anchors = run_swarm(swarm, seed)

    theirs = torch.nn.Parameter(torch.from_numpy(genesis_weights(manifest)[0].copy()))
    sgd = torch.optim.SGD([theirs], lr=0.7, momentum=momentum, nesterov=name == "nesterov")
    codec, layout = make_codec(outer), manifest.layout(0)
    for index, anchor_N in enumerate(anchors):
        drifts = [
            np.concatenate(
                [
                    codec.decode(payload, layout.cell_numel(0, cell))
                    for cell, payload in enumerate(swarm.contributions[index, replica].payloads)
                ]
            )
            for replica in range(REPLICAS)
        ]
        theirs.grad = torch.from_numpy(np.mean(drifts, axis=0, dtype=np.float64)).float()
        sgd.step()
        assert np.abs(anchor_N - theirs.detach().numpy()).max() < 1e-5
    assert len(anchors) == 6
    assert np.abs(anchors[-1] - genesis_weights(manifest)[0]).max() > 0.01


def test_replicas_of_any_grades_have_one_anchor_and_each_sends_its_own_bits(seed: int) -> None:
    """The oracle above, of what was decoded: nobody is told who sent how."""
    outer = replace(OUTER, codec="graded", optimizer="sgd", learning_rate=1.0, momentum=0.0)
    manifest = replace(small_manifest(outer=outer, inner=replace(INNER, inner_steps=3)), rounds=4)
    swarm = Swarm(manifest, REPLICAS, grades=(8, 4))
    anchors = run_swarm(swarm, seed)
    codec, numels = make_codec(outer), manifest.layout(0).cell_numels[0]
    anchor_N = genesis_weights(manifest)[0]
    for index, found_N in enumerate(anchors):
        sent = [swarm.contributions[index, replica].payloads for replica in range(REPLICAS)]
        drifts = [join_cells(codec, payloads, numels) for payloads in sent]
        anchor_N = anchor_N - np.mean(drifts, axis=0, dtype=np.float64).astype(np.float32)
        # The result is of 8 bits.
        assert np.abs(found_N - anchor_N).max() < 0.02 * np.abs(np.mean(drifts, axis=0)).max()
        anchor_N = found_N
        sizes = [sum(map(len, payloads)) for payloads in sent]
        assert sizes[0] > 1.9 * sizes[1] > 3.5 * sizes[2]
    assert len(anchors) == 4


def test_no_sample_is_leased_twice_and_none_behind_the_end(seed: int) -> None:
    manifest = replace(small_manifest(inner=replace(INNER, inner_steps=2)), rounds=3)
    swarm = Swarm(manifest, REPLICAS)
    leased: list[int] = []

    def train(session: MemorySession) -> None:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        windows = iter(random_windows(seed, 6))
        while not diloco.finished:
            if diloco.local_step == 0:
                leased.extend(n for first, stop in diloco.lease for n in range(first, stop))
            diloco.step(accumulate_gradient(model, inner, next(windows)))

    run_replicas(swarm, train)
    assert sorted(leased) == list(range(3 * REPLICAS * 2 * INNER.batch))


def test_contributions_that_nobody_asks_for_are_let_go(seed: int) -> None:
    manifest = small_manifest(inner=replace(INNER, inner_steps=1))
    swarm = Swarm(manifest, REPLICAS, rounds_kept=1)
    run_swarm(swarm, seed)
    assert {index for index, _ in swarm.contributions} == {manifest.rounds - 1}
    assert swarm.payload_bytes == manifest.rounds * REPLICAS * 4 * len(swarm.anchor)


def test_failure_of_one_replica_is_the_error_of_all() -> None:
    swarm = Swarm(small_manifest(), REPLICAS)

    def train(session: MemorySession) -> None:
        if session.replica == 1:
            raise ValueError("it broke")
        swarm.barrier.wait()

    with pytest.raises(ValueError, match="it broke"):
        run_replicas(swarm, train)


class Short(Swarm):
    """Leases of as many steps as replicas are told, in place of whole ones."""

    steps = (2, 5, 10)

    def lease(self, replica: int, round_index: int) -> Lease:
        """See Swarm."""
        ((first, _),) = super().lease(replica, round_index) or ((0, 0),)
        is_over = round_index >= self.manifest.rounds
        return () if is_over else ((first, first + 4 * self.steps[replica] + 1),)


def test_paced_round_has_the_steps_of_its_lease_and_the_rate_of_the_whole_round(seed: int) -> None:
    preset = replace(OUTER, preset="a_edit")
    manifest = small_manifest(outer=preset)
    swarm = Short(manifest, REPLICAS)
    rates: dict[int, list[float]] = {replica: [] for replica in range(REPLICAS)}

    def train(session: MemorySession) -> None:
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, inner, exchange=session)
        windows = iter(random_windows(seed + session.replica, manifest.total_inner_steps))
        while not diloco.finished:
            assert diloco.steps == Short.steps[session.replica]
            diloco.step(accumulate_gradient(model, inner, next(windows)))
            rates[session.replica].append(inner.param_groups[0]["lr"])

    run_replicas(swarm, train)
    assert swarm.clock.round == manifest.rounds
    for (_, replica), sent in swarm.contributions.items():
        assert (sent.steps, sent.samples) == (Short.steps[replica], 4 * Short.steps[replica])
    whole = [learning_rate(manifest, step) for step in range(manifest.total_inner_steps)]
    assert rates[2] == whole
    assert rates[1] == whole[::2]
    assert rates[0] == whole[::5]


@pytest.mark.parametrize("equal_steps", [True, False])
def test_round_of_equal_steps_has_all_of_them_whatever_the_lease(
    seed: int, equal_steps: bool
) -> None:
    manifest = small_manifest()
    manifest = replace(manifest, inner=replace(manifest.inner, equal_steps=equal_steps))
    (session, *_) = Short(manifest, REPLICAS).sessions()
    model = build_model(manifest)
    diloco = DiLoCo(model, make_optimizer(model, manifest.inner), exchange=session)
    assert diloco.steps == (manifest.inner.inner_steps if equal_steps else 2)
