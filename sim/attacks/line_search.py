"""How hard to push: the size that moves the rule itself farthest from the honest mean."""

from collections.abc import Callable

import numpy as np

from sim.attacks.seam import Context, Vector, mean_of, repeated

EVALUATIONS = 20
START, STEP, RATIO = 0.0, 10.0, 0.6
"""Expand by doubling while it pays, then look on both sides with shrinking steps."""


def worst(
    honest_HN: Vector, own_BN: Vector, context: Context, vector_of: Callable[[float], Vector]
) -> Vector:
    """Of the vectors by size the one that, sent by all liars, does the most harm."""
    mean_N = mean_of(honest_HN)

    def damage(size: float) -> float:
        sent_BN = repeated(vector_of(size), own_BN).astype(np.float32)
        found_N = context.rule(np.concatenate([honest_HN, sent_BN]))
        return float(np.linalg.norm(found_N.astype(np.float64) - mean_N))

    best, most, step = START, damage(START), STEP
    left = EVALUATIONS - 1
    while left > 0 and (found := damage(best + step)) > most:
        best, most, step, left = best + step, found, 2.0 * step, left - 1
    while left > 1:
        step *= RATIO
        for size in (best + step, max(START, best - step)):
            left -= 1
            if (found := damage(size)) > most:
                best, most = size, found
                break
    return vector_of(best)
