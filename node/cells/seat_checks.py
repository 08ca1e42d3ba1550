"""Whether joiners have the state that they say they have."""

from collections.abc import Awaitable, Callable

from node.cells.shard_store import ShardStore
from node.core import NodeCore
from node.events import CheckSeat, SeatChecked

Compute = Callable[[Callable[[], bytes]], Awaitable[bytes]]


async def check_seat(
    core: NodeCore, store: ShardStore, compute: Compute, action: CheckSeat
) -> SeatChecked:
    """What came of a proof; the core asks for one after the other."""
    peer, basis, expected = action.peer, action.basis, b""
    on = core.machine.standing.on(basis)
    if on is not None:
        root = on.head.root
        expected = await compute(lambda: store.seat_proof(peer, basis, root))
    return SeatChecked(peer, basis, expected == action.proof if expected else None)
