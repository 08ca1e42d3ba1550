"""IPM with the epsilon that the rule in use bears worst, found round by round."""

import numpy as np

from sim.attacks.line_search import worst
from sim.attacks.seam import Attack, Context, Rows, Vector, mean_of, repeated


class SearchedIpm(Attack):
    """-epsilon x mean, epsilon by line search against the rule."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        mean_N = mean_of(honest_HN)

        def sent(epsilon: float) -> Vector:
            return (-epsilon * mean_N).astype(np.float32)

        return repeated(worst(honest_HN, own_BN, context, sent), own_BN)
