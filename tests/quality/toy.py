"""A GPT of some 35 000 parameters and four replicas of it: the quality suite.

All between gradient and new anchor is the library's own (`training.loop.replicas`); only the
network is missing. A run takes some twenty seconds of an idle core.
"""

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

from node.settings.run_file import Founder, build_manifest, write_out
from node.settings.sections import (
    CorpusSection,
    InnerSection,
    ModelSection,
    OuterSection,
    RunFile,
    RunSection,
)
from protocol.identity import PeerId
from protocol.leases import Lease
from protocol.manifest import RunManifest
from sim.methods.compare_main import run_swarm
from training.data.corpus import open_corpus
from training.data.sampling import Dataset
from training.device.inner import accumulate_gradient, make_optimizer, validation_loss
from training.evaluation.yardstick import model_of
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.models.building import build_model, read_fragment, tokens_per_sample

REPLICAS, STEPS, INNER_STEPS = 4, 600, 12
HELD_OUT_WINDOWS = 1024
FOUNDER = Founder(PeerId(bytes(32)), 0)


def toy(
    preset: str = "diloco_fp32",
    *,
    seed: int = 0,
    inner_steps: int = INNER_STEPS,
    steps: int = STEPS,
    **outer: object,
) -> RunManifest:
    """The manifest of a run of so many steps; `outer` are keys of [outer] beside the preset."""
    file = RunFile(
        run=RunSection(title="quality", rounds=steps // inner_steps),
        model=ModelSection(
            seed=seed, settings={"context": 64, "heads": 2, "layers": 2, "width": 32}
        ),
        corpus=CorpusSection(permutation_seed=seed),
        inner=InnerSection(batch=8, inner_steps=inner_steps, warmup_steps=50),
        outer=OuterSection(preset=preset, **outer),  # type: ignore[arg-type]
    )
    path = Path("run.toml")
    return build_manifest(write_out(file, path, in_process=True), FOUNDER, path)


@dataclasses.dataclass
class Paced(Swarm):
    """Replicas that take so many steps of a round each."""

    steps: tuple[int, ...] = ()

    def lease(self, replica: int, round_index: int) -> Lease:
        """See Swarm: nobody's samples twice."""
        if round_index >= self.manifest.rounds or not self.steps:
            return super().lease(replica, round_index)
        batch = self.manifest.inner.batch
        first = round_index * sum(self.steps) + sum(self.steps[:replica])
        return ((first * batch, (first + self.steps[replica]) * batch),)


Spoil = Callable[[DiLoCo, torch.nn.Module, MemorySession], bool]
"""Before a step: whether this batch is noise, weights bent as well."""


@cache
def dataset_of(seed: int) -> Dataset:
    """The text, opened once."""
    return open_corpus(toy(seed=seed).corpus)


def train_replica(
    manifest: RunManifest,
    session: MemorySession,
    *,
    spoil: Spoil | None = None,
    sealed: Callable[[torch.nn.Module], None] | None = None,
) -> torch.nn.Module:
    """One replica through the run; its model at the end. `sealed` sees it behind each round."""
    dataset, noise = dataset_of(manifest.model.seed), np.random.default_rng(7)
    context, batch = tokens_per_sample(manifest), manifest.inner.batch
    model = build_model(manifest)
    optimizer = make_optimizer(model, manifest.inner)
    diloco = DiLoCo(model, optimizer, exchange=session)
    while not diloco.finished:
        ((first, _),) = diloco.lease
        samples_B = np.arange(first, first + batch) + diloco.local_step * batch
        windows_BW = dataset.windows(samples_B, context)
        if spoil is not None and spoil(diloco, model, session):
            windows_BW = noise.integers(0, 256, windows_BW.shape).astype(np.uint8)
        outcome = diloco.step(
            accumulate_gradient(model, optimizer, windows_BW, sam_radius=manifest.inner.sam_radius)
        )
        if outcome is not None and sealed is not None:
            sealed(model)
    return model


def loss_of(
    manifest: RunManifest,
    *,
    replicas: int = REPLICAS,
    absent: frozenset[tuple[int, int]] = frozenset(),
    steps: tuple[int, ...] = (),
    grades: tuple[int, ...] = (),
    spoil: Spoil | None = None,
) -> tuple[float, int]:
    """Nats per byte of held-out text at the end, and one replica's payload bytes; the mean of all
    where they send in `grades` of their own."""
    torch.set_num_threads(1)
    dataset = dataset_of(manifest.model.seed)
    context = tokens_per_sample(manifest)

    def train(session: MemorySession) -> bytes:
        model = train_replica(manifest, session, spoil=spoil)
        fragments = range(len(manifest.shards[0].fragments))
        return b"".join(read_fragment(model, manifest.shards[0], f).tobytes() for f in fragments)

    swarm = Paced(manifest, replicas, absent, grades, rounds_kept=1, steps=steps)
    weights = run_replicas(swarm, train)
    num_fragments = len(swarm.anchors)
    assert num_fragments > 1 or len(set(weights)) == 1, "all replicas end with the same bits"
    held_out_BW = dataset.held_out_windows(HELD_OUT_WINDOWS, context)
    loss = validation_loss(model_of(manifest, tuple(swarm.anchors)), held_out_BW)
    sys.stdout.write(f"{manifest.outer.preset} {manifest.outer.codec}: {loss:.4f}\n")
    return loss, swarm.payload_bytes // replicas


def loss_of_swarm(swarm: Swarm) -> float:
    """The mean of its final weights' losses: nats per byte of held-out text."""
    torch.set_num_threads(1)
    manifest = swarm.manifest
    dataset = dataset_of(manifest.model.seed)
    context = tokens_per_sample(manifest)

    def train(session: MemorySession) -> None:
        train_replica(manifest, session)

    run_swarm(swarm, train)
    held_out_BW = dataset.held_out_windows(HELD_OUT_WINDOWS, context)
    models = [model_of(manifest, tuple(weights)) for weights in swarm.finals()]
    loss = sum(validation_loss(model, held_out_BW) for model in models) / len(models)
    sys.stdout.write(f"{type(swarm).__name__}: {loss:.4f}\n")
    return loss
