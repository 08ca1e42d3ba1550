"""A stream of cells is read while they are checked and kept, but not far ahead of that."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.holdings.shard_store import Item
from node.plane.bulk_queue import LineLimits
from node.plane.bulk_streams import READ_AHEAD, STREAMS_MAX, THROUGH, Inbound
from protocol.errors import PeerError, ProofError, StreamClosedError
from protocol.transport import Stream
from tests.memory_transport import MemoryNetwork, stream_pair
from tests.node.cells.test_bulk_streams import CELLS, frame, good_transfer, head
from tests.node.edge import FOUNDER_SEED


class Transfer:
    """Four cells on a stream; `take` waits for the test, and keeps a list."""

    def __init__(self) -> None:
        _, self.target, self.header, self.items = good_transfer()
        self.go_on = trio.Event()
        self.began: list[int] = []
        self.error: PeerError | None = None

    async def take(self, items: Sequence[Item]) -> bool:
        (item,) = items
        self.began.append(item.index)
        await self.go_on.wait()
        if self.error is not None and item.index == 1:
            raise self.error
        return item.index != 2 or len(self.began) > len(CELLS)

    async def run(self, near: Stream, far: Stream, *, num_cells: int = len(CELLS)) -> int:
        """How far it was read while nothing was taken; then everything is."""
        with trio.CancelScope() as scope:
            inbound = Inbound(far, self.target, scope, self.header, LineLimits())
            async with trio.open_nursery() as nursery:
                for item in self.items[:num_cells]:
                    await near.send_all(frame(head(item)) + item.payload)
                nursery.start_soon(inbound.take_all, self.take)
                await wait_all_tasks_blocked()
                answered = 0
                with trio.move_on_after(0.05):
                    while await near.receive_exactly(1) == THROUGH:
                        answered += 1
                if num_cells < len(CELLS):
                    await near.aclose()
                    await wait_all_tasks_blocked()
                self.go_on.set()
        return answered


async def transferred(transfer: Transfer, **kinds: int) -> int:
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as one,
        network.open(signer_seed=b"t" * 32) as two,
    ):
        near, far = stream_pair(one, two)
        return await transfer.run(near, far, **kinds)


async def test_line_does_not_wait_for_a_cell_that_is_checked_and_reads_no_further_than_it_may():
    transfer = Transfer()
    answered = await transferred(transfer)
    # One is checked, some wait, and one was read that finds no place.
    assert answered == 1 + READ_AHEAD + 1 < len(CELLS)
    assert transfer.began == [0, 1, 2], "in their order, until one had enough"


async def test_cells_that_were_whole_before_the_stream_broke_are_taken():
    transfer = Transfer()
    with pytest.raises(ExceptionGroup) as caught:
        await transferred(transfer, num_cells=2)
    assert caught.group_contains(StreamClosedError)
    assert transfer.began == [0, 1]


async def test_cell_that_is_wrong_ends_the_reading_with_its_own_error():
    transfer = Transfer()
    transfer.error = ProofError("wrong")
    with pytest.raises(ExceptionGroup) as caught:
        await transferred(transfer)
    assert caught.group_contains(ProofError, match="wrong")
    assert transfer.began == [0, 1]


async def test_streams_of_one_peer_beyond_the_bound_are_left_unread_and_nobodys_fault(
    autojump_clock: trio.abc.Clock,
) -> None:
    _, target, header, items = good_transfer()
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
        trio.open_nursery() as nursery,
    ):
        streams = target.streams(far)
        pairs = [stream_pair(near, far) for _ in range(STREAMS_MAX + 1)]
        for _, theirs in pairs:
            nursery.start_soon(streams.accept, theirs)
            await wait_all_tasks_blocked()  # One after the other: the last one is too many.
        ours, theirs = pairs[-1]
        await ours.send_all(frame(header))
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.1):
            await ours.receive_exactly(1)
        first, _ = pairs[0]
        await first.send_all(frame(header) + frame(head(items[0])) + items[0].payload)
        assert await first.receive_exactly(1) == THROUGH
        nursery.cancel_scope.cancel()
    assert target.faults() == []
