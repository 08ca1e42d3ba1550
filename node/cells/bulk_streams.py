"""Bulk streams: cells out, cells in, each checked on arrival. One stream per transfer.

What is sent when is decided in `node.cells.bulk_queue`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import trio

from node import events as ev
from node.cells import bulk
from node.cells.bulk_queue import Meter, Pace, PushQueue
from node.cells.line_limits import LineLimits, Pause
from node.cells.shard_store import Item, ShardStore, State
from node.core import NodeCore
from node.durable.write_ahead import WriteAhead
from node.hooks import NodeHooks
from node.state_transfer.state_streams import Fetching, InMemory, Outgoing, Serving, StateParts
from node.status.board import EventLog
from protocol import limits
from protocol.errors import NetworkError, PeerError, ProofError, StreamClosedError
from protocol.frames import Bulk, BulkHeader, BulkItem
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealCertificate
from protocol.transport import Stream, Transport
from protocol.wire import decode, encode

logger = logging.getLogger(__name__)

BULK_PROTOCOL = "/barnraise/bulk/1"

STALL_S = 10.0
"""A transfer of which no piece moves for so long is given up; the round does without it."""

OVERTAKEN_S = 4.0
"""Cells can overtake the message that commits to them; under the 5 s after which the library
resets a stream whose reader does not read."""

TOLD_EVERY_S = 0.25
"""The core hears of what arrives at most so often: its rules are asked each time."""

SMALL_BYTES = 64 * limits.KIB
"""Below it, hashing costs less than the way to a worker thread and back."""

LENGTH_BYTES = 4
"""Before a frame (`Stream.send_frame`), which here goes out together with what follows it."""

THROUGH = b"\x01"
"""The taker's answer to a piece."""

T = TypeVar("T")


