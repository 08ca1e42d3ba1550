"""A2CiD2 behind the one loop: two copies that meet on a ring, between steps."""

from collections.abc import Mapping

import numpy as np
import pytest

from sim.methods.gossip import PLAIN, AcidPace, AcidSwarm
from tests.sim.methods.test_swarms import trained
from tests.training.quadratics import Quadratics, quadratic_manifest
from training.loop.replicas import Weights

SIXTEEN, ROUNDS = 16, 80


class Looked(AcidSwarm):
    """Says behind each round how far its replicas are apart."""

    def mixed(self, drifts: Mapping[int, Weights], round_index: int) -> float:
        copies = super().mixed(drifts, round_index)
        self.apart = [*getattr(self, "apart", []), self.disagreement]
        return copies


def acid(pace: AcidPace | None = None, replicas: int = SIXTEEN, **how: object) -> Looked:
    manifest = quadratic_manifest("acid", rounds=ROUNDS, inner_steps=1)
    return Looked(manifest, replicas, pace=pace, **how)  # type: ignore[arg-type]


@pytest.mark.extended
def test_replicas_of_a_ring_are_nearer_to_each_other_than_with_one_copy(seed: int) -> None:
    quadratics = Quadratics(SIXTEEN, seed)
    two, one = acid(), acid(PLAIN)
    for swarm in (two, one):
        trained(swarm, quadratics)
        assert len(swarm.apart) == ROUNDS
    assert np.mean(two.apart[-20:]) < 0.75 * np.mean(one.apart[-20:])
    # The mean of both copies is what plain steps make of it, whoever met whom.
    mean_N = 0.5 * (two._copies.x_RN + two._copies.z_RN).mean(axis=0)
    assert np.abs(mean_N - quadratics.best_D).mean() < np.abs(1.0 - quadratics.best_D).mean()
    assert two.payload_bytes == one.payload_bytes
    assert two.payload_bytes % (2 * 4 * 6) == 0, "a meeting is a copy each way"


def test_one_copy_is_gossip_of_the_drawn_pairs(seed: int) -> None:
    quadratics, swarm = Quadratics(4, seed), acid(PLAIN, replicas=4)
    trained(swarm, quadratics)
    x_RD: np.ndarray = np.ones((4, 6))
    for index in range(ROUNDS):
        for replica in range(4):
            x_RD[replica] -= 0.05 * quadratics.gradient(replica, x_RD[replica])
        for _, edge in swarm._meetings(index):
            x_RD[list(edge)] = x_RD[list(edge)].mean(axis=0)
    assert np.abs(np.stack(swarm.own) - x_RD).max() <= 1e-4


def test_who_is_absent_meets_nobody(seed: int) -> None:
    absent = frozenset((index, 1) for index in range(ROUNDS))
    swarm = acid(replicas=4, absent=absent)
    trained(swarm, Quadratics(4, seed))
    assert np.array_equal(swarm.own[1], np.ones(6, dtype=np.float32))
    assert all(np.abs(swarm.own[replica] - 1.0).max() > 0.1 for replica in (0, 2, 3))


def test_everybody_meets_somebody_once_in_a_unit_on_average() -> None:
    for replicas in (2, 3, 16):
        swarm = acid(replicas=replicas)
        meetings = [edge for index in range(400) for _, edge in swarm._meetings(index)]
        assert 0.9 < 2 * len(meetings) / (400 * replicas) < 1.1
    assert acid(replicas=1)._meetings(0) == []
