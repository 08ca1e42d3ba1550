"""Work that nobody is shown: what was trained is turned around, and no audit is answered."""

from node.hooks import NodeHooks
from sim.attacks.seam import Attack


class ClosedWork(Attack):
    """The vectors are those of `sign_flip`; nobody can prove anything."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        # It bends contributions as attacks on values do, which `alone` knows of.
        from sim.attacks.alone import Liar

        class Closed(Liar):
            @property
            def opens(self) -> bool:
                """See NodeHooks."""
                return False

        return Closed("sign_flip")
