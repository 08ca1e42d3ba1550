"""Rules that judge whole vectors, and steps before a rule: all in the Gram matrix of the rows.

P peers, N elements of a slice, R rows after a step

What is spanned by the rows needs no rows: lengths, distances, directions and centres follow from
their products. Most rules give a factor to each row, by which slices are summed.
"""

from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from training.aggregation.coordinates import Coordinates, Median, Nearest, TrimmedMean
from training.aggregation.seam import (
    Floats,
    Measured,
    Mixer,
    PreStep,
    Rule,
    capped_shares,
    median_of,
    prepared,
    shares_of,
    tolerated,
)
from training.numeric.arithmetic import (
    Vector,
    dominant,
    dot,
    eigen,
    product,
    times,
    tree_sum,
    weighted_sum,
)
from training.numeric.gram import (
    CELL_ELEMENTS,
    NUM_LIMBS,
    Matrix,
    cell_gram,
    cell_squares,
    cells,
    gram_of,
    gram_stats,
    limbs_of,
)


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


_WEIGHT_STEP = 2.0**20
"""Weights are rounded to a 2^20th: what is as good as zero is zero."""

_REWEIGHTINGS = 5
_FLAG_EPSILON = 1e-7
_FLAG_STOP = 1e-6
_FLAG_RANK_LEAST = 1e-9
"""Of the largest eigenvalue: directions below are noise of the arithmetic."""


# Directions: where contributions spread most, and where they agree -------------------------------


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


CELL_SLACK = 1.5
"""How much longer than the median a cell may be: honest cells differ more than whole vectors do."""

GUARD_SLACK = 1.5
"""How much longer than the median a whole vector may be before it is taken for no training."""


# Lengths: of whole vectors, and of cells ---------------------------------------------------------


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


# Distances to others (Blanchard et al. 2017; Mhamdi et al. 2018) ---------------------------------


def krum_order(distances_PP: Matrix, neighbours: int) -> NDArray[np.intp]:
    """Rows by score, the sum of squared distances to so many nearest others; the lowest first.

    Two rows that are each other's only neighbour have one score: then the sum to all others counts,
    and the number of the row only where rows are equal.
    """
    rows = len(distances_PP)
    # The first column is the row itself, at distance zero.
    others_PP = np.sort(distances_PP, axis=1)[:, 1:]
    near = max(1, min(neighbours, rows - 1))
    scores_P = np.array([tree_sum(others_P[:near]) for others_P in others_PP])
    totals_P = np.array([tree_sum(others_P) for others_P in others_PP])
    return np.lexsort((totals_P, scores_P))


