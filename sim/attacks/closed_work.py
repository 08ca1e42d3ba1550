"""Work that nobody is shown: what was trained is turned around, and no audit is answered."""

from node.plane.hooks import NodeHooks
from protocol.identity import PeerId
from sim.attacks.seam import Attack


class ClosedWork(Attack):
    """The vectors are those of `sign_flip`; nobody can prove anything."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        # It bends contributions as attacks on values do, which `alone` knows of.
        from sim.attacks.alone import Liar

        class Closed(Liar):
            def opens_to(self, peer: PeerId) -> bool:
                """See NodeHooks."""
                del peer
                return False

        return Closed("sign_flip")
