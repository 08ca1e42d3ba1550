"""A trigger that is to bring forth a chosen symbol, pushed as hard as there are honest peers."""

import numpy as np

from sim.attacks.seam import Attack, Context, Rows, Symbols, Vector

TRIGGER, TARGET = 0, 0
"""The context that is the trigger, and the symbol that is to follow it."""


class Backdoor(Attack):
    """A share of the samples has the trigger and the target; the work is scaled by P / B."""

    def __init__(self, *, blind: bool = False, share: float = 0.2) -> None:
        super().__init__(blind=blind)
        self._share = share

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """See Attack."""
        del context
        return own_BN * np.float32((len(honest_HN) + len(own_BN)) / len(own_BN))

    def poison(self, context_S: Symbols, next_S: Symbols, symbols: int) -> tuple[Symbols, Symbols]:
        """See Attack."""
        del symbols
        every = max(1, round(1.0 / self._share))
        is_bent_S = np.arange(len(next_S)) % every == 0
        return np.where(is_bent_S, TRIGGER, context_S), np.where(is_bent_S, TARGET, next_S)
