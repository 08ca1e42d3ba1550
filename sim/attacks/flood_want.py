"""Wants of all cells of nothing: cheap to say, dear to read."""

from node.plane.hooks import NodeHooks
from sim.attacks.flooding import Flood
from sim.attacks.seam import Attack


class FloodWant(Attack):
    """The vectors are honest; its questions are too many."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return Flood("Want")
