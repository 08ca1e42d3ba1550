"""A reducer that sums wrongly: the lowest bit of its slice's first element is flipped.

Where the rule asks for a Gram matrix, its first row is far too long.
"""

import numpy as np

from node.holdings.shard_store import ShardStore
from protocol.grid import cell_root


def spoiled_sum(store: ShardStore, digest: bytes, first: int, stop: int) -> bytes:
    """Spoil what was just summed of cells [first, stop); the root that its AGG names then."""
    held = store._results[digest]
    payload = held.get(first)
    assert payload is not None, "just summed"
    payload = bytes([payload[0] ^ 1]) + payload[1:]
    held.put(first, payload, cell_root(payload))
    return held.root(first, stop)


def spoiled_gram(stats: bytes) -> bytes:
    """The wire form of a Gram matrix with a first row that is a thousand times as long."""
    numbers = np.frombuffer(stats, dtype="<f8").copy()
    numbers[0] = 1e6 * numbers[0] + 1.0
    return numbers.tobytes()
