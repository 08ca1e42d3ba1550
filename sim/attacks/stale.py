"""The own work of some rounds ago, for which nobody had to train again."""

from sim.attacks.seam import Attack, Context, Rows, Vector


class Stale(Attack):
    """The own contribution of `delay` rounds ago, or the oldest that there is."""

    def __init__(self, *, blind: bool = False, delay: int = 5) -> None:
        super().__init__(blind=blind)
        self._delay = delay

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN
        if not context.history:
            return own_BN
        return context.history[max(0, len(context.history) - self._delay)][: len(own_BN)]
