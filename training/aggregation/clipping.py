"""Rules that bound lengths: of whole vectors, and of cells.

P peers, N elements of a slice
"""

import numpy as np

from training.aggregation.linear import Linear
from training.aggregation.seam import Floats, Measured, median_of, shares_of
from training.aggregation.spectral import kept_shares
from training.numeric.arithmetic import Vector, weighted_sum
from training.numeric.gram import (
    NUM_LIMBS,
    Matrix,
    cell_gram,
    cell_squares,
    cells,
    limbs_of,
)

CELL_SLACK = 1.5
"""How much longer than the median a cell may be: honest cells differ more than whole vectors do."""

GUARD_SLACK = 1.5
"""How much longer than the median a whole vector may be before it is taken for no training."""


class NormClip(Linear):
    """The mean of rows no longer than the median. It bounds size only: a flipped sign passes."""

    def stats(self, slice_PN: Vector) -> Floats:
        """Squared norms alone as limbs, where no step before it asks for more."""
        if self._pre:
            return super().stats(slice_PN)
        rows, numel = slice_PN.shape
        total = np.zeros((NUM_LIMBS, rows, rows))
        diagonal = np.arange(rows)
        for span in cells(numel, self._cell_elements):
            total[:, diagonal, diagonal] += limbs_of(cell_squares(slice_PN[:, span]))
        return total.reshape(-1)

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """Shares times clip factors."""
        del f
        return shares_P * clip_factors(np.diagonal(gram_PP))


class NormGuard(NormClip):
    """EDiT's guard across peers: a row over 1.5 times the median norm is left out, the others are
    no longer than the median, and share the weight.

    Norms are compared as if all had taken equally many steps: a drift grows with their root. In
    toys (`tests/quality`, Q8) this costs nothing among the clean, unlike a test over each peer's
    past.
    """

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """Shares times clip factors, of those that are left."""
        del f
        steps_P = np.where(shares_P > 0.0, shares_P * len(shares_P), 1.0)
        norms_P = np.sqrt(np.diagonal(gram_PP) / steps_P)
        limit = median_of(norms_P)
        # The median itself is never over it, so somebody is left.
        is_kept_P = (norms_P <= GUARD_SLACK * limit).astype(np.float64)
        kept_P = is_kept_P * shares_P
        # Where all the kept have no tokens there is nothing to weigh by.
        weighed_P = shares_of(kept_P if kept_P.any() else is_kept_P)
        return weighed_P * clip_factors(norms_P * norms_P)


class TwoLevelCaf(Linear):
    """The rule of open runs: cells clipped, then whole vectors, then CAF.

    A cell is clipped to 1.5 times the median norm of that cell, or a liar puts its whole length
    into one slice; what is left of a vector is clipped to the median norm of those vectors. With
    three rows or fewer no lie is tolerated: the clipped mean.
    """

    def stats(self, slice_PN: Vector) -> Floats:
        """The Gram matrix of the clipped cells, as limbs."""
        return self.measure(slice_PN).stats

    def measure(self, slice_PN: Vector) -> Measured:
        """The stats, and the squared norms by which cells are clipped."""
        rows, numel = slice_PN.shape
        total = np.zeros((NUM_LIMBS, rows, rows))
        squares_CP = []
        for span in cells(numel, self._cell_elements):
            gram_PP = cell_gram(slice_PN[:, span])
            squares_CP.append(np.diagonal(gram_PP).copy())
            factors_P = clip_factors(squares_CP[-1], CELL_SLACK)
            total += limbs_of(factors_P[:, None] * factors_P * gram_PP)
        return Measured(total.reshape(-1), np.array(squares_CP))

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """The factors of CAF times those of the clip of whole vectors."""
        factors_P = clip_factors(np.diagonal(gram_PP))
        return factors_P * kept_shares(factors_P[:, None] * factors_P * gram_PP, shares_P, f)

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """Weighted sum of the clipped cells."""
        return self.combine_measured(slice_PN, coefficients, None)

    def combine_measured(
        self, slice_PN: Vector, coefficients: Vector, squares_CP: Floats | None
    ) -> Vector:
        """Weighted sum of the cells, clipped by their norms as they are known, or found here."""
        numel = slice_PN.shape[1]
        result_N = np.empty(numel, dtype=np.float32)
        spans = list(cells(numel, self._cell_elements))
        if squares_CP is None:
            squares_CP = np.array([cell_squares(slice_PN[:, span]) for span in spans])
        for span, squares_P in zip(spans, squares_CP, strict=True):
            result_N[span] = weighted_sum(slice_PN[:, span], _clipped(coefficients, squares_P))
        return result_N

    def row_factors(self, coefficients: Vector, squares_CP: Floats | None) -> Vector | None:
        """Those of a cell whose norms are known."""
        if squares_CP is None or len(squares_CP) != 1:
            return None
        return _clipped(coefficients, squares_CP[0])


def _clipped(coefficients: Vector, squares_P: Floats) -> Vector:
    """The factor of each row of one cell, which is clipped by these norms."""
    factors_P = clip_factors(squares_P, CELL_SLACK)
    clipped_P: Vector = (factors_P * coefficients.astype(np.float64)).astype(np.float32)
    return clipped_P


def clip_factors(squares_P: Floats, slack: float = 1.0) -> Floats:
    """What shortens each row to `slack` times the median norm, from squared norms; at most one."""
    norms_P = np.sqrt(squares_P)
    limit = slack * median_of(norms_P)
    is_long_P = norms_P > limit
    factors_P: Floats = np.where(is_long_P, limit / np.where(is_long_P, norms_P, 1.0), 1.0)
    return factors_P