class Owner(Protocol):
    """What the streams need of the driver."""

    core: NodeCore
    store: ShardStore
    ahead: WriteAhead

    def is_linked(self, peer: PeerId) -> bool:
        """Whether a peer's hello is checked and its control stream is open."""
        ...

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        """Queue an event."""
        ...

    async def changed(self) -> None:
        """Until the core has handled another event."""
        ...

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work in a worker thread."""
        ...

    async def state_arrived(self, certificate: SealCertificate, state: State) -> None:
        """The state of that seal is here, and is what was sealed."""
        ...


@dataclass(slots=True)
class _Inbound:
    """One inbound stream. `cells` are in the store, and the core has not heard of them yet.

    `timed_bytes` came since `timed_s`, when the piece before them was here.
    """

    stream: Stream
    owner: Owner
    scope: trio.CancelScope
    header: BulkHeader
    line: LineLimits
    cells: list[int] = field(default_factory=list)
    told_s: float = field(default_factory=trio.current_time)
    timed_bytes: int = 0
    timed_s: float = -1.0
    piece_s: float = -1.0

    async def item(self) -> Item:
        """The next cell. Raises ProofError for one of another size, DecodeError, LimitError."""
        data = await self.stream.receive_frame(limits.BULK_ITEM_HEADER_BYTES_MAX)
        head = decode(BulkItem, data)
        expected = bulk.expected_bytes(self.owner.store, self.header, head.index)
        if head.length != expected:
            raise ProofError(f"cell {head.index} has {head.length} bytes instead of {expected}")
        received: list[bytes] = []
        num_unsaid, left = 0, head.length
        while left:
            piece = min(left, head.piece)
            if num_unsaid and self.stream.num_buffered < piece:
                await self._say_through(num_unsaid)  # The sender may wait for it.
                num_unsaid = 0
            if received:
                await self.tell_if_due()  # The last piece is told with the cell.
            # Whole pieces that are here are taken together: each taking is a copy and a step.
            here = self.stream.num_buffered // head.piece * head.piece
            size = left if left <= self.stream.num_buffered else max(piece, here)
            received.append(await self.stream.receive_exactly(size))
            await self.line.after_receiving(size, self.scope)
            self._time(size)
            self.scope.deadline = self.piece_s + STALL_S
            num_unsaid += -(-size // head.piece)
            left -= size
        await self._say_through(num_unsaid)
        return Item(
            head.index, received[0] if len(received) == 1 else b"".join(received), head.proof
        )

    async def _say_through(self, num_pieces: int) -> None:
        """Of all pieces that were there together at once: each answer is a record on the wire."""
        # The sender may have gone after its last byte: what came before is whole.
        with suppress(StreamClosedError):
            await self.stream.send_all(THROUGH * num_pieces)

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


class BulkStreams:
    """Sends and receives cells for one driver."""

    def __init__(
        self, owner: Owner, transport: Transport, hooks: NodeHooks, log: EventLog, parts: StateParts
    ) -> None:
        self._owner = owner
        self._transport = transport
        self._hooks = hooks
        self._log = log
        self.fetching = Fetching(owner, parts.gathered)
        self._serving = Serving(owner, parts)
        self._line = parts.line
        self._queue = PushQueue()
        self._paces: dict[PeerId, Pace] = {}
        self.parts_in_flight = 0

    # Out ----------------------------------------------------------------------------------------

    async def push(self, push: ev.Push) -> None:
        """Send the cells that are here once it is their turn, and then whatever else waits.

        A peer out of reach asks elsewhere, or is absent.
        """
        self._queue.offer(push, round_index=self._owner.core.machine.view.index)
        while (due := self._queue.begin(push.to)) is not None:
            try:
                await self._send(due)
            finally:
                self._queue.done(due)

    async def _send(self, push: ev.Push) -> None:
        if not self._owner.is_linked(push.to):
            self._queue.forget(push.to)
            return
        about = bulk.round_of(self._owner.core, push)
        if about is None:
            return
        if push.bulk in bulk.IS_SERVED:
            cells: Outgoing = await self._serving.cells(push)
        else:
            cells = InMemory(bulk.outgoing(self._owner.core, self._owner.store, push))
        count = cells.count
        if not count or not bulk.is_of_use(self._owner.core, push):
            return
        header = BulkHeader(bulk=push.bulk, subject=push.subject, round=about, items=count)
        is_part = push.bulk is Bulk.PART
        round_index = self._owner.core.machine.view.index
        if is_part:
            self.parts_in_flight += 1
            self._log.emit("phase", round=round_index, phase="pushing", attempt=0)
        self._serving.num_of_round += push.bulk not in bulk.IS_SERVED
        try:
            await self._send_items(push, header, cells)
        except (NetworkError, trio.TooSlowError) as error:
            reason = str(error) or f"nothing moved for {STALL_S:g} s"
            logger.info(
                "not sent peer=%s what=%s reason=%s", short_id(push.to), push.bulk.name, reason
            )
        else:
            if is_part:
                self._tell_parts(push.to, round_index, count, "out")
        finally:
            self.parts_in_flight -= is_part
            self._serving.num_of_round -= push.bulk not in bulk.IS_SERVED

    def _pace(self, peer: PeerId) -> Pace:
        if peer not in self._paces:
            # A peer may come under many names, but not be linked under all of them.
            kept = {p: pace for p, pace in self._paces.items() if self._owner.is_linked(p)}
            self._paces = {**kept, peer: Pace()}
        return self._paces[peer]

    async def _send_items(self, push: ev.Push, header: BulkHeader, cells: Outgoing) -> None:
        meter = Meter(self._pace(push.to))
        is_state = push.bulk is Bulk.STATE
        pause = self._line.turn(self._serving.pause if is_state else None)
        with trio.fail_after(STALL_S) as scope:
            stream = await self._transport.open_stream(push.to, BULK_PROTOCOL)
            try:
                await stream.send_frame(encode(header))
                while found := await cells.more():
                    for item in found:
                        sent = self._hooks.sent_item(push.bulk, item)
                        await _send_item(stream, sent, meter, scope, pause)
                # It is under way until the taker has it: the system's buffers hold a round's bytes.
                while meter.under_way:
                    await _await_through(stream, meter, scope)
            finally:
                await stream.aclose()

    # In -----------------------------------------------------------------------------------------

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound bulk streams. Raises PeerError for what does not fit.

        A peer that is not linked may be one that only the DHT knows; its cells are none of ours.
        """
        if not self._owner.is_linked(stream.peer):
            logger.debug("bulk stream of a peer without a link peer=%s", short_id(stream.peer))
            return
        inbound: _Inbound | None = None
        try:
            with trio.fail_after(STALL_S) as scope:
                data = await stream.receive_frame(limits.BULK_HEADER_BYTES_MAX)
                inbound = _Inbound(stream, self._owner, scope, decode(BulkHeader, data), self._line)
                scope.deadline = trio.current_time() + STALL_S
                if inbound.header.bulk in bulk.IS_SERVED:
                    await self._receive_fetched(inbound)
                else:
                    await self._receive_cells(inbound)
        except trio.TooSlowError as error:
            raise StreamClosedError(f"a transfer of {short_id(stream.peer)} stalled") from error
        except PeerError as error:
            await self._owner.tell(ev.Fault(stream.peer, f"bulk: {error}"))
            if inbound is not None and inbound.header.bulk in bulk.IS_SERVED:
                await self._owner.tell(ev.FetchedWrong(stream.peer))
            raise
        finally:
            if inbound is not None and inbound.cells:
                await inbound.tell()

    async def _receive_cells(self, inbound: _Inbound) -> None:
        owner, header, peer = self._owner, inbound.header, inbound.stream.peer
        round_index = owner.core.machine.view.index
        for _ in range(header.items):
            item = await inbound.item()
            if not bulk.can_check(owner.core, header, item.index):
                inbound.timed_s = -1.0  # The line does not wait: this node does.
            if not await self._is_checkable(header, item.index):
                logger.info("cells of nothing known peer=%s", short_id(peer))
                return
            accept = bulk.admission(owner.core, owner.store, header, item)
            if len(item.payload) <= SMALL_BYTES:
                accept()
            else:
                await owner.compute(accept)
            if header.bulk is Bulk.RESULT:
                view = owner.core.machine.standing.about(header.subject)
                if view is not None:
                    digest, index = header.subject, view.index
                    here = owner.store.results_to_keep(digest, (item.index,), round_index=index)
                    owner.ahead.offer(index, digest, here)
            inbound.cells.append(item.index)
            await inbound.tell_if_due()
        await inbound.tell()
        if header.bulk is Bulk.PART:
            self._tell_parts(peer, round_index, header.items, "in")

    async def _is_checkable(self, header: BulkHeader, index: int) -> bool:
        with trio.move_on_after(OVERTAKEN_S):
            while not bulk.can_check(self._owner.core, header, index):
                await self._owner.changed()
        return bulk.can_check(self._owner.core, header, index)

    async def _receive_fetched(self, inbound: _Inbound) -> None:
        """Cells of a state or step; what nobody asked for any more is nobody's fault."""
        for _ in range(inbound.header.items):
            if not self.fetching.takes(inbound.header):
                return
            item = await inbound.item()
            await self.fetching.take(inbound.stream.peer, inbound.header, item)
            await inbound.tell_if_due()
        await inbound.tell()

    def _tell_parts(self, peer: PeerId, round_index: int, cells: int, direction: str) -> None:
        self._log.emit(
            "parts",
            round=round_index,
            peer=peer_id_text(peer),
            cells=cells,
            direction=direction,
        )


