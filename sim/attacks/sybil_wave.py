"""A wave of fresh identities: cheap keys that all say the same, in a run that is well under way."""

from sim.attacks.seam import Attack, Context, Rows, Vector, mean_of, repeated


class SybilWave(Attack):
    """All of the wave send the opposite of honest work, of honest length: no norm gives them away,
    and to a rule that looks for the largest crowd they are it.

    One identity is nothing; how many there are, and how soon they count, is the attack. So in
    worlds they join behind the founding members (`sim.trials.trial`).
    """

    is_fresh = True

    def __init__(self, *, blind: bool = False, scale: float = 1.0) -> None:
        super().__init__(blind=blind)
        self._scale = scale

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        return repeated(-self._scale * mean_of(honest_HN), own_BN)
