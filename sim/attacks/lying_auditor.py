"""An auditor that calls all work wrong that it is drawn for, so that its owner be banned."""

from blake3 import blake3

from node.plane.hooks import NodeHooks
from sim.attacks.seam import Attack


class LyingAuditor(Attack):
    """The vectors are honest; what it says of those of others is not."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return FindsWrong()


class FindsWrong(NodeHooks):
    """Each end that it finds is said to be another; all that lie so find the same."""

    name = "attack lying_auditor"

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return frozenset({"retract"})

    def reran(self, found: bytes) -> bytes:
        """See NodeHooks."""
        return blake3(found).digest()
