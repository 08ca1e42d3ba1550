"""Q18: MoDeST, 16 peers of whom 4 are drawn for each round, and half of them killed mid-run."""

from functools import cache

import pytest

from sim.methods.modest import ACTIVE_ROUNDS
from sim.methods.virtual_swarm import SampledSwarm
from tests.quality.toy import loss_of_swarm, toy

pytestmark = pytest.mark.slow

PEERS, DRAWN, ROUNDS = 16, 4, 50
SEEDS = (0, 1)


@cache
def played(seed: int, *, is_killed: bool) -> tuple[float, list[tuple[int, int]]]:
    """The loss, and for each attempt at a round how many models came."""
    swarm = SampledSwarm(
        toy("fedavg", seed=seed, codec="none"),
        PEERS,
        size=DRAWN,
        killed=frozenset(range(1, PEERS, 2)) if is_killed else frozenset(),
        killed_from=ROUNDS // 2,
    )
    loss = loss_of_swarm(swarm)
    return loss, swarm.attempts


@pytest.mark.parametrize("seed_of_run", SEEDS)
def test_q18_half_of_all_killed_cost_little_and_hold_nobody_up(seed_of_run: int) -> None:
    loss, attempts = played(seed_of_run, is_killed=True)
    whole, _ = played(seed_of_run, is_killed=False)
    assert loss <= whole + 0.05
    rounds = [index for index, _ in attempts]
    assert rounds[-1] == ROUNDS - 1
    # Fifty rounds without progress were allowed; it takes one, if any: the dead are asked no more.
    assert len(rounds) - ROUNDS <= 1 < ACTIVE_ROUNDS
    assert any(come < DRAWN for index, come in attempts if index == ROUNDS // 2)
