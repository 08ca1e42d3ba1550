"""Honest work on wrong data: every symbol that follows is the next one in the alphabet."""

from sim.attacks.seam import Attack, Symbols


class LabelFlip(Attack):
    """(symbol + 1) mod alphabet."""

    def poison(self, context_S: Symbols, next_S: Symbols, symbols: int) -> tuple[Symbols, Symbols]:
        """See Attack."""
        return context_S, (next_S + 1) % symbols
