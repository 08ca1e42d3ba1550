"""An aggregation rule of one's own: `python -m examples.own_rule` plays it against an attack.

P peers (rows), N elements of a slice
"""

import numpy as np

from sim.attacks import ATTACKS
from sim.robustness.game import LyingStage, play, rule_named
from training.aggregation.seam import AGGREGATORS, Floats, Rule, shares_of, tolerated
from training.numeric.arithmetic import Vector, weighted_sum


class WinsorizedMean(Rule):
    """The mean of each coordinate after its f lowest and f highest values are pulled inwards."""

    def coefficients(self, stats: Floats, weights_P: Floats) -> Vector:
        """One vote for each row: claimed tokens are no argument. Refuses impossible weights."""
        del stats
        shares_of(weights_P)
        return np.full(len(weights_P), 1.0 / len(weights_P), dtype=np.float32)

    def combine(self, slice_PN: Vector, coefficients: Vector) -> Vector:
        """Clip each coordinate to its f-th lowest and f-th highest value, then add the rows up."""
        f = tolerated(self._f, len(slice_PN))
        sorted_PN = np.sort(slice_PN, axis=0)
        clipped_PN = np.clip(slice_PN, sorted_PN[f], sorted_PN[-1 - f])
        # Adding 0.0 turns -0.0 into 0.0: which of two equal values a sort puts first, and so the
        # sign of a zero, may depend on the processor, and all peers must get the same bits.
        return weighted_sum(clipped_PN + np.float32(0.0), coefficients)


AGGREGATORS.register("winsorized_mean", WinsorizedMean)

if __name__ == "__main__":
    for name in ("mean", "winsorized_mean"):
        course = play(LyingStage(), ATTACKS["sign_flip"](size=10.0), rule_named(name), seed=0)
        print(f"{name:16}loss {course.losses[0]:.3f} -> {course.loss_last:.3f} under sign_flip")