def _pieces(num_bytes: int, piece_bytes: int) -> Iterator[int]:
    """The sizes of the pieces in which both ends count a cell."""
    for start in range(0, num_bytes, piece_bytes):
        yield min(piece_bytes, num_bytes - start)


async def _send_item(
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
        if pause is not None:
            await pause(sizes[0], scope)
        while not meter.has_room(sizes[0]):
            await _await_through(stream, meter, scope)
        now_s, size = trio.current_time(), 0
        while sizes and meter.has_room(sizes[0]) and not (pause is not None and size):
            meter.sent(sizes[0], now_s)
            size += sizes.popleft()
        await stream.send_all(said + view[:size] if said else view[:size])
        said, view = b"", view[size:]
        scope.deadline = trio.current_time() + STALL_S
    if said:  # A cell of no bytes.
        await stream.send_all(said)


async def _await_through(stream: Stream, meter: Meter, scope: trio.CancelScope) -> None:
    # All that are here, but no more than were asked for: a peer may say anything.
    count = max(1, min(stream.num_buffered // len(THROUGH), meter.num_pieces))
    await stream.receive_exactly(count * len(THROUGH))
    now_s = trio.current_time()
    for _ in range(count):
        meter.through(now_s)
    scope.deadline = now_s + STALL_S
