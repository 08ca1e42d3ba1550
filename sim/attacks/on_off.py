"""Honest in most rounds, so that few look: every tenth round is a large sign flip."""

from sim.attacks.seam import Attack, Context, Rows, Vector


class OnOff(Attack):
    """-size x own in each round whose number `every` divides, else own."""

    def __init__(self, *, blind: bool = False, every: int = 10, size: float = 10.0) -> None:
        super().__init__(blind=blind)
        self._every, self._size = every, size

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN
        return own_BN if context.round % self._every else -self._size * own_BN
