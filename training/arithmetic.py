"""Bit-exact sums and norms: the same bits on every machine.

P peers, N elements

All is numpy, element-wise, one IEEE-rounded operation at a time. `np.sum`, `np.dot` and
`np.linalg.norm` are not used: their order of addition depends on the processor and the library.
"""

import math

import numpy as np
from numpy.typing import NDArray


def weighted_sum(
    rows_PN: NDArray[np.float32], coefficients_P: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Sum over P of coefficient times row, first row first, every operation in float32."""
    assert rows_PN.dtype == coefficients_P.dtype == np.float32
    total_N: NDArray[np.float32] = rows_PN[0] * coefficients_P[0]
    for row_N, coefficient in zip(rows_PN[1:], coefficients_P[1:], strict=True):
        # Two statements of numpy, so never one fused multiply-add, whose last bit differs.
        total_N += row_N * coefficient
    return total_N


def tree_sum(values_N: NDArray[np.float64]) -> float:
    """Float64 sum by a fixed tree: pad with zeros to a power of two, add halves until one is left.

    The sum of nothing is 0.
    """
    numel = len(values_N)
    if numel == 0:
        return 0.0
    width = 1 << (numel - 1).bit_length()
    level = np.zeros(width, dtype=np.float64)
    level[:numel] = values_N
    while width > 1:
        width //= 2
        level = level[:width] + level[width:]
    return float(level[0])


def squared_norm(x_N: NDArray[np.float32]) -> float:
    """Sum of squares in float64 by `tree_sum`; a float32 squared is exact in float64."""
    wide_N = x_N.astype(np.float64)
    return tree_sum(wide_N * wide_N)


def cell_norms(x_N: NDArray[np.float32], cell_elements: int) -> tuple[float, ...]:
    """L2 norm of each cell, in order; the root is exact IEEE."""
    return tuple(
        math.sqrt(squared_norm(x_N[start : start + cell_elements]))
        for start in range(0, len(x_N), cell_elements)
    )


def all_finite(x_N: NDArray[np.floating]) -> bool:
    """Whether no element is infinite or not a number; true of nothing."""
    return bool(np.isfinite(x_N).all())
