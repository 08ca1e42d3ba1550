"""As far out as no honest peer is farther from another."""

from sim.attacks.hidden_among import largest_hidden
from sim.attacks.seam import Attack, Context, Rows, Vector, repeated


class MinMax(Attack):
    """The largest distance to the honest is at most the largest among them."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        sent_N = largest_hidden(honest_HN, lambda away, among: bool(away.max() <= among.max()))
        return repeated(sent_N, own_BN)
