"""A reducer that sums wrongly: the lowest bit of its slice's first element is flipped."""

from node.shard_store import ShardStore
from protocol.grid import cell_root, merkle_root


def spoiled_sum(store: ShardStore, digest: bytes, first: int, stop: int) -> bytes:
    """Spoil what was just summed of cells [first, stop); the root that its AGG names then."""
    held = store._results[digest]
    payload = bytearray(held[first])
    payload[0] ^= 1
    held[first] = bytes(payload)
    return merkle_root([cell_root(held[cell]) for cell in range(first, stop)])
