"""Q11 as far as DeMo goes: it learns steadily, and of three rates the middle one is best."""

import sys

import pytest

from tests.quality.toy import loss_of, toy

RATES = (0.0002, 0.006, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_q11_demo_learns_steadily_and_has_a_best_rate(seed: int) -> None:
    by_steps = [
        loss_of(toy("demo", seed=seed, inner_steps=1, steps=steps))[0] for steps in (75, 300, 600)
    ]
    by_rate = [
        loss_of(toy("demo", seed=seed, inner_steps=1, learning_rate=rate))[0] for rate in RATES
    ]
    sys.stdout.write(f"demo, seed {seed}: by steps {by_steps}, by rate {by_rate}\n")
    assert by_steps[0] > by_steps[1] > by_steps[2]
    assert by_rate[1] < min(by_rate[0], by_rate[2])
