"""A little is enough (Baruch, Baruch and Goldberg 2019): inside the spread of the honest."""

from statistics import NormalDist

from sim.attacks.seam import Attack, Context, Rows, Vector, deviation_of, mean_of, repeated


class Alie(Attack):
    """mean - z deviations, from all. z left out: what as many honest peers as are needed for a
    majority with the liars lie beyond."""

    def __init__(self, *, blind: bool = False, z: float | None = 1.5) -> None:
        super().__init__(blind=blind)
        self._z = z

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        z = z_max(len(honest_HN), len(own_BN)) if self._z is None else self._z
        return repeated(mean_of(honest_HN) - z * deviation_of(honest_HN), own_BN)


def z_max(honest: int, liars: int) -> float:
    """The z of the paper; zero where the liars need nobody."""
    needed = (honest + liars) // 2 + 1 - liars
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(share) if 0.5 < share < 1.0 else 0.0
