"""Whether joiners have the state that they say they have."""

from collections.abc import Awaitable, Callable

from node.holdings.shard_store import ShardStore
from protocol.core.node_core import NodeCore
from protocol.events import CheckSeat, SeatChecked

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
