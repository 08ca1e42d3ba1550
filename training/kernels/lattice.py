"""Numbers as they travel, before they are decoded: for those who would read each of them once.

N elements, B blocks
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """A number is its code times the step of its block, from the block's first level on, in float32
    and one operation at a time."""

    codes_N: NDArray[np.uint8]
    steps_B: NDArray[np.float32]
    firsts_B: NDArray[np.float32]
    block: int
    """Elements of each; the last may have fewer."""

    def __post_init__(self) -> None:
        """Raises ValueError for what does not fit: compiled code does not look."""
        num_blocks = -(-len(self.codes_N) // self.block)
        if not len(self.steps_B) == len(self.firsts_B) == num_blocks:
            raise ValueError(f"{len(self.codes_N)} codes in {len(self.steps_B)} blocks")
        if self.codes_N.dtype != np.uint8 or not self.codes_N.flags.c_contiguous:
            raise ValueError("codes are not bytes behind one another")
