"""Rules that look at directions: where contributions spread most, and where they agree.

P peers. All in the Gram matrix: what is spanned by the rows needs no rows.
"""

import numpy as np

from training.aggregation.linear import Linear
from training.aggregation.seam import Floats, median_of, shares_of
from training.numeric.arithmetic import tree_sum
from training.numeric.fixed_order import dominant, dot, eigen, product, times
from training.numeric.gram import Matrix

_WEIGHT_STEP = 2.0**20
"""Weights are rounded to a 2^20th: what is as good as zero is zero."""

_REWEIGHTINGS = 5
_FLAG_EPSILON = 1e-7
_FLAG_STOP = 1e-6
_FLAG_RANK_LEAST = 1e-9
"""Of the largest eigenvalue: directions below are noise of the arithmetic."""


class Caf(Linear):
    """Covariance-bound-agnostic filter (Allouah, Guerraoui and Stephan 2025).

    Rows are weighted down by how far they lie along the direction of the largest spread, until no
    more than P - 2 f are left; the mean with the least spread on the way is the result.
    """

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """Capped shares among the kept, as far as they are kept."""
        return kept_shares(gram_PP, shares_P, f)


def kept_shares(gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
    """The factors of CAF."""
    kept_P = filtered(gram_PP, f)
    found_P = kept_P * shares_P
    return shares_of(found_P if found_P.any() else kept_P)


def filtered(gram_PP: Matrix, f: int) -> Floats:
    """How far CAF keeps each row, from 0 to 1. Ends after at most P steps: each removes a row."""
    rows = len(gram_PP)
    weights_P = best_P = np.ones(rows)
    least = np.inf
    while tree_sum(weights_P) > rows - 2 * f:
        mean_P = shares_of(weights_P)
        products_P = times(gram_PP, mean_P)
        centred_PP = gram_PP - products_P[:, None] - products_P + dot(mean_P, products_P)
        roots_P = np.sqrt(mean_P)
        spread_PP = roots_P[:, None] * roots_P * centred_PP
        top_P = dominant(spread_PP)
        value = dot(top_P, times(spread_PP, top_P))
        if value < least:
            least, best_P = value, weights_P
        far_P = times(centred_PP, roots_P * top_P)
        far_P *= far_P
        # The farthest of those that are left: one that is removed already would stay the farthest,
        # and nobody else would ever go.
        farthest = float(far_P[weights_P > 0.0].max())
        if farthest <= 0.0:
            break
        next_P = np.maximum(weights_P * (1.0 - far_P / farthest), 0.0)
        weights_P = np.rint(next_P * _WEIGHT_STEP) / _WEIGHT_STEP
    return best_P


class Flag(Linear):
    """Flag aggregator (Almansoori et al. 2023): the mean direction, within the subspace that most
    rows agree on, at the median length.

    The subspace has half as many dimensions as there are rows; rows that lie well inside weigh
    more in the next estimate of it. The public one loses the length.
    """

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """The factors of the projected mean direction."""
        del f
        norms_P = np.sqrt(np.diagonal(gram_PP))
        is_there_P = norms_P > 0.0
        if not is_there_P.any():
            return shares_P
        inverse_P = np.where(is_there_P, 1.0 / np.where(is_there_P, norms_P, 1.0), 0.0)
        cosines_PP = inverse_P[:, None] * inverse_P * gram_PP
        basis_PM = _subspace(cosines_PP)
        along_M = times(np.ascontiguousarray(basis_PM.T), times(cosines_PP, shares_P))
        return times(basis_PM, along_M) * inverse_P * median_of(norms_P)


def _subspace(cosines_PP: Matrix) -> Matrix:
    """The factors that make an orthonormal basis of unit rows."""
    dimensions = (len(cosines_PP) + 2) // 2
    scales_P, objective = np.ones(len(cosines_PP)), np.inf
    for step in range(_REWEIGHTINGS):
        scaled_PP = scales_P[:, None] * scales_P * cosines_PP
        values_P, vectors_PP = eigen(scaled_PP)
        kept = max(1, int((values_P[:dimensions] > _FLAG_RANK_LEAST * values_P[0]).sum()))
        basis_PM = scales_P[:, None] * vectors_PP[:, :kept] / np.sqrt(values_P[:kept])
        inside_PM = product(cosines_PP, basis_PM)
        shares_P = np.array([min(1.0, dot(row_M, row_M)) for row_M in inside_PM])
        before, objective = objective, tree_sum(np.sqrt(1.0 - shares_P))
        if step == _REWEIGHTINGS - 1 or before - objective < _FLAG_STOP:
            break
        scales_P = 1.0 / np.sqrt(np.sqrt(1.0 - shares_P + _FLAG_EPSILON))
    return basis_PM
