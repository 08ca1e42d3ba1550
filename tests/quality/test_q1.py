"""Q1: what the swarm is for. Four replicas that meet every twelve steps beat one that trains alone.

R replicas, B sequences, W window (context + 1 bytes)

Everything between gradient and new anchor is the library's own: DiLoCo object, error feedback,
codec, aggregator, outer optimizer, merge. Only the network is missing (`tests.training.replicas`).
Single, data-parallel and averaged runs use the same inner loop on the same samples.

Measured with this setup, nats per byte:

    rate    seed  single  averaged once  data parallel  DiLoCo    DiLoCo / data parallel
    0.001   0     2.341   2.446          2.187          2.278     1.042
    0.0015  0     2.301   2.460          2.122          2.220     1.046
    0.0015  1     2.292   2.350          2.101          2.206     1.050
    0.002   0     2.267   2.419          2.049          2.180     1.064
    0.002   1     2.254   2.357          2.030          2.165     1.067

From the library's own, wider genesis the swarm gains more, and averaging once hurts less: 2.146,
2.181, 1.840, 1.988 (1.080) with rate 0.002 and seed 0. Of seven rates from 0.001 to 0.016 none has
both the second and the third bound of the test there.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np
import pytest
from torch import nn

from protocol.manifest import InnerSpec, ModelSpec, OuterSpec, RunManifest, Setting
from tests.training.replicas import small_manifest
from training.data.corpus import open_corpus, pin_corpus
from training.data.sampling import Dataset
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    make_optimizer,
    validation_loss,
)
from training.files.state import flat_fragment, named_tensors
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.models.building import build_model, read_fragment, tokens_per_sample, write_fragment
from training.models.genesis import genesis_weights, shard_spec

pytestmark = pytest.mark.slow

REPLICAS = 4
ROUNDS = 50
INNER = InnerSpec(
    inner_steps=12,
    batch=8,
    learning_rate=0.0015,
    learning_rate_floor=0.1,
    warmup_steps=50,
    beta1=0.9,
    beta2=0.95,
    weight_decay=0.1,
    clip_norm=1.0,
    drift_max=2,
)
# Momentum 0.5: fifty rounds are too few for 0.9, which does not beat one replica then.
OUTER = OuterSpec(
    preset="diloco",
    codec="none",
    feedback=1.0,
    aggregator="mean",
    optimizer="nesterov",
    learning_rate=0.7,
    momentum=0.5,
    overlap=1,
)
HELD_OUT_WINDOWS = 2048
SEEDS = (0, 1)
"""One seed is off by some 0.02 nats, and by three times that where replicas are averaged once."""

START_SPREAD = 0.02
"""Standard deviation of the first matrices, of branches less: GPT-2's, from which the bounds of the
test were measured. Ours, 1 / sqrt(3 * 64), is 3.6 times wider."""


def toy_manifest(seed: int) -> RunManifest:
    """600 steps of a GPT with 0.22 million parameters over the standard library's sources."""
    settings = (Setting("context", 64), Setting("heads", 4), Setting("layers", 4))
    model = ModelSpec(name="gpt", settings=(*settings, Setting("width", 64)), seed=seed)
    return dataclasses.replace(
        small_manifest(inner=INNER, outer=OUTER),
        rounds=ROUNDS,
        model=model,
        shards=(shard_spec(model),),
        cell_elements=1 << 16,
        corpus=pin_corpus("stdlib", permutation_seed=seed),
    )


def start_weights(manifest: RunManifest) -> np.ndarray:
    (shard,) = manifest.shards
    tensors = named_tensors(shard, genesis_weights(manifest))
    width = manifest.model.setting("width")
    assert isinstance(width, int)
    scale = np.float32(START_SPREAD * math.sqrt(3 * width))
    narrow = {name: x * scale if x.ndim > 1 else x for name, x in tensors.items()}
    return flat_fragment(shard, 0, narrow)


