"""Cells that are one piece together: one header, one answer, one check."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.holdings.shard_store import Item
from node.holdings.states import LARGE_BYTES
from node.plane.bulk import part_root
from node.plane.bulk_queue import WINDOW_BYTES_MAX, LineLimits, Meter, SendWindow
from node.plane.bulk_streams import THROUGH, Inbound, num_together, send_items
from protocol import events as ev
from protocol import limits
from protocol.errors import PeerError
from protocol.frames import Bulk, BulkHeader
from tests.memory_transport import MemoryNetwork, stream_pair
from tests.node.cells.test_bulk_streams import CELLS, frame, good_transfer, head, received
from tests.node.edge import FOUNDER_SEED, Desk, toy_manifest


def items_of(sizes) -> list[Item]:
    return [Item(n, random.Random(f"{n}").randbytes(size), ()) for n, size in enumerate(sizes)]


def fast() -> Meter:
    pace = SendWindow()
    pace.window_bytes = WINDOW_BYTES_MAX
    return Meter(pace)


INT8 = (1 << 18) + 4 * 256
"""Bytes of a cell of 2^18 codes of 8 bits, a scale for each 1024 of them."""


@pytest.mark.parametrize(
    ("sizes", "piece", "count"),
    [
        ([INT8] * 17, limits.PIECE_BYTES_MAX, 16),
        ([INT8] * 5, limits.CHUNK_BYTES + 64 * limits.KIB, 4),
        ([limits.CHUNK_BYTES] * 5, limits.PIECE_BYTES_MAX, 4),
        ([5 * limits.MIB, 1], limits.PIECE_BYTES_MAX, 1),
        ([1000] * 100, limits.PIECE_BYTES_MAX, limits.ITEMS_TOGETHER_MAX),
        ([1000] * 3, limits.PIECE_BYTES_MAX, 3),
        ([32 * 1024] * 3, 64 * limits.KIB, 2),
        ([0, 64 * 1024, 0], 64 * limits.KIB, 3),
        ([1000] * 100, limits.PIECE_BYTES_MIN, 1),
        ([1000], limits.PIECE_BYTES_MAX, 1),
    ],
)
def test_so_many_go_together_as_are_one_piece(sizes, piece, count):
    assert num_together(items_of(sizes), piece) == count


def test_largest_window_has_the_largest_pieces_and_others_powers_of_two():
    pace, found = SendWindow(), []
    while pace.window_bytes < WINDOW_BYTES_MAX:
        found.append(pace.piece_bytes)
        pace.took(32 * limits.KIB, 0.001)
    assert set(found) == {limits.PIECE_BYTES_MIN << n for n in range(6)}
    assert found == sorted(found)
    assert pace.piece_bytes == limits.PIECE_BYTES_MAX
    assert 4 * pace.piece_bytes <= pace.window_bytes


async def sent(items: list[Item]) -> bytes:
    """What stands on the stream after `send_items`."""
    network, taken = MemoryNetwork(), bytearray()
    async with network.open(signer_seed=b"a" * 32) as a, network.open(signer_seed=b"b" * 32) as b:
        near, far = stream_pair(a, b)

        async def takes() -> None:
            while True:
                taken.extend(await far.receive_exactly(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(takes)
            with trio.CancelScope() as scope:
                await send_items(near, items, fast(), scope, None, trio.lowlevel.checkpoint)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    return bytes(taken)


@pytest.mark.quick(1)
@pytest.mark.parametrize("sizes", [[INT8] * 4, [1000] * 16, [0], [300_000], [0, 5, 0], [10, INT8]])
async def test_header_and_cells_stand_behind_one_another_whatever_is_copied(sizes):
    items = items_of(sizes)
    said = head(*items, piece=limits.PIECE_BYTES_MAX)
    assert await sent(items) == frame(said) + b"".join(item.payload for item in items)


async def test_cells_that_come_together_are_answered_once_and_kept_each_by_itself():
    _, target, header, items = good_transfer()
    taken: list[list[Item]] = []

    async def take(found: Sequence[Item]) -> bool:
        taken.append(list(found))
        return True

    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as one,
        network.open(signer_seed=b"t" * 32) as two,
    ):
        near, far = stream_pair(one, two)
        inbound = Inbound(far, target, trio.CancelScope(), header, LineLimits())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbound.take_all, take)
            for some in (items[:3], items[3:]):
                await near.send_all(frame(head(*some)), *(item.payload for item in some))
        assert await near.receive_exactly(2) == 2 * THROUGH
        assert near.num_buffered == 0
    assert taken == [items[:3], items[3:]]
    # Who needs one of them does not hold the others.
    assert all(type(item.payload) is bytes for some in taken for item in some)


async def test_cells_of_no_bytes_are_no_piece_and_not_answered(monkeypatch):
    monkeypatch.setattr("node.plane.bulk.check_size", lambda *_: None)
    header = BulkHeader(bulk=Bulk.PART, subject=bytes(32), round=1, items=4)
    desk, items = Desk(FOUNDER_SEED, toy_manifest()), items_of([0, 0, 5, 0])
    network = MemoryNetwork()
    async with network.open(signer_seed=b"a" * 32) as a, network.open(signer_seed=b"b" * 32) as b:
        near, far = stream_pair(a, b)
        inbound = Inbound(far, desk, trio.CancelScope(), header, LineLimits())
        for some, answers in ((items[:2], b""), (items[2:], THROUGH)):
            await near.send_all(frame(head(*some)), *(item.payload for item in some))
            assert await inbound.items() == some
            with trio.move_on_after(0.05):
                assert await near.receive_exactly(1) == answers
                answers = b""
            assert answers == b""


async def test_large_cells_that_come_together_lie_in_places_of_their_own(monkeypatch):
    monkeypatch.setattr("node.plane.bulk.check_size", lambda *_: None)
    header = BulkHeader(bulk=Bulk.PART, subject=bytes(32), round=1, items=2)
    desk, items = Desk(FOUNDER_SEED, toy_manifest()), items_of([LARGE_BYTES, LARGE_BYTES + 1])
    network = MemoryNetwork()
    async with network.open(signer_seed=b"a" * 32) as a, network.open(signer_seed=b"b" * 32) as b:
        near, far = stream_pair(a, b)
        inbound = Inbound(far, desk, trio.CancelScope(), header, LineLimits())
        async with trio.open_nursery() as nursery:
            said = head(*items, piece=limits.PIECE_BYTES_MAX)
            parts = (frame(said), *(item.payload for item in items))
            nursery.start_soon(near.send_all, *parts)
            found = await inbound.items()
    assert [bytes(item.payload) for item in found] == [item.payload for item in items]
    first, second = (cast("memoryview", item.payload) for item in found)
    assert first.readonly
    assert first.obj is not second.obj


@pytest.mark.parametrize("wrong", range(3))
async def test_wrong_cell_among_others_is_a_fault_and_not_kept(wrong):
    _, target, header, items = good_transfer()
    bent = [
        replace(item, payload=bytes(len(item.payload))) if item.index == wrong else item
        for item in items
    ]
    data = frame(header) + frame(head(*bent)) + b"".join(item.payload for item in bent)
    with pytest.raises((PeerError, ExceptionGroup)):
        await received(target, data)
    assert ["Merkle" in reason for reason in target.faults()] == [True]
    assert not any(isinstance(event, ev.CellsArrived) for event in target.told)
    root = part_root(target.core, header.subject, 1)
    assert root is not None
    assert target.store.parts(root, CELLS) == items[:wrong]


async def test_together_they_are_told_as_one_by_one():
    _, target, header, items = good_transfer()
    data = frame(header) + frame(head(*items)) + b"".join(item.payload for item in items)
    await received(target, data)
    assert target.faults() == []
    assert ev.CellsArrived(Bulk.PART, header.subject, CELLS) in target.told
