"""E12: gossip conserves the mean, and what accelerates it does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from protocol.grid import TensorSpec
from sim.methods.gossip import (
    MIXINGS,
    PLAIN,
    AcidPace,
    Corrected,
    Pairwise,
    Ring,
    TwoCopies,
    contraction,
    metropolis,
    pace_of,
    pairs,
    register_weight,
    ring,
)

SIXTEEN = 16


def rows(seed: int, replicas: int, numel: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).normal(3.0, 2.0, (replicas, numel))


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", MIXINGS)
@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_mixing_conserves_the_mean_and_draws_replicas_together(
    seed: int, name: str, replicas: int, dtype: type
) -> None:
    x_RN: np.ndarray = rows(seed, replicas).astype(dtype)
    before_RN, mixing = x_RN.copy(), MIXINGS[name]()
    mixed_RN = x_RN
    for index in range(30):
        mixed_RN = mixing.mix(mixed_RN, index)
    assert np.array_equal(x_RN, before_RN), "the input is only read"
    assert mixed_RN.dtype == dtype
    tolerance = 1e-12 if dtype is np.float64 else 1e-4
    assert np.abs(mixed_RN.mean(axis=0) - x_RN.mean(axis=0)).max() <= tolerance
    if replicas > 1:
        assert mixed_RN.std(axis=0).max() <= 0.5 * x_RN.std(axis=0).max()
    same_RN = np.repeat(x_RN[:1], replicas, axis=0)
    assert np.abs(mixing.mix(same_RN, 5) - same_RN).max() <= tolerance, "a fixed point"


@given(st.integers(1, 12), st.data())
def test_metropolis_is_symmetric_and_stochastic_of_any_graph(replicas: int, data) -> None:
    possible = [(i, j) for i in range(replicas) for j in range(i + 1, replicas)]
    edges = data.draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    weights_RR = metropolis(replicas, edges)
    assert np.array_equal(weights_RR, weights_RR.T)
    assert np.abs(weights_RR.sum(axis=1) - 1.0).max() <= 1e-12
    assert weights_RR.min() >= -1e-12


def rounds_to(share: float, *, is_accelerated: bool) -> int:
    """Steps until the disagreement of a ring of 16 is that share, from the slowest start."""
    angle_R = 2.0 * np.pi * np.arange(SIXTEEN) / SIXTEEN
    start_RN = np.cos(angle_R)[:, np.newaxis]
    for steps in range(1, 500):
        mixing = Ring(steps=steps, is_accelerated=is_accelerated)
        if np.linalg.norm(mixing.mix(start_RN, 0)) <= share * np.linalg.norm(start_RN):
            return steps
    raise AssertionError("never")


def test_shift_register_needs_less_than_half_of_the_plain_steps_on_a_ring() -> None:
    """From the slowest of all starts: 133 steps and 29."""
    plain, accelerated = (rounds_to(1e-3, is_accelerated=how) for how in (False, True))
    expected = np.log(1e-3) / np.log(contraction(metropolis(SIXTEEN, ring(SIXTEEN))))
    assert plain == np.ceil(expected)
    assert 2 * accelerated < plain


def test_more_steps_of_gossip_are_a_power_of_the_matrix(seed: int) -> None:
    weights_RR, x_RN = metropolis(8, ring(8)), rows(seed, 8)
    found_RN = Ring(steps=4).mix(x_RN, 0)
    assert np.allclose(found_RN, np.linalg.matrix_power(weights_RR, 4) @ x_RN)
    slow_RN = np.cos(2.0 * np.pi * np.arange(8) / 8)[:, np.newaxis]
    shrunk = np.linalg.norm(Ring(steps=4).mix(slow_RN, 0)) / np.linalg.norm(slow_RN)
    assert shrunk == pytest.approx(contraction(weights_RR) ** 4)


def test_register_of_two_steps_is_its_formula(seed: int) -> None:
    weights_RR, x_RN = metropolis(6, ring(6)), rows(seed, 6)
    omega = register_weight(weights_RR)
    first_RN = weights_RR @ x_RN
    expected_RN = (1 + omega) * weights_RR @ first_RN - omega * x_RN
    assert 0.0 < omega < 1.0
    assert np.allclose(Ring(steps=2, is_accelerated=True).mix(x_RN, 0), expected_RN)


@pytest.mark.parametrize("replicas", [1, 2, 5, 8])
def test_everybody_meets_one_other_and_another_one_next_time(replicas: int) -> None:
    met = [pairs(replicas, index) for index in range(40)]
    for edges in met:
        ends = [end for edge in edges for end in edge]
        assert len(set(ends)) == len(ends) == 2 * (replicas // 2)
    everybody = {edge for edges in met for edge in edges}
    assert len(everybody) == replicas * (replicas - 1) // 2
    assert Pairwise().copies(replicas) == 2 * (replicas // 2) / replicas


def test_round_of_no_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 0 steps"):
        Ring(steps=0)


def met(pace: AcidPace, seed: int, units: float = 60.0) -> tuple[TwoCopies, np.ndarray]:
    """A ring of 16 whose replicas meet once per unit each, at random times."""
    generator, edges = np.random.default_rng(seed), ring(SIXTEEN)
    copies, now = TwoCopies(rows(seed, SIXTEEN, 20), pace), 0.0
    start_RN = copies.x_RN.copy()
    while (now := now + generator.exponential(2.0 / SIXTEEN)) < units:
        copies.meet(edges[generator.integers(len(edges))], now)
    return copies, start_RN


def test_two_copies_conserve_their_sum_and_agree_sooner_than_one(seed: int) -> None:
    rates = dict.fromkeys(ring(SIXTEEN), 0.5)
    apart = []
    for pace in (PLAIN, pace_of(SIXTEEN, rates)):
        copies, start_RN = met(pace, seed)
        total_N = (copies.x_RN + copies.z_RN).sum(axis=0)
        assert np.abs(total_N - 2.0 * start_RN.sum(axis=0)).max() <= 1e-9
        apart.append(copies.x_RN.std(axis=0).mean() / start_RN.std(axis=0).mean())
    assert apart[0] >= 3.0 * apart[1]


def test_two_copies_that_do_not_drift_are_plain_gossip(seed: int) -> None:
    copies, _ = met(PLAIN, seed, units=5.0)
    assert np.array_equal(copies.x_RN, copies.z_RN)
    complete = {(i, j): 1.0 for i in range(8) for j in range(i + 1, 8)}
    pace = pace_of(8, complete)
    # chi_1 = chi_2 (R - 1) / R there: nothing to gain.
    assert pace.alpha == pytest.approx(0.5, abs=0.05)


def test_gradient_moves_both_copies_alike(seed: int) -> None:
    copies = TwoCopies(rows(seed, 4, 3), pace_of(4, dict.fromkeys(ring(4), 1.0)))
    step_N = np.ones(3)
    before_RN = copies.x_RN.copy()
    copies.gradient(2, step_N, 1.0)
    assert np.allclose(copies.x_RN[2], before_RN[2] - 1.0)
    assert np.allclose(copies.z_RN[2], before_RN[2] - 1.0)
    assert np.array_equal(copies.x_RN[[0, 1, 3]], before_RN[[0, 1, 3]])


TENSORS = (TensorSpec("a", (40, 50)), TensorSpec("bias", (7,)), TensorSpec("b", (30, 20)))
NUMEL = sum(tensor.numel for tensor in TENSORS)


def test_mean_of_strangers_keeps_their_variance(seed: int) -> None:
    """Ring of three: everybody mixes with everybody, so the mean has a third of it."""
    x_RN = rows(seed, 3, NUMEL).astype(np.float32)
    plain_RN, kept_RN = Ring().mix(x_RN, 0), Corrected(Ring(), TENSORS).mix(x_RN, 0)
    for span in (slice(0, 2000), slice(2007, NUMEL)):
        wanted = x_RN[:, span].var(axis=1).mean()
        assert plain_RN[:, span].var(axis=1) == pytest.approx(wanted / 3, rel=0.15)
        assert kept_RN[:, span].var(axis=1) == pytest.approx(wanted, rel=1e-4)
        assert np.allclose(kept_RN[:, span].mean(axis=1), plain_RN[:, span].mean(axis=1), atol=1e-4)
    assert np.array_equal(kept_RN[:, 2000:2007], plain_RN[:, 2000:2007]), "vectors as they come"


def test_mean_of_kin_and_constants_is_left_alone(seed: int) -> None:
    base_N = rows(seed, 1, NUMEL)[0]
    kin_RN = (base_N + 0.3 * rows(seed + 1, 4, NUMEL)).astype(np.float32)
    assert np.array_equal(Corrected(Ring(), TENSORS).mix(kin_RN, 0), Ring().mix(kin_RN, 0))
    flat_RN = np.ones((4, NUMEL), dtype=np.float32) * np.arange(1, 5)[:, np.newaxis]
    found_RN = Corrected(Ring(), TENSORS).mix(flat_RN.astype(np.float32), 0)
    assert np.isfinite(found_RN).all()
