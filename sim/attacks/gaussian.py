"""Noise of the length of an honest contribution, or some times as long."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, length_of


class Gaussian(Attack):
    """Independent normal numbers, each row `size` median lengths long."""

    def __init__(self, *, blind: bool = False, size: float = 10.0) -> None:
        super().__init__(blind=blind)
        self._size = size

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        deviation = self._size * length_of(honest_HN) / np.sqrt(own_BN.shape[1])
        return context.luck.normal(0.0, deviation, size=own_BN.shape).astype(np.float32)
