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


class Blend:
    """Streaming DiLoCo: of the weights that went on for tau steps a share stays (Douillard et al.
    2025). Nothing of it is lost to the run: the next drift is anchor minus these weights.
    """

    def __init__(self, share: float = 0.5) -> None:
        """`share` of the local weights, 0 to 1; 0 is `Replace` to the bit."""
        self._share = np.float32(share)

    def apply(
        self, local_N: NDArray[np.float32], anchor_N: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """The blend."""
        if not self._share:
            return anchor_N
        blend_N: NDArray[np.float32] = anchor_N + self._share * (local_N - anchor_N)
        return blend_N


MERGES.register("blend", Blend)
