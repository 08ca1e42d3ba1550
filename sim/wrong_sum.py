"""A reducer that sums wrongly: the lowest bit of its slice's first element is flipped."""

from node.cells.shard_store import ShardStore
from protocol.grid import cell_root


def spoiled_sum(store: ShardStore, digest: bytes, first: int, stop: int) -> bytes:
    """Spoil what was just summed of cells [first, stop); the root that its AGG names then."""
    held = store._results[digest]
    payload = held[first]
    payload = bytes([payload[0] ^ 1]) + payload[1:]
    held.put(first, payload, cell_root(payload))
    return held.root(first, stop)
