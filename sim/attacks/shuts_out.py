"""Work that is right, and shown to all but one voter: so that others find it in order, and the one
that could not open it seems to make them work for nothing."""

from node.plane.hooks import NodeHooks
from protocol.identity import PeerId
from sim.attacks.seam import Attack


class ShutsOut(Attack):
    """The vectors are honest, and so is all that it shows."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return ShownToAllButOne()


class ShownToAllButOne(NodeHooks):
    """Whoever asked first is never shown anything."""

    name = "attack shuts_out"

    def __init__(self) -> None:
        self._victim: PeerId | None = None

    def opens_to(self, peer: PeerId) -> bool:
        """See NodeHooks."""
        self._victim = self._victim or peer
        return peer != self._victim
