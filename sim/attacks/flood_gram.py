"""Gram matrices of LISTs that nobody made, to whoever listens: each is a slot of its own.

Where they are kept, heartbeats name them, and the honest send them to each other again and again.
"""

from node.plane.hooks import NodeHooks
from sim.attacks.flooding import Flood
from sim.attacks.seam import Attack


class FloodGram(Attack):
    """The vectors are honest; its words are too many."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return Flood("GRAM")
