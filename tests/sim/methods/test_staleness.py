"""E11: over 10^4 steps of the server every client counts with its share, whoever is fast."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from sim.methods.virtual_swarm import (
    STALENESS,
    Hinge,
    Polynomial,
    fedasync_weights,
    fedavg_weights,
    fedbuff_weights,
    fedfix_weights,
)

SHARES = (0.4, 0.3, 0.2, 0.1)
SECONDS = (1.0, 2.5, 4.0, 9.0)
STEPS = 10_000


def arrivals(seconds: tuple[float, ...], noise: float, seed: int):
    """Client and time of each arrival, in order; how long a round takes varies by that much."""
    generator = np.random.default_rng(seed)
    due_R = np.array([generator.uniform(0.0, took) for took in seconds])
    for _ in count():
        client = int(due_R.argmin())
        yield client, float(due_R[client])
        due_R[client] += seconds[client] * (1.0 + noise * generator.uniform(-1.0, 1.0))


def mean_by_arrival(weights: tuple[float, ...], size: int, seed: int) -> np.ndarray:
    """Of the server's steps, one for each `size` arrivals."""
    total_R = np.zeros(len(weights))
    source = arrivals(SECONDS, 0.2, seed)
    for _ in range(STEPS * size):
        client, _ = next(source)
        total_R[client] += weights[client]
    return total_R / STEPS


def mean_by_interval(weights: tuple[float, ...], interval_s: float) -> np.ndarray:
    """Of the server's steps, one each interval: who is done goes on with the step's anchor."""
    total_R, due_R = np.zeros(len(weights)), np.array(SECONDS)
    for step in range(1, STEPS + 1):
        come_R = due_R <= step * interval_s + 1e-9
        total_R[come_R] += np.array(weights)[come_R]
        due_R[come_R] = step * interval_s + np.array(SECONDS)[come_R]
    return total_R / STEPS


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 3.0, 20.0])
def test_fedfix_counts_everybody_with_its_share(interval_s: float) -> None:
    weights = fedfix_weights(SHARES, SECONDS, interval_s)
    assert mean_by_interval(weights, interval_s) == pytest.approx(SHARES, rel=0.01)


def test_fedfix_at_the_pace_of_the_slowest_is_fedavg() -> None:
    assert fedfix_weights(SHARES, SECONDS, max(SECONDS)) == fedavg_weights(SHARES)


@pytest.mark.parametrize("size", [1, 3, 10])
def test_fedbuff_counts_everybody_with_its_share(seed: int, size: int) -> None:
    found_R = mean_by_arrival(fedbuff_weights(SHARES, SECONDS, size), size, seed)
    assert found_R == pytest.approx(SHARES, rel=0.02)
    assert fedbuff_weights(SHARES, SECONDS, 1) == fedasync_weights(SHARES, SECONDS)


def test_equal_weights_count_the_fast_ones_more(seed: int) -> None:
    """The suite would notice: without them a client counts by how often it comes."""
    found_R = mean_by_arrival((0.25,) * 4, 1, seed)
    assert found_R == pytest.approx(np.array([9.0, 3.6, 2.25, 1.0]) / 15.85 / 4, rel=0.02)
    found_R = mean_by_interval(fedavg_weights(SHARES), 1.0)
    assert found_R[3] == pytest.approx(SHARES[3] / 9, rel=0.02)


@given(st.integers(0, 10_000))
def test_what_is_not_behind_counts_whole_and_the_rest_never_more(behind: int) -> None:
    for name in STALENESS:
        rule = STALENESS[name]()
        assert rule(0) == 1.0
        assert 0.0 < rule(behind + 1) <= rule(behind) <= 1.0


def test_forms_are_the_papers() -> None:
    assert Polynomial()(3) == 0.5
    assert [Hinge()(behind) for behind in (4, 5, 6)] == [1.0, 1 / 11, 1 / 21]


def test_steps_of_no_time_and_buffers_of_nobody_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"each 0.0 s"):
        fedfix_weights(SHARES, SECONDS, 0.0)
    with pytest.raises(ConfigError, match="buffer of 0"):
        fedbuff_weights(SHARES, SECONDS, 0)
