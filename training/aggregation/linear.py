"""Rules whose result is a sum of the rows: whole vectors are judged, slices are summed."""

import numpy as np

from training.aggregation.mixing import prepared
from training.aggregation.seam import Floats, Rule, capped_shares, shares_of, tolerated
from training.numeric.arithmetic import Vector, weighted_sum
from training.numeric.fixed_order import times
from training.numeric.gram import Matrix, gram_of, gram_stats


class Linear(Rule):
    """A rule that needs the Gram matrix of the rows alone, and gives a factor to each."""

    @property
    def uses_stats(self) -> bool:
        """It does."""
        return True

    def stats(self, slice_PN: Vector) -> Floats:
        """The exact Gram matrix of the slice, as `gram_stats`."""
        return gram_stats(slice_PN, self._cell_elements)

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """The factor of each row."""
        shares_P = capped_shares(weights_P)
        rows = len(weights_P)
        if rows == 1:
            return np.ones(1, dtype=np.float32)
        gram_PP, f = gram_of(stats, rows), self.faults(rows)
        if not self._pre:
            return self.of_gram(gram_PP, shares_P, f).astype(np.float32)
        mixed = prepared(self._pre, gram_PP, f)
        # A mixed row has the mean share of what it is made of, however much that is shortened.
        whole_R = times(mixed.mixing_RP, np.ones(rows))
        shares_R = shares_of(times(mixed.mixing_RP, shares_P) / np.where(whole_R > 0, whole_R, 1.0))
        found_R = self.of_gram(mixed.gram_RR, shares_R, self.faults(len(shares_R), f))
        return times(mixed.mixing_RP.T, found_R).astype(np.float32)

    def faults(self, rows: int, f: int | None = None) -> int:
        """How many of so many rows this rule treats as lies."""
        return tolerated(self._f if f is None else f, rows)

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """The factor of each row; `shares_P` are the capped shares of the tokens."""
        raise NotImplementedError

    def row_factors(self, coefficients: Vector, squares_CP: Floats | None) -> Vector | None:
        """The coefficients."""
        del squares_CP
        return coefficients

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """Weighted sum in the order of the rows."""
        return weighted_sum(slice_PN, coefficients)


class Mean(Linear):
    """The mean weighted by tokens: the rule of runs among friends. One liar ruins it."""

    @property
    def uses_stats(self) -> bool:
        """Only where steps before it do."""
        return bool(self._pre)

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """Share of the tokens, uncapped: nobody lies."""
        if self._pre:
            return super().coefficients(stats, weights_P)
        return shares_of(weights_P).astype(np.float32)

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """The shares."""
        del gram_PP, f
        return shares_P


def squared_distances(gram_PP: Matrix) -> Matrix:
    """Between all rows, from their products; zero from a row to itself."""
    squares_P = np.diagonal(gram_PP)
    found_PP = np.maximum(squares_P[:, None] + squares_P[None, :] - 2.0 * gram_PP, 0.0)
    np.fill_diagonal(found_PP, 0.0)
    return found_PP
