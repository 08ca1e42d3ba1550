"""NoLoCo behind the one loop: an outer step with one other, and weights that do not drift apart."""

import numpy as np
import pytest

from sim.methods.gossip import GossipSwarm, NoLoCoSwarm, Pairwise
from tests.sim.methods.test_swarms import trained
from tests.training.quadratics import Quadratics, quadratic_manifest

REPLICAS, ROUNDS = 8, 60


def noloco(replicas: int = REPLICAS, **how: float) -> NoLoCoSwarm:
    manifest = quadratic_manifest("noloco", rounds=ROUNDS, inner_steps=5, rate=0.02)
    return NoLoCoSwarm(manifest, replicas, **how)  # type: ignore[arg-type]


@pytest.mark.extended
def test_without_momentum_it_is_pairwise_gossip(seed: int) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    ours = noloco(rate=1.0, momentum=0.0, pull=1.0)
    gossip = GossipSwarm(ours.manifest, REPLICAS, mixing=Pairwise())
    for swarm in (ours, gossip):
        trained(swarm, quadratics)
    assert np.abs(np.stack(ours.own) - np.stack(gossip.own)).max() <= 1e-4
    assert ours.payload_bytes == 2 * gossip.payload_bytes, "where it began, too"


@pytest.mark.extended
def test_pull_holds_replicas_together_that_momentum_drives_apart(seed: int) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    held, loose = noloco(), noloco(pull=0.0)
    for swarm in (held, loose):
        trained(swarm, quadratics)
    assert held.disagreement < loose.disagreement / 2
    assert np.abs(held.anchor - quadratics.best_D).mean() < 0.2


def test_replicas_of_equal_data_are_one_with_heavy_momentum(seed: int) -> None:
    """Of whom nobody differs the pull is nothing; an odd one out goes on by itself."""
    quadratics = Quadratics(3, seed)
    quadratics.curvature_RD[:], quadratics.target_RD[:] = 1.0, 2.0
    swarm = noloco(replicas=3)
    trained(swarm, quadratics)
    x_D, velocity_D = np.ones(6), np.zeros(6)
    for _ in range(ROUNDS):
        local_D = x_D
        for _ in range(5):
            local_D = local_D - 0.02 * (local_D - 2.0)
        velocity_D = 0.5 * velocity_D + 0.7 * (x_D - local_D)
        x_D = x_D - velocity_D
    for own_D in swarm.own:
        assert own_D == pytest.approx(x_D, abs=1e-4)


def test_who_is_absent_neither_gives_nor_takes(seed: int) -> None:
    absent = frozenset((index, 2) for index in range(ROUNDS))
    manifest = quadratic_manifest("noloco", rounds=ROUNDS, inner_steps=5, rate=0.02)
    swarm = NoLoCoSwarm(manifest, 4, absent)
    trained(swarm, Quadratics(4, seed))
    assert np.array_equal(swarm.own[2], np.ones(6, dtype=np.float32))
    assert all(np.abs(swarm.own[replica] - 1.0).max() > 0.1 for replica in (0, 1, 3))
