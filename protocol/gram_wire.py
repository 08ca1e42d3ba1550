"""Gram matrices as they travel, and what no vectors can have for one (R7).

P rows; the upper triangle row by row, little-endian float64. How the numbers are made and added up
is in `training.numeric.gram`.
"""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

LOWEST_BIT = -160
"""What is worth less is dropped: the square of an element of 1e-24."""

_VALUE_MAX = 2.0**300
_SPREAD_SLACK = 1.0 + 1e-9
_DROPPED = 2.0 ** (LOWEST_BIT + 20)
"""At least what is dropped below the lowest bit in all cells of a slice together."""


def wire_bytes(rows: int) -> int:
    """Bytes of the wire form for so many rows."""
    return 4 * rows * (rows + 1)


def from_wire(data: bytes) -> Matrix:
    """The (P, P) matrix of a wire form. Raises ValueError for what no rows can have."""
    numbers = len(data) // 8
    rows = int(np.sqrt(2.0 * numbers + 0.25) - 0.5)
    if not rows or len(data) != wire_bytes(rows):
        raise ValueError(f"a Gram matrix of {len(data)} bytes")
    upper = np.frombuffer(data, dtype="<f8").astype(np.float64)
    # Written so that what is not a number is refused, too.
    if not (np.abs(upper) <= _VALUE_MAX).all():
        raise ValueError("a Gram matrix with a number out of range")
    found_PP = np.zeros((rows, rows))
    found_PP[np.triu_indices(rows)] = upper
    found_PP.T[np.triu_indices(rows)] = upper
    squares_P = np.diagonal(found_PP)
    if (squares_P < 0.0).any():
        raise ValueError("a Gram matrix with a negative square")
    room_P = squares_P + _DROPPED
    if (found_PP**2 > room_P[:, None] * room_P * _SPREAD_SLACK).any():
        raise ValueError("a Gram matrix with a product above the lengths of its rows")
    return found_PP
