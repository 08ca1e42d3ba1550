"""The largest push that stays among the honest (Shejwalkar and Houmansadr 2021), by bisection."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.attacks.seam import Vector, deviation_of, mean_of

_STEPS = 30
_MOST = 1e4

Floats = NDArray[np.float64]


def largest_hidden(honest_HN: Vector, is_hidden: Callable[[Floats, Floats], bool]) -> Vector:
    """mean - gamma x deviation, with the largest gamma for which `is_hidden`.

    It is asked with the squared distances of the vector to the honest, and of these to each other.
    """
    wide_HN = honest_HN.astype(np.float64)
    mean_N, push_N = mean_of(honest_HN), -deviation_of(honest_HN)
    among_HH = np.array([((wide_HN - row_N) ** 2).sum(axis=1) for row_N in wide_HN])
    low, high = 0.0, _MOST
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        away_H = ((wide_HN - (mean_N + middle * push_N)) ** 2).sum(axis=1)
        low, high = (middle, high) if is_hidden(away_H, among_HH) else (low, middle)
    return (mean_N + low * push_N).astype(np.float32)