def lease(round_index: int, replica: int, step: int) -> np.ndarray:
    """The sample numbers of one inner step of one replica: nobody takes one twice."""
    per_round = INNER.inner_steps * INNER.batch
    first = (round_index * REPLICAS + replica) * per_round + step * INNER.batch
    return np.arange(first, first + INNER.batch)


def train_swarm(manifest: RunManifest, dataset: Dataset) -> nn.Module:
    context = tokens_per_sample(manifest)

    def train(session: MemorySession) -> nn.Module:
        model = build_model(manifest)
        optimizer = make_optimizer(model, manifest.inner)
        diloco = DiLoCo(model, optimizer, exchange=session)
        while not diloco.finished:
            samples_B = lease(diloco.clock.round, session.replica, diloco.local_step)
            loss = accumulate_gradient(model, optimizer, dataset.windows(samples_B, context))
            diloco.step(loss)
        return model

    swarm = Swarm(manifest, REPLICAS)
    swarm.anchors = [start_weights(manifest)]
    models = run_replicas(swarm, train)
    weights = {read_fragment(model, manifest.shards[0], 0).tobytes() for model in models}
    assert len(weights) == 1, "all replicas end with the same bits"
    return models[0]


def train_apart(manifest: RunManifest, dataset: Dataset, replicas: list[int]) -> nn.Module:
    """One model; each step's batch is that of all `replicas` together."""
    context, steps = tokens_per_sample(manifest), manifest.inner.inner_steps
    model = build_model(manifest)
    write_fragment(model, manifest.shards[0], 0, start_weights(manifest))
    optimizer = make_optimizer(model, manifest.inner)
    for step in range(manifest.total_inner_steps):
        round_index, local_step = divmod(step, steps)
        batches = [lease(round_index, replica, local_step) for replica in replicas]
        samples_B = np.concatenate(batches)
        accumulate_gradient(model, optimizer, dataset.windows(samples_B, context))
        apply_gradient(model, optimizer, manifest, step)
    return model


def average(manifest: RunManifest, models: list[nn.Module]) -> nn.Module:
    shard = manifest.shards[0]
    weights_RN = np.stack([read_fragment(model, shard, 0) for model in models])
    model = build_model(manifest)
    write_fragment(model, shard, 0, weights_RN.mean(axis=0, dtype=np.float64).astype(np.float32))
    return model


@cache
def losses(seed: int) -> Mapping[str, float]:
    """Held-out loss of each way to train, nats per byte."""
    manifest = toy_manifest(seed)
    dataset = open_corpus(manifest.corpus)
    held_out_BW = dataset.held_out_windows(HELD_OUT_WINDOWS, tokens_per_sample(manifest))
    everybody = list(range(REPLICAS))
    with ThreadPoolExecutor(2) as pool:
        runs = [everybody, *([replica] for replica in everybody)]
        together, *apart = pool.map(partial(train_apart, manifest, dataset), runs)
    models = {
        "single": apart[0],
        "averaged once": average(manifest, apart),
        "data parallel": together,
        "diloco": train_swarm(manifest, dataset),
    }
    found = {name: validation_loss(model, held_out_BW) for name, model in models.items()}
    sys.stdout.write(f"seed {seed}, nats per byte: {found}\n")
    return found


@pytest.mark.parametrize("seed_of_run", SEEDS)
def test_q1_swarm_beats_one_replica_with_either_seed(seed_of_run):
    found = losses(seed_of_run)
    assert found["single"] - found["diloco"] >= 0.05


def test_q1_swarm_comes_near_data_parallel_and_averaging_once_is_no_help():
    names = losses(SEEDS[0])
    mean = {name: sum(losses(seed)[name] for seed in SEEDS) / len(SEEDS) for name in names}

    assert mean["single"] - mean["diloco"] >= 0.05
    assert mean["diloco"] <= 1.07 * mean["data parallel"]
    assert mean["averaged once"] >= mean["single"] + 0.05
