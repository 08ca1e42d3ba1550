"""As far against the mean as Krum still picks it (Fang et al. 2020)."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, length_of, mean_of, repeated
from training.aggregation import AGGREGATORS

_HALVINGS = 20


class FangKrum(Attack):
    """-lambda x sign of the mean: lambda is halved until Krum picks it."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        sign_N = np.sign(mean_of(honest_HN))
        size = length_of(honest_HN) / np.sqrt(max(1.0, float(np.abs(sign_N).sum())))
        rule = AGGREGATORS["krum"](f=len(own_BN))
        for _ in range(_HALVINGS):
            sent_BN = repeated((-size * sign_N).astype(np.float32), own_BN)
            if rule(np.concatenate([honest_HN, sent_BN])).scores[len(honest_HN) :].any():
                break
            size *= 0.5
        return sent_BN
