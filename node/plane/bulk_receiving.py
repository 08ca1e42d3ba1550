"""One bulk stream on its way in: cells are read, answered, timed, and told of."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from node.holdings.cell_memory import LARGE_BYTES
from node.holdings.shard_store import Item, ShardStore
from node.plane import bulk
from node.plane.bulk_sending import THROUGH, put_off
from node.plane.line_limits import LineLimits
from protocol import events as ev
from protocol import limits
from protocol.errors import LimitError, NetworkError, PeerError, StreamClosedError
from protocol.frames import BulkHeader, BulkItem, BulkItems
from protocol.transport import Stream
from protocol.wire import decode

TOLD_EVERY_S = 0.25
"""The core hears of what arrives at most so often: its rules are asked each time."""


READ_AHEAD = 1
"""Cells of a stream, or some that came together, behind those that are checked and kept, and before
those that are read."""

Take = Callable[[Sequence[Item]], Awaitable[bool]]
"""Checks cells that came together and keeps them; whether the next ones are to come."""


class ReceivingOwner(Protocol):
    """What is needed of the driver."""

    store: ShardStore

    async def tell(self, event: ev.CoreEvent) -> None:
        """Queue an event."""
        ...


@dataclass(slots=True)
class Inbound:
    """One inbound stream. `cells` are in the store, and the core has not heard of them yet.

    `timed_bytes` came since `timed_s`, when the piece before them was here.
    """

    stream: Stream
    owner: ReceivingOwner
    scope: trio.CancelScope
    header: BulkHeader
    line: LineLimits
    cells: list[int] = field(default_factory=list)
    telling: trio.Lock = field(default_factory=trio.Lock)
    told_s: float = field(default_factory=trio.current_time)
    timed_bytes: int = 0
    timed_s: float = -1.0
    piece_s: float = -1.0
    num_left: int = field(init=False)
    """Cells that are not read yet."""

    def __post_init__(self) -> None:
        self.num_left = self.header.items

    async def items(self) -> list[Item]:
        """The next cell, or those that come together. Raises ProofError for one of another size,
        DecodeError, LimitError."""
        data = await self.stream.receive_frame(limits.BULK_ITEMS_HEADER_BYTES_MAX)
        head = decode(BulkItems, data)
        self.num_left -= len(head.items)
        if self.num_left < 0:
            raise LimitError(f"more cells than the {self.header.items} of the header")
        for item in head.items:
            bulk.check_size(self.owner.store, self.header, item.index, item.length)
        places = [self._place(item.length) for item in head.items]
        if len(places) == 1:
            await self._receive_pieces(places[0], head.piece)
        else:
            await self._receive_piece(*places)
            await self._say_through(int(any(places)))  # Of no bytes there is no piece.
        return [_item(item, place) for item, place in zip(head.items, places, strict=True)]

    def _place(self, num_bytes: int) -> memoryview:
        if num_bytes >= LARGE_BYTES:
            return self.owner.store.memory.take(num_bytes)
        return memoryview(bytearray(num_bytes))

    async def _receive_pieces(self, place: memoryview, piece_bytes: int) -> None:
        num_unsaid, left = 0, len(place)
        while left:
            piece = min(left, piece_bytes)
            if num_unsaid and self.stream.num_buffered < piece:
                await self._say_through(num_unsaid)  # The sender may wait for it.
                num_unsaid = 0
            if left < len(place):
                await self.tell_if_due()  # The last piece is told with the cell.
            # Whole pieces that are here are taken together: each taking is a copy and a step.
            here = self.stream.num_buffered // piece_bytes * piece_bytes
            size = left if left <= self.stream.num_buffered else max(piece, here)
            begin = len(place) - left
            await self._receive_piece(place[begin : begin + size])
            num_unsaid += -(-size // piece_bytes)
            left -= size
        await self._say_through(num_unsaid)

    async def _receive_piece(self, *places: memoryview) -> None:
        await self.stream.receive_into(*places)
        size = sum(map(len, places))
        await self.line.after_receiving(size, self.scope)
        self._time(size)
        put_off(self.scope, self.piece_s)

    async def _say_through(self, num_pieces: int) -> None:
        """Of all pieces that were there together at once, and with what goes there anyway: each
        answer alone is a record on the wire."""
        # The sender may have gone after its last byte: what came before is whole.
        with suppress(StreamClosedError):
            await self.stream.send_soon(THROUGH * num_pieces)

    def _time(self, size: int) -> None:
        """A piece is here; when the first one set out, nobody knows."""
        self.piece_s = trio.current_time()
        if self.timed_s < 0.0:
            self.timed_s, self.timed_bytes = self.piece_s, 0
        else:
            self.timed_bytes += size

    async def tell_if_due(self) -> None:
        """Tell, but not all the time."""
        if trio.current_time() >= self.told_s + TOLD_EVERY_S:
            await self.tell()

    async def tell(self) -> None:
        """Bytes are a sign of life; and what came before a transfer breaks is not asked again."""
        async with self.telling:
            await self._tell()

    async def _tell(self) -> None:
        self.told_s = trio.current_time()
        header, cells = self.header, tuple(self.cells)
        is_fetched = header.bulk in bulk.IS_SERVED
        event = ev.BytesArrived(
            self.stream.peer,
            is_fetched,
            header.subject,
            num_bytes=self.timed_bytes,
            seconds=max(0.0, self.piece_s - self.timed_s) if self.timed_bytes else 0.0,
        )
        self.timed_bytes = 0
        self.timed_s = self.piece_s if self.timed_s >= 0.0 else -1.0
        await self.owner.tell(event)
        if cells:
            await self.owner.tell(ev.CellsArrived(header.bulk, header.subject, cells))
            del self.cells[: len(cells)]

    async def take_all(self, take: Take, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Take each cell while the next ones are read; False if that came to an end before theirs.

        The line does not wait for hashes and disks. Raises what `take` and the stream raise.
        """
        send, receive = trio.open_memory_channel[list[Item]](READ_AHEAD)
        failure: PeerError | NetworkError | None = None
        num_taken = 0

        async def takes(scope: trio.CancelScope) -> None:
            nonlocal failure, num_taken
            try:
                async for items in receive:
                    if not await take(items):
                        break
                    num_taken += len(items)
                    await self.tell_if_due()
                else:
                    return
            except (PeerError, NetworkError) as error:
                failure = error
            scope.cancel()  # Nothing more is to be read.

        async with trio.open_nursery() as nursery:
            nursery.start_soon(takes, nursery.cancel_scope)
            # What was whole before a stream broke is taken still.
            try:
                async with send:
                    while self.num_left and is_wanted():
                        await _put(send, await self.items())
            except (PeerError, NetworkError) as error:
                failure = error
        if failure is not None:
            raise failure
        if num_taken < self.header.items:
            return False
        await self.tell()
        return True


def _item(head: BulkItem, place: memoryview) -> Item:
    # Read like bytes, and written by nobody from here on.
    is_large = len(place) >= LARGE_BYTES
    payload: bytes = place.toreadonly() if is_large else bytes(place)  # type: ignore[assignment]
    return Item(head.index, payload, head.nodes)


async def _put(send: trio.MemorySendChannel[list[Item]], items: list[Item]) -> None:
    """Where there is room, without a step of the loop."""
    try:
        send.send_nowait(items)
    except trio.WouldBlock:
        await send.send(items)
