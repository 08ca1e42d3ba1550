"""Steps before a rule: clip the largest, average buckets, average neighbours.

P peers, R rows after the step. Each is a matrix that mixes rows, found from the Gram matrix alone.
"""

import numpy as np
from blake3 import blake3

from training.aggregation.coordinates import TrimmedMean
from training.aggregation.linear import squared_distances
from training.numeric.gram import CELL_ELEMENTS, Matrix


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
