"""Training that is bent in one segment of each round: all that is sent follows from what it shows.

What it says of that segment is not what comes of running it; all else of its COMMIT is in order.
"""

import numpy as np

from node.plane.hooks import NodeHooks
from sim.attacks.seam import Attack, Vector


class BentSegment(Attack):
    """The state behind one segment is made up; what is contributed is what the rest makes of it."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return BendsOne()


class BendsOne(NodeHooks):
    """The step of one segment is taken `FACTOR` times, backwards; another segment each round."""

    name = "attack bent_segment"

    FACTOR = np.float32(-1000.0)
    EVERY = 9
    """No multiple of the usual 8 segments, so that each has its turn."""

    def __init__(self) -> None:
        self._count = 0

    def trained(self, segment: int, before_N: Vector, weights_N: Vector) -> Vector:
        """See NodeHooks."""
        del segment
        self._count += 1
        if self._count % self.EVERY:
            return weights_N
        return before_N + self.FACTOR * (weights_N - before_N)
