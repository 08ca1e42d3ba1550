"""Looks like honest work, with honest noise, and leans against the mean."""

from sim.attacks.seam import Attack, Context, Rows, Vector, mean_of


class Shift(Attack):
    """own - k x mean."""

    def __init__(self, *, blind: bool = False, k: float = 1.0) -> None:
        super().__init__(blind=blind)
        self._k = k

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        return own_BN - self._k * mean_of(honest_HN)
