"""SEAM Merge: how a new anchor enters the working weights.

N elements of a fragment
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.registry import Registry


class Merge(Protocol):
    """SEAM: called by the loop when a round's outcome is known."""

    def apply(
        self, local_N: NDArray[np.float32], anchor_N: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The new working weights; the inputs are only read."""
        ...


MERGES: Registry[Merge] = Registry("merge")


class Replace:
    """DiLoCo: training goes on from the anchor; what drifted since is in the contribution."""

    def apply(
        self, local_N: NDArray[np.float32], anchor_N: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The anchor itself."""
        del local_N
        return anchor_N


MERGES.register("replace", Replace)
