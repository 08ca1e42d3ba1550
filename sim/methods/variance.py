"""Variance-corrected averaging: a mean of models that are no kin keeps their spread (Tian et al.
2024, arXiv 2404.04616). Pure.

R replicas, L of them too narrow, N elements, T tensors

Of K weights that have nothing to do with each other the mean has 1 / K of their variance, less than
a network needs to begin with, and learning stalls. Per matrix, not for vectors:

    w' = mean(w) + (w - mean(w)) sqrt(s2 / Var(w)),   w the mixed tensor, s2 the mixed variances

It is a safety net where all begin with one seed: off unless Var(w) / s2 is below THRESHOLD.
"""

from collections.abc import Sequence

import numpy as np

from protocol.grid import TensorSpec
from sim.methods.gossip import Mixing, Rows

THRESHOLD = 0.7


class Corrected:
    """A Mixing whose tensors keep their variance."""

    def __init__(
        self, mixing: Mixing, tensors: Sequence[TensorSpec], *, threshold: float = THRESHOLD
    ) -> None:
        """`tensors` are those of a row, in the order in which they lie in it."""
        self._mixing = mixing
        self._threshold = threshold
        self._spans: list[slice] = []
        start = 0
        for tensor in tensors:
            if len(tensor.shape) > 1:
                self._spans.append(slice(start, start + tensor.numel))
            start += tensor.numel

    def copies(self, replicas: int) -> float:
        """See Mixing; a variance per matrix is nothing beside it."""
        return self._mixing.copies(replicas)

    def mix(self, x_RN: Rows, round_index: int) -> Rows:
        """See Mixing, but that it is not linear: the mean of all replicas is not conserved."""
        mixed_RN = self._mixing.mix(x_RN, round_index)
        if not self._spans:
            return mixed_RN
        spread_RT = np.stack([x_RN[:, span].var(axis=1) for span in self._spans], axis=1)
        wanted_RT = self._mixing.mix(spread_RT, round_index)
        for number, span in enumerate(self._spans):
            tensor_RN = mixed_RN[:, span]
            found_R, wanted_R = tensor_RN.var(axis=1), wanted_RT[:, number]
            low = np.flatnonzero((found_R > 0.0) & (found_R < self._threshold * wanted_R))
            center_L1 = tensor_RN[low].mean(axis=1, keepdims=True)
            factor_L1 = np.sqrt(wanted_R[low] / found_R[low])[:, np.newaxis]
            mixed_RN[low, span] = center_L1 + (tensor_RN[low] - center_L1) * factor_L1
        return mixed_RN
