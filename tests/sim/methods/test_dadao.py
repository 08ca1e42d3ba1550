"""DADAO: every replica comes to the one best point, at the square root of the condition number."""

import numpy as np
import pytest

from protocol.errors import ConfigError
from sim.methods.dadao import Dadao, Rows
from sim.methods.gossip import metropolis, ring

REPLICAS, NUMEL = 8, 5


class Losses:
    """sum of c_r (x - t_r)^2 / 2, with curvatures of convexity..1."""

    def __init__(self, seed: int, convexity: float) -> None:
        generator = np.random.default_rng(seed)
        self.convexity = convexity
        self.c_RN = generator.uniform(convexity, 1.0, (REPLICAS, NUMEL))
        self.c_RN[0, 0], self.c_RN[1, 0] = convexity, 1.0
        self.t_RN = generator.normal(0.0, 2.0, (REPLICAS, NUMEL))
        self.best_N = (self.c_RN * self.t_RN).sum(axis=0) / self.c_RN.sum(axis=0)

    def gradient(self, replica: int, x_N: Rows) -> Rows:
        slope_N: Rows = self.c_RN[replica] * (x_N - self.t_RN[replica])
        return slope_N

    def dadao(self, *, rate: float = 1.5, seed: int = 0, start: float = 0.0) -> Dadao:
        return Dadao(
            np.full((REPLICAS, NUMEL), start),
            self.gradient,
            dict.fromkeys(ring(REPLICAS), rate),
            smoothness=1.0,
            convexity=self.convexity,
            seed=seed,
        )

    def error(self, x_RN: Rows) -> float:
        return float(np.abs(x_RN - self.best_N).max())


@pytest.mark.extended
def test_all_come_to_the_best_point_where_gossip_with_equal_steps_does_not(seed: int) -> None:
    losses = Losses(seed, 0.1)
    swarm = losses.dadao(seed=seed)
    swarm.run(600.0)
    assert losses.error(swarm.x_RN) < 1e-4
    assert swarm.num_gradients == pytest.approx(600 * REPLICAS, rel=0.1)
    assert swarm.num_meetings == pytest.approx(600 * REPLICAS * 1.5, rel=0.1)
    x_RN, weights_RR = np.zeros((REPLICAS, NUMEL)), metropolis(REPLICAS, ring(REPLICAS))
    for _ in range(600):
        slopes = [losses.gradient(replica, x_RN[replica]) for replica in range(REPLICAS)]
        x_RN = weights_RR @ (x_RN - 0.5 * np.stack(slopes))
    assert losses.error(x_RN) > 0.05


@pytest.mark.extended
def test_sixteen_times_the_condition_takes_about_four_times_as_long(seed: int) -> None:
    def units(convexity: float) -> float:
        losses = Losses(seed, convexity)
        swarm = losses.dadao(seed=seed)
        while losses.error(swarm.x_RN) > 1e-3:
            swarm.run(10.0)
            assert swarm.now < 5000.0
        return swarm.now

    ratio = units(0.04) / units(0.64)
    assert 3.0 < ratio < 5.0, ratio


def test_best_point_is_a_place_to_stay(seed: int) -> None:
    losses = Losses(seed, 0.1)
    swarm = losses.dadao(seed=seed)
    at_best_RN = np.stack([losses.gradient(r, losses.best_N) for r in range(REPLICAS)])
    y_RN = at_best_RN - 0.05 * losses.best_N
    for row, value in enumerate((losses.best_N, y_RN, -at_best_RN)):
        swarm._vectors_R6N[:, 2 * row] = swarm._vectors_R6N[:, 2 * row + 1] = value
    swarm.run(50.0)
    assert losses.error(swarm.x_RN) < 1e-9


def test_one_seed_has_one_history_however_often_somebody_looks(seed: int) -> None:
    losses = Losses(seed, 0.1)
    first, second, other = (losses.dadao(seed=s) for s in (seed, seed, seed + 1))
    for swarm in (first, second, other):
        swarm.run(20.0)
    assert np.array_equal(first.x_RN, second.x_RN)
    assert not np.array_equal(first.x_RN, other.x_RN)


def test_meeting_too_seldom_is_refused_with_how_often_it_takes(seed: int) -> None:
    losses = Losses(seed, 0.1)
    with pytest.raises(ConfigError, match=r"they must 2\.44 times as often"):
        losses.dadao(rate=0.5)
    losses.dadao(rate=0.5 * 2.45)
