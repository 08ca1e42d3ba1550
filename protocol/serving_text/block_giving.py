"""Who is given blocks, and when: each peer has a share of this node's time, as in a round. Pure."""

from collections import Counter
from collections.abc import Sequence

from protocol import limits
from protocol.core.budgets import OVER, Budgets
from protocol.identity import PeerId
from protocol.serving_text.block_events import GiveBlocks, GiverSetBack, TextAction
from protocol.serving_text.text_shape import BlockMask, TextShape

WANT_S = 1e-3
"""To read a request, and to open its stream."""

BLOCK_S = 3e-4
BYTE_S = 2e-9
"""To read a block, to find its proof, and to send it: a MiB takes 2 ms. A peer with a tenth of a
core is given some 40 MiB a second, and a peer that asks for what is not here is not free either."""

HOT_S = 60.0
HOT_GIVES = 24
"""A block that was given so often within HOT_S is hot: the next in order makes a copy."""


class BlockGiving:
    """The shares of all who ask, and which blocks they ask for most."""

    def __init__(self, shape: TextShape) -> None:
        self._shape = shape
        self._budgets = Budgets()
        self._given: Counter[int] = Counter()
        self._began_s = 0.0
        self.hot: tuple[int, ...] = ()

    def give(
        self, peer: PeerId, wanted: Sequence[int], held: BlockMask, now_s: float
    ) -> list[TextAction]:
        """The answer to a request: it waits where its peer is over its share, and is told of where
        that goes on and on."""
        blocks = tuple(n for n in wanted if n < len(held) and held[n])
        lacking = tuple(n for n in wanted if n not in blocks)
        cost_s = WANT_S + BLOCK_S * len(wanted) + BYTE_S * self._shape.block_bytes * len(blocks)
        charge = self._budgets.charge(peer, cost_s, now_s)
        self._given.update(blocks)
        actions: list[TextAction] = [GiveBlocks(peer, blocks, lacking, charge.wait_s)]
        if charge.is_over:
            actions.append(GiverSetBack(peer, OVER))
        return actions

    def count_hot(self, now_s: float) -> bool:
        """Whether other blocks are hot than before; looked at every HOT_S."""
        if now_s < self._began_s + HOT_S:
            return False
        self._began_s = now_s
        most = self._given.most_common(limits.TEXT_HOT_MAX)
        hot = tuple(sorted(block for block, count in most if count >= HOT_GIVES))
        self._given.clear()
        is_new, self.hot = hot != self.hot, hot
        return is_new
