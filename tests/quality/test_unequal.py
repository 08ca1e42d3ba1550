"""Q20: where training ends with unequal data, and with peers of unequal speed.

The slope of the mean of all losses at that place: 0 where it is least.
"""

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch

from sim.methods.virtual_swarm import AsyncSwarm, fedbuff_weights, fedfix_weights
from tests.quality.unequal import Problem, networks, quadratics
from training.loop.replicas import Swarm

pytestmark = pytest.mark.slow

REPLICAS = 4
SECONDS = (1.0, 1.5, 2.0, 4.0)
Make = Callable[[int], Problem]
SEEDS = (0, 1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def ends(problem: Problem, preset: str, rounds: int) -> float:
    manifest = problem.manifest(preset, rounds=rounds, inner_steps=5, rate=0.1)
    swarm = Swarm(manifest, REPLICAS, rounds_kept=1)
    found = problem.slope(problem.train(swarm), manifest)
    sys.stdout.write(f"{preset}: {found:.2e}\n")
    return found


@pytest.mark.parametrize("make", [partial(quadratics, replicas=4), partial(networks, replicas=4)])
@pytest.mark.parametrize("seed_of_run", SEEDS)
def test_q20_scaffold_ends_ten_times_nearer_than_averaging(seed_of_run: int, make: Make) -> None:
    problem = make(seed_of_run)
    rounds = 160
    assert ends(problem, "fedavg", rounds) >= 10 * ends(problem, "scaffold", rounds)


def ends_at(problem: Problem, weights: tuple[float, ...], **how: float) -> float:
    rounds = 800
    manifest = problem.manifest("fedavg", rounds=rounds, inner_steps=1, rate=0.02)
    swarm = AsyncSwarm(
        manifest,
        REPLICAS,
        seconds=SECONDS,
        weights=weights,
        interval_s=how.get("interval_s", 0.0),
        size=int(how.get("size", 0)),
    )
    found = problem.slope(problem.train(swarm), manifest)
    sys.stdout.write(f"{how} {weights}: {found:.2e}\n")
    return found


@pytest.mark.parametrize(
    "make",
    [partial(quadratics, replicas=4, is_equally_curved=True), partial(networks, replicas=4)],
)
@pytest.mark.parametrize("seed_of_run", SEEDS)
@pytest.mark.parametrize("how", [{"interval_s": 1.0}, {"size": 3}])
def test_q20_who_comes_when_it_is_ready_counts_as_all(
    seed_of_run: int, make: Make, how: dict[str, float]
) -> None:
    """Against equal weights, by which the fast decide."""
    problem = make(seed_of_run)
    if "size" in how:
        fair = fedbuff_weights(problem.shares, SECONDS, 3)
        biased = (1 / 3,) * REPLICAS
    else:
        fair = fedfix_weights(problem.shares, SECONDS, how["interval_s"])
        biased = (sum(fair) / REPLICAS,) * REPLICAS
    assert ends_at(problem, biased, **how) >= 10 * ends_at(problem, fair, **how)
