"""ALIE with the z that the rule in use bears worst, found round by round."""

import numpy as np

from sim.attacks.line_search import worst
from sim.attacks.seam import Attack, Context, Rows, Vector, deviation_of, mean_of, repeated


class SearchedAlie(Attack):
    """mean - z deviations, z by line search against the rule."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        mean_N, deviation_N = mean_of(honest_HN), deviation_of(honest_HN)

        def sent(z: float) -> Vector:
            return (mean_N - z * deviation_N).astype(np.float32)

        return repeated(worst(honest_HN, own_BN, context, sent), own_BN)
