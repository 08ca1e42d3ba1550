"""Sums in one order for all, against exact references."""

import hashlib
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from training.numeric.arithmetic import (
    all_finite,
    squared_norm,
    tree_sum,
    weighted_sum,
)


def rows_of(seed: int, peers: int = 5, numel: int = 1000) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.uniform(-6, 6, size=(peers, 1))
    rows_PN = generator.normal(size=(peers, numel)) * scales
    return rows_PN.astype(np.float32)


def test_weighted_sum_equals_a_scalar_loop_to_the_bit(seed: int) -> None:
    rows_PN = rows_of(seed, numel=50)
    coefficients_P = np.random.default_rng(seed).uniform(0, 1, 5).astype(np.float32)
    total_N = weighted_sum(rows_PN, coefficients_P)
    for column in range(50):
        total = np.float32(rows_PN[0, column] * coefficients_P[0])
        for row in range(1, 5):
            product = np.float32(rows_PN[row, column] * coefficients_P[row])
            total = np.float32(total + product)
        assert total_N[column].tobytes() == total.tobytes()


def test_weighted_sum_leaves_rows_of_no_weight_out(seed: int) -> None:
    rows_PN = rows_of(seed, numel=40_000)
    rows_PN[:, ::7] = 0.0
    chosen_N = weighted_sum(rows_PN, np.array([0, 0, 1, 0, -0.0], dtype=np.float32))
    assert chosen_N.tobytes() == rows_PN[2].tobytes()
    some_P = np.array([0, 0.3, 0, 0, 0.7], dtype=np.float32)
    alone_N = weighted_sum(rows_PN[[1, 4]], some_P[[1, 4]])
    assert weighted_sum(rows_PN, some_P).tobytes() == alone_N.tobytes()
    nothing_N = weighted_sum(rows_PN, np.zeros(5, dtype=np.float32))
    assert nothing_N.tobytes() == np.zeros(40_000, dtype=np.float32).tobytes()


def test_weighted_sum_leaves_its_inputs_alone(seed: int) -> None:
    rows_PN = rows_of(seed)
    before_PN = rows_PN.copy()
    weighted_sum(rows_PN, np.ones(5, dtype=np.float32))
    assert np.array_equal(rows_PN, before_PN)


def test_weighted_sum_refuses_fewer_coefficients_than_rows(seed: int) -> None:
    with pytest.raises(ValueError, match="4 coefficients for 5 rows"):
        weighted_sum(rows_of(seed), np.ones(4, dtype=np.float32))


def tree_reference(values: list[float]) -> float:
    while len(values) & (len(values) - 1):
        values = [*values, 0.0]
    while len(values) > 1:
        half = len(values) // 2
        values = [values[i] + values[i + half] for i in range(half)]
    return values[0]


@pytest.mark.parametrize("numel", [1, 2, 3, 7, 8, 9, 1000])
def test_tree_sum_equals_the_tree_of_a_scalar_loop_to_the_bit(seed: int, numel: int) -> None:
    values_N = rows_of(seed, peers=1, numel=numel)[0].astype(np.float64) * 1.1
    assert tree_sum(values_N) == tree_reference(values_N.tolist())
    assert tree_sum(values_N) == pytest.approx(math.fsum(values_N), rel=1e-9, abs=1e-9)


def test_tree_sum_of_nothing_is_zero() -> None:
    assert tree_sum(np.empty(0)) == 0.0


@pytest.mark.parametrize("numel", [1, 2, 3, 8, 1000, 1024, 4097, 1 << 15, 1 << 16, 1 << 18])
def test_squared_norm_is_the_tree_of_the_squares_to_the_bit(seed: int, numel: int) -> None:
    x_N = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
    squares = [float(value) * float(value) for value in x_N]
    assert squared_norm(x_N) == tree_reference(squares)


def test_squared_norm_survives_values_whose_square_is_no_float32() -> None:
    assert squared_norm(np.array([1e30, -1e30], dtype=np.float32)) == pytest.approx(2e60)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_sees_one_bad_element(bad: float) -> None:
    x_N = np.zeros(1000, dtype=np.float32)
    assert all_finite(x_N)
    x_N[999] = bad
    assert not all_finite(x_N)


def test_golden_bits_of_a_round() -> None:
    """What every machine must compute: a change here is a new ARITHMETIC_VERSION."""
    raw = np.random.Philox(key=7).random_raw(4 * 999)
    rows_PN = ((raw >> 40).astype(np.float32) * np.float32(2**-23) - np.float32(1)).reshape(4, 999)
    coefficients_P = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
    total_N = weighted_sum(rows_PN, coefficients_P)
    assert hashlib.sha256(total_N.astype("<f4").tobytes()).hexdigest()[:16] == "19b7786da74e87a9"
    assert squared_norm(total_N).hex() == "0x1.a48905ad1ef42p+6"
