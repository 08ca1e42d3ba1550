"""One element that is no number."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Vector


class Nan(Attack):
    """The own work, with one NaN, infinity or whatever else in it."""

    def __init__(self, *, blind: bool = False, value: float = float("nan")) -> None:
        super().__init__(blind=blind)
        self._value = value

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del honest_HN
        sent_BN = own_BN.copy()
        sent_BN[:, int(context.luck.integers(own_BN.shape[1]))] = np.float32(self._value)
        return sent_BN
