"""A lying reducer: its sums are off by a bit, and its Gram matrices make one row far too long."""

from collections.abc import Callable

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from sim.attacks.seam import Attack
from sim.attacks.wrong_sum import spoiled_gram, spoiled_sum


class LyingReducer(Attack):
    """The vectors are honest; what becomes of everybody's is not."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return WrongSums()


class WrongSums(NodeHooks):
    """All that it sums and measures is wrong; it signs what it says of that once, as asked."""

    name = "attack lying_reducer"

    def measuring(self, store: ShardStore) -> Callable[..., bytes]:
        """See NodeHooks."""

        def measure(*arguments: object, **named: object) -> bytes:
            found: Callable[..., bytes] = store.measure
            return spoiled_gram(found(*arguments, **named))

        return measure

    def reducing(self, store: ShardStore) -> Callable[..., bytes]:
        """See NodeHooks."""

        def reduce(digest: bytes, *arguments: object, **named: int) -> bytes:
            found: Callable[..., bytes] = store.reduce
            found(digest, *arguments, **named)
            return spoiled_sum(store, digest, named["first"], named["stop"])

        return reduce
