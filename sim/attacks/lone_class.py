"""Training that nobody can run again: the liar says that its device is like no other, and trains
backwards. What it sends is what its states lead to, so an audit of the encoding finds nothing.
"""

import numpy as np

from node.plane.hooks import NodeHooks
from protocol.identity import Signer
from sim.attacks.seam import Attack, Vector


class LoneClass(Attack):
    """Everything follows from the states that it shows, and nobody can say how it came to them."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return AloneAndBackwards()


class AloneAndBackwards(NodeHooks):
    """Every segment goes the other way, `FACTOR` times as far."""

    name = "attack lone_class"

    FACTOR = np.float32(-3.0)

    def __init__(self) -> None:
        self._name = ""

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._name = signer.peer_id.hex()[:16]

    def device_class(self, own: str) -> str:
        """See NodeHooks."""
        del own
        return f"made up {self._name}"

    def trained(self, segment: int, before_N: Vector, weights_N: Vector) -> Vector:
        """See NodeHooks."""
        del segment
        return before_N + self.FACTOR * (weights_N - before_N)
