"""Q9 by FedCompass: steps by speed reach the loss of lock step in half its time."""

import sys

import pytest

from sim.methods.compare_main import swarm_of
from sim.methods.compass import CompassSwarm
from tests.quality.toy import REPLICAS, loss_of_swarm, toy


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_q9_steps_by_speed_reach_lock_step_s_loss_in_six_tenths_of_its_time(seed: int) -> None:
    """Speeds 1:1:2:4."""
    lock_step = swarm_of(toy("fedavg", seed=seed, inner_steps=50), REPLICAS)
    compass = swarm_of(toy("fedcompass", seed=seed, inner_steps=50), REPLICAS)
    expected, loss = loss_of_swarm(lock_step), loss_of_swarm(compass)
    assert isinstance(compass, CompassSwarm)
    lock_step_s = lock_step.clock.step * max(compass.step_s)
    idle = [idle_s / compass.now_s for idle_s in compass.idle_s]
    sys.stdout.write(f"seed {seed}: {compass.now_s:.2f} of {lock_step_s:.2f} s, idle {idle}\n")
    assert loss <= expected + 0.01
    assert compass.now_s <= 0.6 * lock_step_s
    assert max(idle) <= 0.2
