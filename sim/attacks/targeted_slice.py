"""The whole length of a contribution in one slice, against what the honest want there."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector, length_of, mean_of, repeated


class TargetedSlice(Attack):
    """Zero but for one slice, which goes against the mean."""

    def __init__(self, *, blind: bool = False, place: int = 0) -> None:
        super().__init__(blind=blind)
        self._place = place

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        span = context.slices[self._place % len(context.slices)]
        there_N = mean_of(honest_HN)[span]
        sent_N = np.zeros(own_BN.shape[1])
        sent_N[span] = -there_N * length_of(honest_HN) / max(1e-30, float(np.linalg.norm(there_N)))
        return repeated(sent_N, own_BN)
