"""Replicas of unequal data whose best common weights are known: a quadratic each.

R replicas, D dimensions
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, RunManifest, Setting
from tests.training.replicas import INNER, OUTER, small_manifest
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, run_replicas
from training.models.genesis import DIGEST_SETTING, MODEL_FILE

DIMENSIONS = 6


def quadratic_manifest(
    preset: str, *, rounds: int, inner_steps: int = 10, rate: float = 0.05
) -> RunManifest:
    """A run of a vector of weights, by plain steps at one rate."""
    settings = (Setting("context", 8), Setting(DIGEST_SETTING, "0" * 64))
    inner = replace(
        INNER,
        inner_steps=inner_steps,
        learning_rate=rate,
        learning_rate_floor=1.0,
        warmup_steps=0,
        weight_decay=0.0,
        clip_norm=0.0,
    )
    outer = replace(
        OUTER, preset=preset, optimizer="sgd", learning_rate=1.0, momentum=0.0, feedback=1.0
    )
    tensors = (TensorSpec("x", (DIMENSIONS,)),)
    return replace(
        small_manifest(inner=inner, outer=outer),
        rounds=rounds,
        model=ModelSpec(name=MODEL_FILE, settings=settings, seed=0),
        shards=(ShardSpec("model", tensors, ((0,),)),),
    )


class Vector(nn.Module):
    """The weights."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(DIMENSIONS))


class Quadratics:
    """Replica r has the loss sum of a_r (x - t_r)^2 / 2."""

    def __init__(self, replicas: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.curvature_RD = generator.uniform(0.1, 3.0, (replicas, DIMENSIONS))
        self.target_RD = generator.normal(0.0, 2.0, (replicas, DIMENSIONS))

    @property
    def best_D(self) -> NDArray[np.float64]:
        """Where the mean of all losses is least."""
        total_D = (self.curvature_RD * self.target_RD).sum(axis=0)
        best_D: NDArray[np.float64] = total_D / self.curvature_RD.sum(axis=0)
        return best_D

    def gradient(self, replica: int, x_D: NDArray[np.floating]) -> NDArray[np.float64]:
        """Of one replica."""
        gradient_D: NDArray[np.float64] = self.curvature_RD[replica] * (
            x_D - self.target_RD[replica]
        )
        return gradient_D

    def train(
        self, manifest: RunManifest, absent: frozenset[tuple[int, int]] = frozenset()
    ) -> Swarm:
        """The swarm at the end: the library's own loop, with torch's SGD inside."""

        def work(session: MemorySession) -> None:
            model = Vector()
            inner = torch.optim.SGD(model.parameters(), lr=1.0)
            diloco = DiLoCo(model, inner, exchange=session)
            while not diloco.finished:
                gradient_D = self.gradient(session.replica, model.x.detach().numpy())
                model.x.grad = torch.from_numpy(gradient_D.astype(np.float32))
                diloco.step()

        swarm = Swarm(manifest, len(self.target_RD), absent, rounds_kept=1)
        run_replicas(swarm, work)
        return swarm
