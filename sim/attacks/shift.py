"""Looks like honest work, with honest noise, and leans against the mean."""

from sim.attacks.seam import Attack, Context, Rows, Vector, deviation_of, mean_of


class Shift(Attack):
    """own - k x mean, or own - k x deviation."""

    def __init__(self, *, blind: bool = False, k: float = 1.0, of_deviations: bool = False) -> None:
        super().__init__(blind=blind)
        self._k, self._length_of = k, deviation_of if of_deviations else mean_of

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        return own_BN - self._k * self._length_of(honest_HN)
