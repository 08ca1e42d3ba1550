"""A quarter of the steps, scaled: what is sent is as long as honest work, for a quarter of it.

The claim of tokens is in order, so no rule of leases minds; only who runs a segment again sees it.
"""

import numpy as np

from node.plane.hooks import NodeHooks
from sim.attacks.seam import Attack, Vector

SEGMENTS = 8
"""Of a round, as in all worlds."""


class Lazy(Attack):
    """The vectors are those of somebody who trained less."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return TrainsAQuarter()


class TrainsAQuarter(NodeHooks):
    """Two segments of eight are trained, each counts four times; the others are said to be."""

    name = "attack lazy"

    TRAINED = SEGMENTS // 4

    def trained(self, segment: int, before_N: Vector, weights_N: Vector) -> Vector:
        """See NodeHooks."""
        if segment % SEGMENTS >= self.TRAINED:
            return before_N
        return before_N + np.float32(SEGMENTS / self.TRAINED) * (weights_N - before_N)
