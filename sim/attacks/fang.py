"""Just outside of the honest values of each coordinate (Fang et al. 2020): against ranks."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, mean_of

_REACH = 2.0


class Fang(Attack):
    """Drawn between the extreme honest value on the wrong side and twice as far out."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        least_N, most_N = honest_HN.min(axis=0), honest_HN.max(axis=0)
        is_up_N = mean_of(honest_HN) > 0.0
        edge_N = np.where(is_up_N, least_N, most_N)
        # Downwards from a positive minimum is nearer to zero, from a negative one farther away.
        is_inwards_N = np.where(is_up_N, least_N > 0.0, most_N < 0.0)
        beyond_N = np.where(is_inwards_N, edge_N / _REACH, edge_N * _REACH)
        draws_BN = context.luck.random(own_BN.shape)
        sent_BN: Rows = edge_N + draws_BN * (beyond_N - edge_N)
        return sent_BN
