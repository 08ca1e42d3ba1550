"""One random direction, the same from all liars in every round, very long."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, length_of, repeated


class ConstantDirection(Attack):
    """`size` median lengths along a direction that is drawn once."""

    def __init__(self, *, blind: bool = False, size: float = 1000.0, seed: int = 0) -> None:
        super().__init__(blind=blind)
        self._size, self._seed = size, seed

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        luck = np.random.Generator(np.random.PCG64(self._seed))
        direction_N = luck.normal(size=own_BN.shape[1])
        length = self._size * length_of(honest_HN) / float(np.linalg.norm(direction_N))
        return repeated(np.multiply(length, direction_N), own_BN)
