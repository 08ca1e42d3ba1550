"""FedCompass behind the one loop, in virtual time."""

from itertools import pairwise

import numpy as np
import pytest

from sim.methods.compass import STEPS_MIN_SHARE, CompassSwarm
from sim.methods.virtual_swarm import CONSTANT
from tests.sim.methods.test_swarms import trained
from tests.training.quadratics import Quadratics, quadratic_manifest

H, ROUNDS = 50, 12


def compass_swarm(step_s: tuple[float, ...], **how: object) -> CompassSwarm:
    manifest = quadratic_manifest("fedcompass", rounds=ROUNDS, inner_steps=H, rate=0.01)
    return CompassSwarm(manifest, len(step_s), step_s=step_s, **how)  # type: ignore[arg-type]


def test_unequal_speeds_come_together_and_nobody_idles_for_a_fifth(seed: int) -> None:
    """Q9's speeds. In lock step the same steps take as long as the slowest needs for all of its."""
    quadratics, step_s = Quadratics(4, seed), (0.04, 0.04, 0.02, 0.01)
    swarm = compass_swarm(step_s)
    leases = trained(swarm, quadratics)
    lock_step_s = ROUNDS * H * max(step_s)
    assert swarm.now_s <= 0.6 * lock_step_s
    assert max(swarm.idle_s) < 0.2 * swarm.now_s
    later = [of_one[1:] for of_one in swarm.steps]
    assert all(H * STEPS_MIN_SHARE <= steps <= H for of_one in later for steps in of_one)
    assert np.mean(later[3]) > 1.5 * np.mean(later[2]) > 2.0 * np.mean(later[0])
    # Each step on samples of its own, and as many as in lock step.
    given = sorted(lease for of_one in leases for lease in of_one)
    assert all(one[1] == other[0] for one, other in pairwise(given))
    batch = swarm.manifest.inner.batch
    assert 0 <= given[-1][1] // batch - 4 * ROUNDS * H < 4 * H
    assert swarm.clock.tokens == given[-1][1] * 8, "every contribution counts once"
    again = compass_swarm(step_s)
    trained(again, quadratics)
    assert np.array_equal(again.anchor, swarm.anchor), "virtual time has one history"


def test_equal_speeds_are_averaging_in_lock_step(seed: int) -> None:
    quadratics = Quadratics(4, seed)
    swarm = compass_swarm((0.02,) * 4, rate=1.0, staleness=CONSTANT)
    trained(swarm, quadratics)
    assert all(set(of_one) == {H} for of_one in swarm.steps)
    assert swarm.now_s == pytest.approx(ROUNDS * H * 0.02)
    # Four steps of the first round, where nobody was observed, and one of each group behind it.
    assert swarm.clock.round == 4 + ROUNDS - 1

    def trained_from(replica: int, x_D: np.ndarray) -> np.ndarray:
        for _ in range(H):
            x_D = x_D - 0.01 * quadratics.gradient(replica, x_D)
        return x_D

    x_D, begins = np.ones(6), []
    for replica in range(4):
        x_D = x_D - (x_D - trained_from(replica, np.ones(6))) / 4
        begins.append(x_D)
    for _ in range(ROUNDS - 1):
        ends = [trained_from(replica, begin_D) for replica, begin_D in enumerate(begins)]
        x_D = np.mean(ends, axis=0)
        begins = [x_D] * 4
    assert np.abs(swarm.anchor - x_D).max() <= 1e-4


def test_who_is_late_counts_with_the_next_group_and_goes_on_at_once(seed: int) -> None:
    swarm = compass_swarm((0.02, 0.02, 0.02), rate=1.0, staleness=CONSTANT)
    arrive = swarm._arrive
    slowed: list[tuple[float, int]] = []

    def arrived() -> None:
        arrive()
        if swarm.clock.round == 4 and not slowed:
            # The next time it takes twice as long as anybody would think.
            slowed.append(swarm._due[-1])
            at_s, replica = swarm._due.pop()
            swarm._due.append((at_s + H * 0.02, replica))
            swarm._due.sort()

    swarm._arrive = arrived  # type: ignore[method-assign]
    leases = trained(swarm, Quadratics(3, seed))
    assert slowed
    ((_, late),) = slowed
    given = max(lease for of_one in leases for lease in of_one)
    assert swarm.clock.tokens == given[1] * 8, "what came late counts, once"
    assert swarm.idle_s[late] < max(swarm.idle_s)
