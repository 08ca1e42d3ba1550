"""Rules that choose rows by their distances to others (Blanchard et al. 2017; Mhamdi et al. 2018).

P peers
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from training.aggregation.coordinates import Nearest
from training.aggregation.linear import Linear, squared_distances
from training.aggregation.mixing import prepared
from training.aggregation.seam import Floats, PreStep, shares_of, tolerated
from training.numeric.arithmetic import Vector, tree_sum
from training.numeric.gram import CELL_ELEMENTS, Matrix, gram_of


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
