"""Cells on their way out: what is said of them, then their pieces, as the taker answers them.

As many cells as are one piece go together: each header, answer and step of the loop costs as much
for a cell of a few bytes as for one of many.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import trio

from node.holdings.shard_store import Item
from node.plane.bulk_queue import Meter
from node.plane.line_limits import Pause
from protocol import limits
from protocol.frames import BulkItem, BulkItems
from protocol.parts import taken
from protocol.transport import Stream
from protocol.wire import encode

STALL_S = 10.0
"""A transfer of which no piece moves for so long is given up; the round does without it."""

STALL_SPARE_S = 1.0
"""By so much a deadline may be too early: moving one costs the loop as much as a step."""

LENGTH_BYTES = 4
"""Before a frame (`Stream.send_frame`), which here goes out together with what follows it."""

THROUGH = b"\x01"
"""The taker's answer to a piece."""


def piece_bytes(meter: Meter, pause: Pause | None) -> int:
    """How large the next pieces are. What is held back goes in small ones, or it would come in
    gusts."""
    return meter.piece_bytes if pause is None else limits.PIECE_BYTES_MIN


def num_together(items: Sequence[Item], piece: int) -> int:
    """How many of the first of them, at least one, go together. On a line whose pieces are the
    smallest both ends see each cell move."""
    if piece <= limits.PIECE_BYTES_MIN:
        return 1
    num_bytes = 0
    for count, item in enumerate(items[: limits.ITEMS_TOGETHER_MAX]):
        num_bytes += len(item.payload)
        if count and num_bytes > piece:
            return count
    return min(len(items), limits.ITEMS_TOGETHER_MAX)


def _pieces(num_bytes: int, piece: int) -> Iterator[int]:
    """The sizes of the pieces in which both ends count what is sent."""
    for start in range(0, num_bytes, piece):
        yield min(piece, num_bytes - start)


def put_off(scope: trio.CancelScope, now_s: float) -> None:
    """A piece has moved: the transfer has `STALL_S` again, less `STALL_SPARE_S` at most."""
    if not STALL_S - STALL_SPARE_S <= scope.deadline - now_s <= STALL_S:
        scope.deadline = now_s + STALL_S


async def send_items(
    stream: Stream,
    items: Sequence[Item],
    meter: Meter,
    scope: trio.CancelScope,
    pause: Pause | None,
) -> None:
    """One cell, or some that are one piece (`num_together`), and what is said of them. As much as
    may be under way goes at once: each write ends a record on the wire, however short."""
    piece = piece_bytes(meter, pause)
    sizes = deque(_pieces(sum(len(item.payload) for item in items), piece))
    said, waiting = _to_send(items, piece)
    while sizes:
        while not meter.has_room(sizes[0]):
            await await_through(stream, meter, scope)
        if pause is not None:
            await pause(sizes[0], scope)
        now_s, size = trio.current_time(), said
        while sizes and meter.has_room(sizes[0]) and not (pause is not None and size > said):
            meter.sent(sizes[0], now_s)
            size += sizes.popleft()
        said = 0
        await stream.send_all(*taken(waiting, size))
        put_off(scope, trio.current_time())
    if said:  # A cell of no bytes.
        await stream.send_all(waiting.popleft())


def _to_send(items: Sequence[Item], piece: int) -> tuple[int, deque[memoryview]]:
    """What goes on the stream, in parts; and how many bytes of it are not the cells'."""
    heads = tuple(
        BulkItem(index=item.index, length=len(item.payload), proof=b"".join(item.proof))
        for item in items
    )
    head = encode(BulkItems(items=heads, piece=piece))
    said = len(head).to_bytes(LENGTH_BYTES, "big") + head
    parts = (memoryview(part) for part in (said, *(item.payload for item in items)))
    return len(said), deque(part for part in parts if part)


async def await_through(stream: Stream, meter: Meter, scope: trio.CancelScope) -> None:
    """Until the taker has read one more piece at least."""
    # All that are here, but no more than were asked for: a peer may say anything.
    count = max(1, min(stream.num_buffered // len(THROUGH), meter.num_pieces))
    await stream.receive_exactly(count * len(THROUGH))
    now_s = trio.current_time()
    for _ in range(count):
        meter.through(now_s)
    put_off(scope, now_s)
