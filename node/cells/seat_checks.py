"""Whether joiners have the state that they say they have."""

from collections.abc import Awaitable, Callable

import trio

from node.cells.shard_store import ShardStore
from node.core import NodeCore
from node.events import CheckSeat, SeatChecked

Compute = Callable[[Callable[[], bytes]], Awaitable[bytes]]


class SeatChecks:
    """Checks proofs one after the other: anybody may ask for a seat, each proof takes a hash over
    the whole state, and sums are to wait for one of them at most."""

    def __init__(self, core: NodeCore, store: ShardStore, compute: Compute) -> None:
        self._core, self._store, self._compute = core, store, compute
        self._turn = trio.Lock()

    async def check(self, action: CheckSeat) -> SeatChecked | None:
        """What came of it; None where the round is over."""
        peer, basis = action.peer, action.basis
        async with self._turn:
            on = self._core.machine.standing.on(basis)
            if on is None:
                return None
            root = on.head.root
            expected = await self._compute(lambda: self._store.seat_proof(peer, basis, root))
        return SeatChecked(peer, basis, expected == action.proof)
