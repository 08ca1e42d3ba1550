"""Rules that look for a centre: every row pulls, none harder than another.

P peers, N elements of a slice
"""

import numpy as np

from training.aggregation.coordinates import Coordinates, Median
from training.aggregation.linear import Linear, squared_distances
from training.aggregation.mixing import Mixer
from training.aggregation.seam import (
    Floats,
    capped_shares,
    median_of,
    shares_of,
)
from training.numeric.arithmetic import Vector, tree_sum, weighted_sum
from training.numeric.fixed_order import dot, times
from training.numeric.gram import Matrix, cell_gram, cells

_WEISZFELD_STEPS = 64
_WEISZFELD_STOP = 1e-12
"""Of the factors: the point stands still then."""

_SMOOTHING = 1e-6
"""Of the median norm: the least distance, where the point falls upon a row."""

_CLIP_STEPS = 50
_CLIP_STOP = 1e-6
"""Of the radius."""


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
