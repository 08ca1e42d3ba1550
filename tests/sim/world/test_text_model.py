"""The small real model: its gradient is exact, and a swarm learns with it."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from node.holdings.states import round_config
from sim.world.trainer import LEARNING_RATE, NUM_SYMBOLS, TextModel
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

A, B, C = peers_named(3)


def model(*, cells: int = 1, steps: int = 20, seed: int = 1) -> tuple[TextModel, np.ndarray]:
    manifest = toy_manifest(A, cells=cells)
    manifest = replace(manifest, inner=replace(manifest.inner, inner_steps=steps))
    return TextModel(manifest, seed), np.zeros(cells * 1024 - 100, dtype=np.float32)


def test_one_step_goes_against_the_gradient_as_differences_measure_it():
    text, anchor_N = model(steps=1)
    anchor_N[:] = np.random.default_rng(3).normal(0.0, 0.5, len(anchor_N))
    lease = ((40, 56),)
    drift_N = text(anchor_N, lease, random.Random(0)).drift_N
    gradient_N = drift_N / LEARNING_RATE
    used = NUM_SYMBOLS**3
    assert not drift_N[used:].any()
    touched = np.flatnonzero(gradient_N)
    assert len(touched) >= NUM_SYMBOLS

    def loss(x_N) -> float:
        found = text(x_N, lease, random.Random(0)).loss
        assert found is not None
        return found

    for index in touched[:24]:
        step = np.float32(1e-2)
        up_N, down_N = anchor_N.copy(), anchor_N.copy()
        up_N[index] += step
        down_N[index] -= step
        measured = (loss(up_N) - loss(down_N)) / float(up_N[index] - down_N[index])
        assert gradient_N[index] == pytest.approx(measured, abs=2e-4)


def test_untrained_model_knows_nothing_and_none_beats_the_entropy():
    text, anchor_N = model()
    assert text.loss(anchor_N) == pytest.approx(math.log(NUM_SYMBOLS))
    lease = ((0, 1 << 15),)
    trained_N = anchor_N - model(steps=1 << 11)[0](anchor_N, lease, random.Random(0)).drift_N
    assert text.entropy < text.loss(trained_N) < text.entropy + 0.3


def test_small_fragment_takes_a_smaller_model_and_a_tiny_one_is_refused():
    small, _ = model(cells=1)
    assert small.context_B.max() == NUM_SYMBOLS**2 - 1
    tensor = toy_manifest(A).shards[0].tensors[0]
    for numel, is_enough in ((NUM_SYMBOLS**2, True), (NUM_SYMBOLS**2 - 1, False)):
        manifest = toy_manifest(A)
        shard = replace(manifest.shards[0], tensors=(replace(tensor, shape=(numel,)),))
        manifest = replace(manifest, shards=(shard,))
        if is_enough:
            assert TextModel(manifest, 1).context_B.max() == NUM_SYMBOLS - 1
        else:
            with pytest.raises(ValueError, match="too small"):
                TextModel(manifest, 1)


def test_losses_of_a_swarm_go_down_and_more_nodes_learn_more_per_round(seed):
    last = {}
    for peers in ((A,), (A, B, C)):
        manifest = toy_manifest(A, rounds=30)
        world = World(manifest, seed=seed, settings=WorldSettings(trainer="model"))
        config = round_config(manifest)
        for peer in peers:
            world.join(peer, config=replace(config, wait_seats=len(peers) - 1))
        _finish(world)
        losses = list(world.losses.values())
        assert len(losses) == 30
        assert losses[0] == pytest.approx(math.log(NUM_SYMBOLS), abs=0.3)
        assert losses[-1] < losses[0] - 0.4
        anchors = {node.anchors[30] for node in world.nodes.values()}
        assert len(anchors) == 1
        anchor_N = np.frombuffer(anchors.pop(), dtype=np.float32)
        last[len(peers)] = TextModel(manifest, seed).loss(anchor_N)
    assert last[3] < last[1]


def test_made_up_drift_has_no_loss(seed):
    world = World(toy_manifest(A, rounds=3), seed=seed)
    world.join(A)
    world.run(lambda: world.nodes[A].round == 3, 30.0)
    assert world.losses == {}


def _finish(world: World) -> None:
    world.run(lambda: all(node.round == 30 for node in world.nodes.values()), 200.0)
