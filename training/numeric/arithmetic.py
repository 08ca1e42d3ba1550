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


Matrix = NDArray[np.float64]
Floats = NDArray[np.float64]

# Small matrices, in a fixed order of operations --------------------------------------------------

_SQUARINGS = 10
"""As good as 1024 steps of power iteration."""

_SWEEPS_MAX = 16
_ROTATION_LEAST = 1e-15


def dot(a_P: Floats, b_P: Floats) -> float:
    """Sum of products by `tree_sum`."""
    return tree_sum(a_P * b_P)


def product(a_PQ: Matrix, b_QR: Matrix) -> Matrix:
    """Matrix product, added up in ascending Q. A symmetric matrix times itself is symmetric."""
    total_PR = a_PQ[:, :1] * b_QR[:1]
    for inner in range(1, a_PQ.shape[1]):
        total_PR += a_PQ[:, inner, None] * b_QR[inner]
    return total_PR


def times(a_PQ: Matrix, b_Q: Floats) -> Floats:
    """Matrix times vector, added up in ascending Q."""
    return product(a_PQ, b_Q[:, None])[:, 0]


def dominant(a_PP: Matrix) -> Floats:
    """The unit eigenvector of the largest eigenvalue of a symmetric, positive matrix.

    Power iteration by squaring, from the unit vector of the largest diagonal entry: it ends in the
    top eigenvector, or in some vector of the space of eigenvalues that are nearly as large.
    """
    start = int(np.argmax(np.diagonal(a_PP)))
    power_PP = a_PP
    for _ in range(_SQUARINGS):
        _, exponent = np.frexp(np.abs(power_PP).max())
        # By a power of two, which is exact: the matrix neither overflows nor fades.
        scaled_PP = np.ldexp(power_PP, -int(exponent))
        power_PP = product(scaled_PP, scaled_PP)
    found_P = power_PP[:, start]
    length = float(np.sqrt(dot(found_P, found_P)))
    if length == 0.0:
        found_P = np.zeros(len(a_PP))
        found_P[start] = length = 1.0
    return found_P / length


def eigen(a_PP: Matrix) -> tuple[Floats, Matrix]:
    """Eigenvalues, largest first, and eigenvectors as columns, of a symmetric matrix.

    Cyclic Jacobi rotations: sums, products, quotients and roots, in one order.
    """
    work_PP, vectors_PP = a_PP.copy(), np.eye(len(a_PP))
    least = _ROTATION_LEAST * float(np.abs(np.diagonal(a_PP)).max())
    for _ in range(_SWEEPS_MAX):
        is_moved = False
        for first in range(len(work_PP) - 1):
            for second in range(first + 1, len(work_PP)):
                if abs(work_PP[first, second]) > least:
                    _rotate(work_PP, vectors_PP, first, second)
                    is_moved = True
        if not is_moved:
            break
    values_P = np.diagonal(work_PP).copy()
    order = np.argsort(-values_P, kind="stable")
    return values_P[order], vectors_PP[:, order]


def _rotate(work_PP: Matrix, vectors_PP: Matrix, first: int, second: int) -> None:
    """One rotation, in place, that makes an entry beside the diagonal zero."""
    angle = (work_PP[second, second] - work_PP[first, first]) / (2.0 * work_PP[first, second])
    sign = 1.0 if angle >= 0.0 else -1.0
    tangent = sign / (abs(angle) + np.sqrt(angle * angle + 1.0))
    cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    for matrix_PP in (work_PP, vectors_PP):
        left_P, right_P = matrix_PP[:, first].copy(), matrix_PP[:, second].copy()
        matrix_PP[:, first] = cosine * left_P - sine * right_P
        matrix_PP[:, second] = sine * left_P + cosine * right_P
    top_P, low_P = work_PP[first].copy(), work_PP[second].copy()
    work_PP[first] = cosine * top_P - sine * low_P
    work_PP[second] = sine * top_P + cosine * low_P
