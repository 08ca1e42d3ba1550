"""Replicas of unequal data behind the library's own loop, with torch's SGD inside (Q20).

R replicas
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from protocol.grid import ShardSpec
from protocol.manifest import RunManifest
from sim.methods.compare_main import run_swarm
from tests.training.quadratics import quadratic_manifest
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm, Weights
from training.models.building import model_tensors, read_fragment, write_fragment


@dataclass(frozen=True)
class Problem:
    """A model, and each replica's whole loss of it; steps are of whole gradients."""

    model: Callable[[], nn.Module]
    losses: Sequence[Callable[[nn.Module], Tensor]]
    shares: Sequence[float]
    """What each is to count."""

    def manifest(self, preset: str, *, rounds: int, inner_steps: int, rate: float) -> RunManifest:
        """A run of it."""
        plain = quadratic_manifest(preset, rounds=rounds, inner_steps=inner_steps, rate=rate)
        tensors = model_tensors(self.model())
        shard = ShardSpec("model", tensors, (tuple(range(len(tensors))),))
        outer = replace(plain.outer, codec="none")
        return replace(plain, shards=(shard,), cell_elements=4096, outer=outer)

    def train(self, swarm: Swarm) -> Weights:
        """The mean of the anchors of the last rounds: contributions at different times, each with
        its step, make an anchor go round about its place."""
        swarm.anchors = [self._start(swarm.manifest)]
        last: list[Weights] = []
        inner = swarm.manifest.inner
        tokens = swarm.manifest.rounds * swarm.replicas * inner.inner_steps * inner.batch * 8

        def work(session: MemorySession) -> None:
            model = self.model()
            diloco = DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1.0), exchange=session)
            while not diloco.finished:
                model.zero_grad()
                self.losses[session.replica](model).backward()
                outcome = diloco.step()
                is_late = swarm.clock.tokens >= 0.9 * tokens
                if outcome is not None and is_late and session.replica == 0:
                    last.append(outcome.anchor_N.copy())

        run_swarm(swarm, work)
        mean_N: Weights = torch.tensor(sum(last) / len(last)).numpy()
        return mean_N

    def slope(self, weights_N: Weights, manifest: RunManifest) -> float:
        """Length of the gradient of all losses together, each as it is to count: 0 where it is
        least."""
        model = self.model()
        write_fragment(model, manifest.shards[0], 0, weights_N)
        total = sum(
            share * loss(model) for share, loss in zip(self.shares, self.losses, strict=True)
        )
        assert isinstance(total, Tensor)
        total.backward()
        squares = [float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None]
        return float(sum(squares) ** 0.5)

    def _start(self, manifest: RunManifest) -> Weights:
        return read_fragment(self.model(), manifest.shards[0], 0)


def quadratics(seed: int, replicas: int, *, is_equally_curved: bool = False) -> Problem:
    """Each with a place of its own where its loss is least, and its curvatures."""
    generator = torch.Generator().manual_seed(seed)
    curvature_RD = 0.5 + 2.0 * torch.rand((replicas, 12), generator=generator)
    if is_equally_curved:
        curvature_RD[:] = curvature_RD[0]
    target_RD = 2.0 * torch.randn((replicas, 12), generator=generator)

    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.zeros(12))

    def loss(replica: int) -> Callable[[nn.Module], Tensor]:
        def of(model: nn.Module) -> Tensor:
            (x,) = model.parameters()
            return 0.5 * (curvature_RD[replica] * (x - target_RD[replica]) ** 2).sum()

        return of

    return Problem(Vector, [loss(r) for r in range(replicas)], [1 / replicas] * replicas)


def networks(seed: int, replicas: int) -> Problem:
    """A small network; each replica sees another part of the inputs, with targets of its own
    slope. A little decay gives it one place where it comes to rest."""
    generator = torch.Generator().manual_seed(seed)
    data = []
    for replica in range(replicas):
        x_BD = torch.randn((32, 3), generator=generator) + 1.5 * torch.randn(3, generator=generator)
        slope_D = torch.randn(3, generator=generator)
        y_B = torch.tanh(x_BD @ slope_D) + 0.2 * (replica - 1)
        data.append((x_BD, y_B))

    def make() -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(replica: int) -> Callable[[nn.Module], Tensor]:
        x_BD, y_B = data[replica]

        def of(model: nn.Module) -> Tensor:
            weights_N = torch.cat([p.flatten() for p in model.parameters()])
            error: Tensor = ((model(x_BD)[:, 0] - y_B) ** 2).mean()
            return error + 0.1 * (weights_N**2).sum()

        return of

    return Problem(make, [loss(r) for r in range(replicas)], [1 / replicas] * replicas)
