"""Rows made of rows: what steps before a rule leave, in the Gram matrix and in a slice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.aggregation.seam import PreStep
from training.kernels import kernels_for
from training.numeric.arithmetic import Vector, add_weighted
from training.numeric.fixed_order import product
from training.numeric.gram import Matrix


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
