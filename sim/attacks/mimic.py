"""All liars say what one honest peer says: its data count many times (Karimireddy et al. 2022)."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, repeated

_LEARNING_ROUNDS = 10


class Mimic(Attack):
    """A copy of the honest peer that lies farthest out in the direction of the largest spread, as
    it was in the first ten rounds."""

    def __init__(self, *, blind: bool = False) -> None:
        super().__init__(blind=blind)
        self._far_H: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        centred_HN = honest_HN.astype(np.float64)
        centred_HN = centred_HN - centred_HN.mean(axis=0)
        if self._far_H is None or len(self._far_H) != len(honest_HN):
            self._far_H = np.zeros(len(honest_HN))
        if context.round < _LEARNING_ROUNDS:
            _, vectors_HH = np.linalg.eigh(centred_HN @ centred_HN.T)
            self._far_H += np.abs(vectors_HH[:, -1])
        return repeated(honest_HN[int(np.argmax(self._far_H))], own_BN)
