"""Honest work with a small push, the same in every round: what audits may not see."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector


class SlowDrift(Attack):
    """own + a constant vector of a share of its length."""

    def __init__(self, *, blind: bool = False, share: float = 0.1, seed: int = 0) -> None:
        super().__init__(blind=blind)
        self._share, self._seed = share, seed

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN, context
        push_N = np.random.Generator(np.random.PCG64(self._seed)).normal(size=own_BN.shape[1])
        lengths_B = self._share * np.linalg.norm(own_BN, axis=1)
        pushed_BN: Rows = own_BN + lengths_B[:, None] * (push_N / np.linalg.norm(push_N))
        return pushed_BN