class Krum(Linear):
    """The one row with the lowest score, which is its distance to its P - f - 2 nearest others.

    `neighbours`: another number of others; public libraries differ in it.
    """

    def __init__(
        self,
        f: int | None = None,
        *,
        cell_elements: int = CELL_ELEMENTS,
        pre: Sequence[PreStep] = (),
        neighbours: int | None = None,
    ) -> None:
        super().__init__(f, cell_elements=cell_elements, pre=pre)
        self._neighbours = neighbours

    def faults(self, rows: int, f: int | None = None) -> int:
        """At most what leaves every row a neighbour that is honest: P >= 2 f + 3."""
        return tolerated(self._f if f is None else f, rows, (rows - 3) // 2)

    def chosen(self, gram_PP: Matrix, f: int, count: int) -> NDArray[np.intp]:
        """The numbers of the rows with the lowest scores; of equal ones the first."""
        count_near = len(gram_PP) - f - 2 if self._neighbours is None else self._neighbours
        return krum_order(squared_distances(gram_PP), count_near)[:count]

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """One for the chosen row."""
        del shares_P
        found_P = np.zeros(len(gram_PP))
        found_P[self.chosen(gram_PP, f, 1)] = 1.0
        return found_P


class MultiKrum(Krum):
    """The mean, weighted by capped tokens, of the P - f rows with the lowest scores."""

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """Shares among the chosen rows."""
        is_chosen_P = np.zeros(len(gram_PP))
        is_chosen_P[self.chosen(gram_PP, f, len(gram_PP) - f)] = 1.0
        found_P = is_chosen_P * shares_P
        # Where all the chosen have no tokens there is nothing to weigh by.
        return shares_of(found_P if found_P.any() else is_chosen_P)


class Bulyan(Nearest):
    """Of P - 2 f rows that Krum chooses one after the other, of each coordinate the mean of the
    P - 4 f values nearest to the median. It needs P >= 4 f + 3; with fewer rows f is smaller.
    """

    @property
    def uses_stats(self) -> bool:
        """Krum does."""
        return True

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """A row of the mixing for each that is chosen."""
        shares_of(weights_P)
        rows = len(weights_P)
        if rows == 1:
            return np.ones(1, dtype=np.float32)
        f = self.faults(rows, rows)
        mixed = prepared(self._pre, gram_of(stats, rows), f)
        chosen = _one_by_one(squared_distances(mixed.gram_RR), f)
        return mixed.mixing_RP[chosen].astype(np.float32)

    def faults(self, peers: int, rows: int) -> int:
        """A quarter at most."""
        del rows
        return tolerated(self._f, peers, (peers - 3) // 4)

    def dropped(self, rows: int, f: int) -> int:
        """Twice f, while something is left."""
        return min(2 * f, rows - 1)


def _one_by_one(distances_PP: Matrix, f: int) -> list[int]:
    """Rows that Krum chooses without replacement, in ascending order: all but 2 f."""
    left, found = list(range(len(distances_PP))), []
    for _ in range(max(1, len(distances_PP) - 2 * f)):
        among = distances_PP[np.ix_(left, left)]
        best = int(krum_order(among, len(left) - f - 2)[0]) if len(left) > 1 else 0
        found.append(left.pop(best))
    return sorted(found)


_WEISZFELD_STEPS = 64
_WEISZFELD_STOP = 1e-12
"""Of the factors: the point stands still then."""

_SMOOTHING = 1e-6
"""Of the median norm: the least distance, where the point falls upon a row."""

_CLIP_STEPS = 50
_CLIP_STOP = 1e-6
"""Of the radius."""


# Centres: every row pulls, none harder than another ----------------------------------------------


class GeometricMedian(Linear):
    """The point with the least sum of distances: smoothed Weiszfeld steps (Pillutla et al. 2019).

    It starts from the mean of the half of the rows that lies closest together around one of them,
    not from zero or the mean, which one large row moves anywhere.
    """

    def of_gram(self, gram_PP: Matrix, shares_P: Floats, f: int) -> Floats:
        """The factors of the point."""
        del f
        rows = len(gram_PP)
        distances_PP = np.sort(squared_distances(gram_PP), axis=1)
        half = rows // 2 + 1
        middle = int(np.argmin(distances_PP[:, half - 1]))
        nearest = np.argsort(squared_distances(gram_PP)[middle], kind="stable")[:half]
        point_P = np.zeros(rows)
        point_P[nearest] = 1.0 / half
        least = _SMOOTHING * median_of(np.sqrt(np.diagonal(gram_PP)))
        for _ in range(_WEISZFELD_STEPS):
            lengths_P = np.maximum(np.sqrt(_squares_from(gram_PP, point_P)), least)
            if not lengths_P.all():
                break  # All rows are zero.
            before_P, point_P = point_P, shares_of(shares_P / lengths_P)
            if np.abs(point_P - before_P).max() <= _WEISZFELD_STOP:
                break
        return point_P


class CenteredClip(Coordinates):
    """Centered clipping (Karimireddy, He and Jaggi 2021) of every cell by itself.

        v <- v + sum of share_i (x_i - v) min(1, tau / |x_i - v|)

    from the median of each coordinate, with tau the median distance from there, frozen. No message
    is needed for it. All steps are taken in the Gram matrix of the rows and the median, so that
    many cost no more than one.
    """

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """Capped shares; or how rows are mixed before."""
        if self._pre and len(weights_P) > 1:
            return super().coefficients(stats, weights_P)
        return capped_shares(weights_P).astype(np.float32)

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """Cell by cell."""
        rows, numel = len(coefficients), slice_PN.shape[1]
        shares = coefficients if coefficients.ndim == 1 else np.full(rows, 1.0 / rows)
        mixer = Mixer(coefficients) if coefficients.ndim == 2 else None
        equal = np.full(rows, 1.0 / rows, dtype=np.float32)
        median, result_N = Median(), np.empty(numel, dtype=np.float32)
        for span in cells(numel, self._cell_elements):
            with_median = np.empty((rows + 1, span.stop - span.start), dtype=np.float32)
            if mixer is None:
                with_median[:rows] = slice_PN[:, span]
            else:
                mixer.mix(slice_PN[:, span], list(with_median[:rows]), with_median[rows])
            with_median[rows] = median.combine(with_median[:rows], equal)
            factors = _clipped_centre(cell_gram(with_median), shares.astype(np.float64))
            result_N[span] = weighted_sum(with_median, factors.astype(np.float32))
        return result_N


def _clipped_centre(gram: Matrix, shares_P: Floats) -> Floats:
    """The factors of the centre; the last row is where it starts."""
    point = np.zeros(len(gram))
    point[-1] = 1.0
    radius = median_of(np.sqrt(_squares_from(gram, point))[:-1])
    for _ in range(_CLIP_STEPS):
        lengths_P = np.sqrt(_squares_from(gram, point))[:-1]
        far_P = lengths_P > radius
        pulls_P = shares_P * np.where(far_P, radius / np.where(far_P, lengths_P, 1.0), 1.0)
        # Whatever the rows do not pull stays where it was.
        stays = max(0.0, 1.0 - tree_sum(pulls_P))
        before, point = point, stays * point
        point[:-1] += pulls_P
        step = point - before
        moved = max(0.0, dot(step, times(gram, step)))
        if moved <= (_CLIP_STOP * radius) ** 2:
            break
    return point


def _squares_from(gram_PP: Matrix, point_P: Floats) -> Floats:
    """Squared distances of all rows from the point with those factors, which sum to one."""
    products_P = times(gram_PP, point_P)
    own = dot(point_P, products_P)
    found_P: Floats = np.maximum(np.diagonal(gram_PP) - 2.0 * products_P + own, 0.0)
    return found_P


# Steps before a rule, as matrices that mix rows --------------------------------------------------


class Arc:
    """Adaptive clipping (Allouah et al. 2024): the k = floor(2 f (P - f) / P) longest rows are
    shortened to the next in length. It has no parameter of its own."""

    def mixing(self, gram_PP: Matrix, f: int) -> Matrix:
        """A factor for each row."""
        rows = len(gram_PP)
        norms_P = np.sqrt(np.diagonal(gram_PP))
        clipped = min(2 * f * (rows - f) // rows, rows - 1)
        limit = np.sort(norms_P)[rows - clipped - 1]
        is_long_P = norms_P > limit
        return np.diag(np.where(is_long_P, limit / np.where(is_long_P, norms_P, 1.0), 1.0))


class Bucketing:
    """Means of buckets of `size` rows, drawn by `seed`, which is the round's: nobody chooses whom
    it shares a bucket with (Karimireddy, He and Jaggi 2022). It spreads the lies, too: for data
    that differ by peer, and at most a fifth of liars."""

    def __init__(self, size: int = 2, seed: bytes = b"") -> None:
        if size < 1:
            raise ValueError(f"buckets of {size} rows")
        self._size, self._seed = size, seed

    def mixing(self, gram_PP: Matrix, f: int) -> Matrix:
        """A mean for each bucket; the last may be smaller."""
        del f
        rows = len(gram_PP)
        order = sorted(range(rows), key=lambda row: blake3(self._seed + bytes([row])).digest())
        buckets = [order[start : start + self._size] for start in range(0, rows, self._size)]
        found_RP = np.zeros((len(buckets), rows))
        for bucket, chosen in enumerate(buckets):
            found_RP[bucket, chosen] = 1.0 / len(chosen)
        return found_RP


class Nnm:
    """Nearest-neighbour mixing (Allouah et al. 2023): each row becomes the mean of the P - f rows
    nearest to it, itself among them."""

    def mixing(self, gram_PP: Matrix, f: int) -> Matrix:
        """A mean for each row."""
        rows = len(gram_PP)
        distances_PP = squared_distances(gram_PP)
        np.fill_diagonal(distances_PP, -1.0)
        nearest = np.argsort(distances_PP, axis=1, kind="stable")[:, : rows - f]
        found_PP = np.zeros((rows, rows))
        np.put_along_axis(found_PP, nearest, 1.0 / (rows - f), axis=1)
        return found_PP


def nnm_trimmed_mean(f: int | None = None, *, cell_elements: int = CELL_ELEMENTS) -> TrimmedMean:
    """The trimmed mean of mixed neighbours."""
    return TrimmedMean(f, cell_elements=cell_elements, pre=(Nnm(),))
