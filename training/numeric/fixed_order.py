"""Small matrices in a fixed order of operations: what LAPACK and BLAS do not promise.

P rows of a matrix, at most the seats of a group
"""

import numpy as np
from numpy.typing import NDArray

from training.numeric.arithmetic import tree_sum

Matrix = NDArray[np.float64]
Floats = NDArray[np.float64]

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
