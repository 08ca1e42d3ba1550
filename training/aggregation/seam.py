"""SEAM Aggregator: how the contributions of the listed peers become one vector.

P peers (rows in ascending peer id), N elements of a slice, R rows after the steps before a rule

An aggregator works in three parts, so that each reducer holds one slice only and all still agree:
`stats` of every slice are added up over slices, `coefficients` come from the sum (equal on all
peers), `combine` applies them to the slice. `uses_stats` says whether the first part, a message of
its own, is needed at all. A slice begins where a cell of the grid begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.kernels import kernels_for
from training.numeric import Registry
from training.numeric.arithmetic import Vector, add_weighted, all_finite, product, tree_sum
from training.numeric.gram import CELL_ELEMENTS, Matrix, summed

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregated vector, float32, and the weight that each row had in it."""

    value: Vector
    scores: Vector


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found in a slice before its factors are known."""

    stats: Floats
    squares_CP: Floats | None = None
    """Squared norms of each row in each of the C cells, if `combine` would ask for them again."""


class Aggregator(Protocol):
    """SEAM: called by the reducers of a slice, in worker threads, and by all who check them.

    Every method is pure and bit-exact. Rows are finite float32; admission has seen to it.
    """

    @property
    def uses_stats(self) -> bool:
        """Whether `coefficients` asks for the sum of the stats of all slices."""
        ...

    def stats(self, slice_PN: Vector) -> Floats:
        """What `coefficients` needs of one slice; the stats of all slices are added up, exactly.

        Called only if `uses_stats`.
        """
        ...

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """The factor of each row, (P,), or rows to be mixed first, (R, P); from the summed stats
        and the tokens of each peer.

        `stats` is empty unless `uses_stats`. Raises ValueError if no weight is positive.
        """
        ...

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """The aggregate of one slice: a new (N,) vector."""
        ...

    def measure(self, slice_PN: Vector) -> Measured:
        """`stats`, and what `combine_measured` of the same slice need not find again."""
        ...

    def combine_measured(
        self, slice_PN: Vector, coefficients: Vector, squares_CP: Floats | None
    ) -> Vector:
        """`combine`, to the bit, with what `measure` found in this very slice, if it is known."""
        ...

    def row_factors(self, coefficients: Vector, squares_CP: Floats | None) -> Vector | None:
        """The factor of each row, (P,), where `combine_measured` of one cell is the weighted sum of
        the rows, to the bit; None where it is another thing, or hangs on what is not known yet."""
        ...

    def __call__(self, updates_PN: Vector, weights_P: Floats | None = None) -> Aggregate:
        """All three parts at once, for whole vectors in one place; equal weights by default.

        Raises ValueError for shapes that do not fit, a negative weight or a non-finite number.
        """
        ...


class PreStep(Protocol):
    """SEAM: what may be done to the rows before a rule sees them, as a mixing of rows."""

    def mixing(self, gram_PP: Matrix, f: int) -> Matrix:
        """(R, P): each new row as a sum of old ones, from the Gram matrix of the old."""
        ...


AGGREGATORS: Registry[Aggregator] = Registry("aggregator")
"""Factories `(f=None, *, cell_elements, pre)`: f is how many rows may be lies, see `tolerated`;
`pre` are steps before the rule, first one first."""

PRE_STEPS: Registry[PreStep] = Registry("step before a rule")


class Rule:
    """What all rules share: their numbers, and the three parts at once."""

    def __init__(
        self,
        f: int | None = None,
        *,
        cell_elements: int = CELL_ELEMENTS,
        pre: Sequence[PreStep] = (),
    ) -> None:
        if f is not None and f < 0:
            raise ValueError(f"f = {f} is negative")
        if cell_elements < 1:
            raise ValueError(f"cells of {cell_elements} elements")
        self._f = f
        self._cell_elements = cell_elements
        self._pre = tuple(pre)

    @property
    def uses_stats(self) -> bool:
        """Whether there is something to be known of whole vectors: steps before a rule ask."""
        return bool(self._pre)

    @property
    def refuses(self) -> bool:
        """Whether what is not finite is refused by the rule's own parts.

        Stats do so: they look at the largest element of each row.
        """
        return self.uses_stats

    def stats(self, slice_PN: Vector) -> Floats:
        """Nothing."""
        del slice_PN
        return np.empty(0)

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """See Aggregator."""
        raise NotImplementedError

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """See Aggregator."""
        raise NotImplementedError

    def measure(self, slice_PN: Vector) -> Measured:
        """The stats: nothing that this rule's `combine` asks for."""
        return Measured(self.stats(slice_PN))

    def combine_measured(
        self, slice_PN: Vector, coefficients: Vector, squares_CP: Floats | None
    ) -> Vector:
        """`combine`, which needs none of it."""
        del squares_CP
        return self.combine(slice_PN, coefficients)

    def row_factors(self, coefficients: Vector, squares_CP: Floats | None) -> Vector | None:
        """None: it is another thing."""
        del coefficients, squares_CP
        return None

    def __call__(self, updates_PN: Vector, weights_P: Floats | None = None) -> Aggregate:
        """See Aggregator."""
        updates_PN = np.asarray(updates_PN, dtype=np.float32)
        if updates_PN.ndim != 2 or len(updates_PN) == 0:
            raise ValueError(f"updates of shape {updates_PN.shape}, not (peers, elements)")
        for row, update_N in enumerate(() if self.refuses else updates_PN):
            if not all_finite(update_N):
                raise ValueError(f"row {row} is not finite")
        peers = len(updates_PN)
        weights = np.ones(peers) if weights_P is None else np.asarray(weights_P, dtype=np.float64)
        if weights.shape != (peers,):
            raise ValueError(f"weights of shape {weights.shape} for {peers} rows")
        found = self.measure(updates_PN) if self.uses_stats else Measured(np.empty(0))
        coefficients = self.coefficients(found.stats, weights)
        value_N = self.combine_measured(updates_PN, coefficients, found.squares_CP)
        return Aggregate(value_N, scores_of(coefficients))


