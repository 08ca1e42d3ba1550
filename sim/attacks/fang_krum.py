"""As far against the mean as Krum still picks it (Fang et al. 2020)."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, mean_of, repeated
from training.aggregation import AGGREGATORS

_HALVINGS = 20


class FangKrum(Attack):
    """-lambda x sign of the mean: lambda begins where no larger one is picked (theorem 1 of the
    paper), and is halved until Krum picks it."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        sign_N = np.sign(mean_of(honest_HN))
        size = _most(honest_HN, len(own_BN), float(np.abs(sign_N).sum()))
        rule = AGGREGATORS["krum"](f=len(own_BN))
        for _ in range(_HALVINGS):
            sent_BN = repeated((-size * sign_N).astype(np.float32), own_BN)
            if rule(np.concatenate([honest_HN, sent_BN])).scores[len(honest_HN) :].any():
                break
            size *= 0.5
        return sent_BN


def _most(honest_HN: Vector, liars: int, elements: float) -> float:
    """No lambda above it is picked: of all honest rows the best one has the lower score."""
    wide_HN, honest = honest_HN.astype(np.float64), len(honest_HN)
    squares_HH = np.array([((wide_HN - row_N) ** 2).sum(axis=1) for row_N in wide_HN])
    # The first column is the row itself; with the liars, P - f - 2 others are near.
    nearest_HK = np.sort(squares_HH, axis=1)[:, 1 : max(2, honest - 1)]
    score = nearest_HK.sum(axis=1).min() / max(1, honest - liars - 1)
    score_length, longest = float(np.sqrt(score)), float(np.linalg.norm(wide_HN, axis=1).max())
    return (score_length + longest) / float(np.sqrt(max(1.0, elements)))
