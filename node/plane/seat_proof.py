"""What a joiner shows for its seat: the state of the newest seal, and the run's join puzzle."""

from node.holdings.shard_store import ShardStore
from protocol.events import SeatProven
from protocol.identity import PeerId
from protocol.join_puzzle import solve
from protocol.manifest import RunManifest


def seat_proven(manifest: RunManifest, store: ShardStore, me: PeerId, basis: bytes) -> SeatProven:
    """The proof of the state of `basis`; the first time the puzzle takes its seconds of one core.

    Called in a worker thread.
    """
    work = solve(manifest.digest, me, manifest.admission.puzzle_bits)
    return SeatProven(basis, store.seat_proof(me, basis), work)
