"""Nothing at all: the cheapest way to take a seat."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector


class Zero(Attack):
    """Zeros."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN, context
        return np.zeros_like(own_BN)