def scores_of(coefficients: Vector) -> Vector:
    """The weight of each row; where rows are mixed first, the mean over the mixed ones."""
    if coefficients.ndim == 1:
        return coefficients
    total_P = coefficients[0].copy()
    for mixed_P in coefficients[1:]:
        total_P += mixed_P
    scores_P: Vector = total_P / np.float32(len(coefficients))
    return scores_P


def coefficients_of(rule: Aggregator, grams: Sequence[bytes], weights_P: Floats) -> Vector:
    """The factors of the rows, from the wire forms of the stats of all slices, if the rule uses
    them; zeros where those are of no rows that there could be, and lead to nothing."""
    rows = len(weights_P)
    with np.errstate(all="ignore"):
        try:
            stats = summed(grams) if rule.uses_stats else np.empty(0)
            found = rule.coefficients(stats, weights_P)
        except ValueError:
            return np.zeros(rows, dtype=np.float32)
    return found if all_finite(found) else np.zeros(rows, dtype=np.float32)


def tolerated(f: int | None, rows: int, most: int | None = None) -> int:
    """How many of so many rows a rule treats as lies.

    `f` as given, or a quarter of the rows and at least one, from four rows on; at most `most`, or
    what is less than half: where a roster shrinks, rules go on with what is left.
    """
    wanted = f if f is not None else (max(1, rows // 4) if rows > 3 else 0)
    return max(0, min(wanted, (rows - 1) // 2 if most is None else most))


def shares_of(weights_P: Floats) -> Floats:
    """Weights scaled to sum to one. Raises ValueError for a negative or non-finite weight, or if
    none is positive."""
    if not all_finite(weights_P) or (weights_P < 0.0).any():
        raise ValueError("weights must be finite and not negative")
    total = tree_sum(weights_P)
    if total <= 0.0:
        raise ValueError("no weight is positive")
    return weights_P / total


def capped_shares(weights_P: Floats) -> Floats:
    """`shares_of`, none above twice the median of the positive: who claims tokens gains no more."""
    shares_P = shares_of(weights_P)
    return shares_of(np.minimum(shares_P, 2.0 * median_of(shares_P[shares_P > 0.0])))


def median_of(values_P: Floats) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered_P = np.sort(values_P)
    middle = len(ordered_P) // 2
    if len(ordered_P) % 2:
        return float(ordered_P[middle])
    return float(0.5 * ordered_P[middle - 1] + 0.5 * ordered_P[middle])


# Rows made of rows: what steps before a rule leave, in the Gram matrix and in a slice ------------


@dataclass(frozen=True, slots=True)
class Mixed:
    """New rows as sums of the old, and the Gram matrix of the new."""

    mixing_RP: Matrix
    gram_RR: Matrix


def prepared(steps: Sequence[PreStep], gram_PP: Matrix, f: int) -> Mixed:
    """The rows after the steps, first one first."""
    mixing_RP, gram_RR = np.eye(len(gram_PP)), gram_PP
    for step in steps:
        next_RR = step.mixing(gram_RR, min(f, (len(gram_RR) - 1) // 2))
        mixing_RP = product(next_RR, mixing_RP)
        gram_RR = product(product(next_RR, gram_RR), np.ascontiguousarray(next_RR.T))
    return Mixed(mixing_RP, gram_RR)


class Mixer:
    """Makes the mixed rows of one block after the other; the plan is made once."""

    def __init__(self, mixing_RP: Vector) -> None:
        self._rows = []
        for factors_P in mixing_RP:
            chosen = np.flatnonzero(factors_P)
            self._rows.append((chosen, factors_P[chosen]))

    def __len__(self) -> int:
        """Number of mixed rows."""
        return len(self._rows)

    def mix(self, block_PB: Vector, out_RB: Sequence[Vector], spare_B: Vector) -> None:
        """Write the mixed rows; `spare_B` is written to."""
        given = list(block_PB)
        for (chosen, factors), out_B in zip(self._rows, out_RB, strict=True):
            rows = [given[row] for row in chosen]
            if not rows:
                out_B[...] = 0.0
            elif (factors == factors[0]).all():
                _mean(rows, factors[0], out_B)
            elif kernels := kernels_for(out_B, *rows):
                kernels.weighted_sum(rows, factors, out_B)
            else:
                add_weighted(rows, factors, out_B, spare_B)


def _mean(rows: Sequence[Vector], factor: np.float32, out_B: Vector) -> None:
    """Half of the work of a weighted sum."""
    if kernels := kernels_for(out_B, *rows):
        kernels.scaled_sum(rows, float(factor), out_B)
        return
    np.add(rows[0], 0.0, out=out_B)
    for row_B in rows[1:]:
        np.add(out_B, row_B, out=out_B)
    if factor != 1.0:
        np.multiply(out_B, factor, out=out_B)
