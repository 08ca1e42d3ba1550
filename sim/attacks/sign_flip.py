"""The opposite of what was computed."""

from sim.attacks.seam import Attack, Context, Rows, Vector


class SignFlip(Attack):
    """-size x own."""

    def __init__(self, *, blind: bool = False, size: float = 1.0) -> None:
        super().__init__(blind=blind)
        self._size = size

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN, context
        return -self._size * own_BN
