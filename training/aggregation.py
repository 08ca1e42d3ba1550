"""SEAM Aggregator: how the contributions of the listed peers become one vector.

P peers (rows in ascending peer id), N elements of a slice

An aggregator works in three parts, so that each reducer holds one slice only and all still agree:
`stats` of every slice are added up over slices, `coefficients` come from the sum (equal on all
peers), `combine` applies them to the slice. `uses_stats` says whether the first part, a message of
its own, is needed at all.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.arithmetic import all_finite, tree_sum, weighted_sum
from training.registry import Registry


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregated vector, float32, and the weight that each row had in it."""

    value: NDArray[np.float32]
    scores: NDArray[np.float32]


class Aggregator(Protocol):
    """SEAM: called by the reducers of a slice, in worker threads, and by all who check them.

    Every method is pure and bit-exact. Rows are finite float32; admission has seen to it.
    """

    uses_stats: bool

    def stats(self, slice_PN: NDArray[np.float32]) -> NDArray[np.float64]:
        """What `coefficients` needs of one slice; the stats of all slices are added up.

        Called only if `uses_stats`.
        """
        ...

    def coefficients(
        self, stats: NDArray[np.float64], weights_P: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """The factor of each row, from the summed stats and the tokens of each peer.

        `stats` is empty unless `uses_stats`. Raises ValueError if no weight is positive.
        """
        ...

    def combine(
        self, slice_PN: NDArray[np.float32], coefficients_P: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The aggregate of one slice: a new (N,) vector."""
        ...

    def __call__(
        self, updates_PN: NDArray[np.float32], weights_P: NDArray[np.float64] | None = None
    ) -> Aggregate:
        """All three parts at once, for whole vectors in one place; equal weights by default.

        Raises ValueError for shapes that do not fit, a negative weight or a non-finite number.
        """
        ...


AGGREGATORS: Registry[Aggregator] = Registry("aggregator")
"""Factories `(f=0)`: f is how many of the rows may be lies."""


def aggregate(
    rule: Aggregator, updates_PN: NDArray[np.float32], weights_P: NDArray[np.float64] | None
) -> Aggregate:
    """Run a rule's three parts over whole vectors: `Aggregator.__call__` for every rule."""
    updates_PN = np.asarray(updates_PN, dtype=np.float32)
    if updates_PN.ndim != 2 or len(updates_PN) == 0:
        raise ValueError(f"updates of shape {updates_PN.shape}, not (peers, elements)")
    for row, update_N in enumerate(updates_PN):
        if not all_finite(update_N):
            raise ValueError(f"row {row} is not finite")
    peers = len(updates_PN)
    weights = np.ones(peers) if weights_P is None else np.asarray(weights_P, dtype=np.float64)
    if weights.shape != (peers,):
        raise ValueError(f"weights of shape {weights.shape} for {peers} rows")
    stats = rule.stats(updates_PN) if rule.uses_stats else np.empty(0)
    coefficients_P = rule.coefficients(stats, weights)
    return Aggregate(rule.combine(updates_PN, coefficients_P), coefficients_P)


def normalised(weights_P: NDArray[np.float64]) -> NDArray[np.float32]:
    """Weights scaled to sum to one, each rounded to float32 on its own.

    Raises ValueError for a negative or non-finite weight, or if none is positive.
    """
    if not all_finite(weights_P) or (weights_P < 0.0).any():
        raise ValueError("weights must be finite and not negative")
    total = tree_sum(weights_P)
    if total <= 0.0:
        raise ValueError("no weight is positive")
    return (weights_P / total).astype(np.float32)


class Mean:
    """The mean weighted by tokens: the rule of runs among friends. One liar ruins it."""

    uses_stats = False

    def __init__(self, f: int = 0) -> None:
        del f  # every rule takes it; the mean withstands no liar

    def stats(self, slice_PN: NDArray[np.float32]) -> NDArray[np.float64]:
        """Nothing."""
        del slice_PN
        return np.empty(0)

    def coefficients(
        self, stats: NDArray[np.float64], weights_P: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """Share of the tokens."""
        del stats
        return normalised(weights_P)

    def combine(
        self, slice_PN: NDArray[np.float32], coefficients_P: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Weighted sum in the order of the rows."""
        return weighted_sum(slice_PN, coefficients_P)

    def __call__(
        self, updates_PN: NDArray[np.float32], weights_P: NDArray[np.float64] | None = None
    ) -> Aggregate:
        """See Aggregator."""
        return aggregate(self, updates_PN, weights_P)


AGGREGATORS.register("mean", Mean)
