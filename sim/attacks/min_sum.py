"""As far out as no honest peer's distances add up to more."""

from sim.attacks.hidden_among import largest_hidden
from sim.attacks.seam import Attack, Context, Rows, Vector, repeated


class MinSum(Attack):
    """The sum of squared distances to the honest is at most the largest of an honest peer."""

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        sent_N = largest_hidden(
            honest_HN, lambda away, among: bool(away.sum() <= among.sum(axis=1).max())
        )
        return repeated(sent_N, own_BN)
