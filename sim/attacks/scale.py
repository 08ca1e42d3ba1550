"""The own work, much too large: a liar that wants to be the only one heard."""

from sim.attacks.seam import Attack, Context, Rows, Vector


class Scale(Attack):
    """factor x own; negative factors flip as well."""

    def __init__(self, *, blind: bool = False, factor: float = -1000.0) -> None:
        super().__init__(blind=blind)
        self._factor = factor

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN, context
        return self._factor * own_BN
