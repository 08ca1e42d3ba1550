"""Bit-exact sums and norms: the same bits on every machine.

P peers, N elements, B elements of a block

All is element-wise, one IEEE-rounded operation at a time, in numpy or compiled (`kernels`) with the
same bits. `np.sum`, `np.dot` and `np.linalg.norm` are not used: their order of addition depends on
the processor and the library.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from training.kernels import kernels_for

Vector = NDArray[np.float32]

BLOCK_ELEMENTS = 1 << 18
"""So many elements of all rows together are worked on at a time: 1 MiB, what a core's cache holds.
Blocks change no bit, for every operation is element-wise."""

_LONGEST_BLOCK = 1 << 14
_STRIPS, _STRIP_BLOCK = 16, 1 << 11


def blocks(rows: int, numel: int) -> Iterator[slice]:
    """Spans of the elements whose block over so many rows fits into a core's cache."""
    width = max(1, min(_LONGEST_BLOCK, BLOCK_ELEMENTS // max(1, rows)))
    for start in range(0, numel, width):
        yield slice(start, min(start + width, numel))


def joined(vectors: Sequence[Vector]) -> Vector:
    """The vectors of all fragments behind one another; of a single one that itself, no copy."""
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def weighted_sum(rows_PN: Vector, coefficients_P: Vector) -> Vector:
    """Sum over P of coefficient times row, first row first, every operation in float32.

    Rows with a coefficient of zero are left out: nothing is added, not a zero of either sign.
    Raises ValueError unless there are as many coefficients as rows.
    """
    assert rows_PN.dtype == coefficients_P.dtype == np.float32
    rows, numel = rows_PN.shape
    if len(coefficients_P) != rows:
        raise ValueError(f"{len(coefficients_P)} coefficients for {rows} rows")
    chosen = np.flatnonzero(coefficients_P)
    if not len(chosen):
        return np.zeros(numel, dtype=np.float32)
    listed, factors = [rows_PN[row] for row in chosen], coefficients_P[chosen]
    total_N = np.empty(numel, dtype=np.float32)
    if kernels := kernels_for(*listed):
        kernels.weighted_sum(listed, factors, total_N)
        return total_N
    spare_B = np.empty(min(numel, _LONGEST_BLOCK), dtype=np.float32)
    # Two rows, the sum and what is added to it: the rows behind them are not needed yet.
    for span in blocks(4, numel):
        sum_B = total_N[span]
        add_weighted([row_N[span] for row_N in listed], factors, sum_B, spare_B[: len(sum_B)])
    return total_N


def add_weighted(
    block_PB: Sequence[Vector] | Vector, coefficients_P: Vector, total_B: Vector, spare_B: Vector
) -> None:
    """`weighted_sum` of one block into `total_B`; `spare_B` is written to."""
    np.multiply(block_PB[0], coefficients_P[0], out=total_B)
    for row_B, coefficient in zip(block_PB[1:], coefficients_P[1:], strict=True):
        # Two statements of numpy, so never one fused multiply-add, whose last bit differs.
        np.multiply(row_B, coefficient, out=spare_B)
        np.add(total_B, spare_B, out=total_B)


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
    return _folded(level)


def _folded(level: NDArray[np.float64]) -> float:
    """The sum of a power of two of values by halves, which are overwritten."""
    width = len(level)
    while width > 1:
        width //= 2
        np.add(level[:width], level[width:], out=level[:width])
        level = level[:width]
    return float(level[0])


def squared_norm(x_N: Vector) -> float:
    """Sum of squares in float64 by `tree_sum`; a float32 squared is exact in float64."""
    numel = len(x_N)
    if is_folded(numel):
        kernels = kernels_for(x_N)
        return kernels.squared_norm(x_N) if kernels else _folded(_folded_squares(x_N))
    wide_N = np.multiply(x_N, x_N, dtype=np.float64)
    return tree_sum(wide_N)


def is_folded(numel: int) -> bool:
    """Whether the squares of so many elements are added up in strips as they are made: where the
    tree has no zeros, and strips have whole blocks of up to 2048."""
    return numel >= _STRIPS * _STRIP_BLOCK and not numel & (numel - 1)


def _folded_squares(x_N: Vector) -> NDArray[np.float64]:
    """The squares of a power of two of elements, after the first foldings of the tree: as whole
    vectors these would leave the cache, and each be read and written in memory."""
    rows = x_N.reshape(_STRIPS, -1)
    level = np.empty(rows.shape[1], dtype=np.float64)
    block = np.empty((_STRIPS, _STRIP_BLOCK), dtype=np.float64)
    for start in range(0, len(level), _STRIP_BLOCK):
        span = slice(start, start + _STRIP_BLOCK)
        block[...] = rows[:, span]
        np.multiply(block, block, out=block)
        half = _STRIPS // 2
        while half > 1:
            np.add(block[:half], block[half : 2 * half], out=block[:half])
            half //= 2
        np.add(block[0], block[1], out=level[span])
    return level


def all_finite(x_N: NDArray[np.floating]) -> bool:
    """Whether no element is infinite or not a number; true of nothing."""
    if kernels := kernels_for(x_N):
        peaks = kernels.peaks(x_N if x_N.ndim == 2 else x_N[None])
        return bool(np.isfinite(peaks).all())
    return bool(np.isfinite(x_N).all())
