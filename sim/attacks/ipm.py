"""Inner product manipulation (Xie, Koyejo and Gupta 2019): against the mean, at its own length."""

from sim.attacks.seam import Attack, Context, Rows, Vector, mean_of, repeated


class Ipm(Attack):
    """-epsilon x mean, from all."""

    def __init__(self, *, blind: bool = False, epsilon: float = 0.6) -> None:
        super().__init__(blind=blind)
        self._epsilon = epsilon

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        return repeated(-self._epsilon * mean_of(honest_HN), own_BN)
