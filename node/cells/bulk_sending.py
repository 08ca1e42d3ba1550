"""One cell on its way out: its header, then its pieces, as the taker answers them."""

from collections import deque
from collections.abc import Iterator

import trio

from node.cells.bulk_queue import Meter
from node.cells.line_limits import Pause
from node.cells.shard_store import Item
from protocol import limits
from protocol.frames import BulkItem
from protocol.transport import Stream
from protocol.wire import encode

STALL_S = 10.0
"""A transfer of which no piece moves for so long is given up; the round does without it."""

JOINED_BYTES = 259 * limits.KIB
"""Of a cell goes out in one piece with what is said of it, a copy; the rest from where it lies. A
cell of 2^18 codes of 8 bits is all in it: the KiB or two beyond 256 would be a record of their own.
"""

STALL_SPARE_S = 1.0
"""By so much a deadline may be too early: moving one costs the loop as much as a step."""

LENGTH_BYTES = 4
"""Before a frame (`Stream.send_frame`), which here goes out together with what follows it."""

THROUGH = b"\x01"
"""The taker's answer to a piece."""


def _pieces(num_bytes: int, piece_bytes: int) -> Iterator[int]:
    """The sizes of the pieces in which both ends count a cell."""
    for start in range(0, num_bytes, piece_bytes):
        yield min(piece_bytes, num_bytes - start)


def put_off(scope: trio.CancelScope, now_s: float) -> None:
    """A piece has moved: the transfer has `STALL_S` again, less `STALL_SPARE_S` at most."""
    if not STALL_S - STALL_SPARE_S <= scope.deadline - now_s <= STALL_S:
        scope.deadline = now_s + STALL_S


async def send_item(
    stream: Stream,
    item: Item,
    meter: Meter,
    scope: trio.CancelScope,
    pause: Pause | None,
) -> None:
    """A cell and what is said of it. As much as may be under way goes in one piece: each write
    ends a record on the wire, however short."""
    # What is held back goes piece by piece, or it would come in gusts.
    piece_bytes = meter.piece_bytes if pause is None else limits.PIECE_BYTES_MIN
    payload = item.payload
    head = BulkItem(index=item.index, length=len(payload), piece=piece_bytes, proof=item.proof)
    encoded = encode(head)
    said = len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded
    view, sizes = memoryview(payload), deque(_pieces(len(payload), piece_bytes))
    while sizes:
        while not meter.has_room(sizes[0]):
            await await_through(stream, meter, scope)
        if pause is not None:
            await pause(sizes[0], scope)
        now_s, size = trio.current_time(), 0
        while sizes and meter.has_room(sizes[0]) and not (pause is not None and size):
            meter.sent(sizes[0], now_s)
            size += sizes.popleft()
        if said:
            num_joined = min(size, JOINED_BYTES)
            await stream.send_all(said + view[:num_joined])
            said, view, size = b"", view[num_joined:], size - num_joined
        if size:
            await stream.send_all(view[:size])
            view = view[size:]
        put_off(scope, trio.current_time())
    if said:  # A cell of no bytes.
        await stream.send_all(said)


async def await_through(stream: Stream, meter: Meter, scope: trio.CancelScope) -> None:
    """Until the taker has read one more piece at least."""
    # All that are here, but no more than were asked for: a peer may say anything.
    count = max(1, min(stream.num_buffered // len(THROUGH), meter.num_pieces))
    await stream.receive_exactly(count * len(THROUGH))
    now_s = trio.current_time()
    for _ in range(count):
        meter.through(now_s)
    put_off(scope, now_s)
