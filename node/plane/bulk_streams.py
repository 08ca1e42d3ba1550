"""Bulk streams: cells out, cells in, each checked on arrival. One stream per transfer.

What is sent when is decided in `node.plane.bulk_queue`.
"""

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol, TypeVar

import trio

from node.holdings.journal import WriteAhead
from node.holdings.shard_store import Item, ShardStore, State
from node.holdings.states import LARGE_BYTES
from node.plane import bulk
from node.plane.bulk import Checks
from node.plane.bulk_queue import LineLimits, Meter, Pause, PushQueue, SendWindow, Uplink
from node.plane.hooks import NodeHooks
from node.plane.state_streams import Fetching, Outgoing, Serving, StateParts
from node.status.board import EventLog
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.errors import (
    LimitError,
    NetworkError,
    PeerError,
    StateError,
    StreamClosedError,
)
from protocol.frames import Bulk, BulkHeader, BulkItem, BulkItems
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealCertificate
from protocol.transport import Stream, Transport, taken
from protocol.wire import decode, encode

# Bulk sending -------------------------------------------------------------------------------------
#
# Cells on their way out: what is said of them, then their pieces, as the taker answers them.
#
# As many cells as are one piece go together: each header, answer and step of the loop costs as much
# for a cell of a few bytes as for one of many.

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
    moved: Callable[[], Awaitable[None]],
) -> None:
    """One cell, or some that are one piece (`num_together`), and what is said of them. As much as
    may be under way goes at once: each write ends a record on the wire, however short. `moved` is
    awaited after each piece that the taker has read while this waits for it."""
    piece = piece_bytes(meter, pause)
    sizes = deque(_pieces(sum(len(item.payload) for item in items), piece))
    said, waiting = _to_send(items, piece)
    while sizes:
        while not meter.has_room(sizes[0]):
            await await_through(stream, meter, scope)
            await moved()
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


# Bulk receiving -----------------------------------------------------------------------------------
#
# One bulk stream on its way in: cells are read, answered, timed, and told of.

TOLD_EVERY_S = 0.25
"""The core hears of what arrives at most so often: its rules are asked each time."""


GIVEN_EVERY_S = 1.0
"""Seconds between two words about one transfer to a peer that takes a state or a result."""

GIVEN = bulk.IS_SERVED | {Bulk.RESULT}

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


logger = logging.getLogger(__name__)

# Bulk streams -------------------------------------------------------------------------------------

BULK_PROTOCOL = "/barnraise/bulk/1"

OVERTAKEN_S = 4.0
"""Cells can overtake the message that commits to them; under the 5 s after which the library
resets a stream whose reader does not read."""

SMALL_BYTES = 64 * limits.KIB
"""Below it, hashing costs less than the way to a worker thread and back."""

STREAMS_MAX = 8
"""Of one peer at a time: each holds some cells in memory. A node opens up to four."""

T = TypeVar("T")


class InMemory:
    """Cells that are there."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.count = len(items)
        self._items = items

    async def more(self) -> Sequence[Item]:
        """See Outgoing."""
        items, self._items = self._items, ()
        return items


class BulkOwner(Protocol):
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


class BulkStreams:
    """Sends and receives cells for one driver."""

    def __init__(
        self,
        owner: BulkOwner,
        transport: Transport,
        hooks: NodeHooks,
        log: EventLog,
        parts: StateParts,
    ) -> None:
        self._owner = owner
        self._transport = transport
        self._hooks = hooks
        self._log = log
        self.fetching = Fetching(owner, parts.gathered)
        self._serving = Serving(owner, parts)
        self._line = parts.line
        self._work = parts.work
        self._queue = PushQueue()
        self._paces: dict[PeerId, SendWindow] = {}
        self._early: set[tuple[PeerId, bytes]] = set()
        """Takers of parts that are not in their round yet, and the COMMITs."""
        self.uplink = Uplink()
        self._checks = Checks(owner.compute)
        self._num_inbound: Counter[PeerId] = Counter()
        self.parts_in_flight = 0

    # Out ----------------------------------------------------------------------------------------

    async def push(self, push: ev.Push) -> None:
        """Send the cells that are here once it is their turn, and then whatever else waits.

        A peer out of reach asks elsewhere, or is absent.
        """
        after_s = self._hooks.cells_after_s(push.to, push.bulk, push.subject)
        if after_s == inf:
            return
        if after_s:
            await trio.sleep(after_s)
        if push.bulk is Bulk.WORK and not await self._may_open(push):
            return
        self._queue.offer(push, round_index=bulk.round_to_serve(self._owner.core, push))
        async with trio.open_nursery() as nursery:
            await self._go_on(push.to, nursery)

    async def _may_open(self, push: ev.Push) -> bool:
        return self._work is not None and await self._work.may_open(push, self._owner.changed)

    async def _go_on(self, to: PeerId, nursery: trio.Nursery) -> None:
        while (due := self._queue.begin(to)) is not None:
            sent = trio.Event()
            nursery.start_soon(self._carry, due, sent, nursery)
            await sent.wait()

    async def _carry(self, due: ev.Push, sent: trio.Event, nursery: trio.Nursery) -> None:
        """One transfer. The next one begins when this is sent but for its rest, or through."""

        def is_sent() -> None:
            self._queue.sent(due)
            sent.set()

        is_early = False
        try:
            is_early = await self._send(due, is_sent)
        finally:
            self._queue.done(due)
            sent.set()
        if is_early:
            nursery.start_soon(self._push_when_there, due)
        await self._go_on(due.to, nursery)

    async def _push_when_there(self, due: ev.Push) -> None:
        """Send parts again once their taker says that it is in their round: it had not come there
        when they came, and would ask for them only when they are late."""
        awaited = (due.to, due.subject)
        if awaited in self._early:
            return  # Who asks again and again and takes nothing is waited for once.
        self._early.add(awaited)
        try:
            while bulk.is_early(self._owner.core, due):
                await self._owner.changed()
        finally:
            self._early.discard(awaited)
        await self.push(due)

    async def _send(self, push: ev.Push, is_sent: Callable[[], None]) -> bool:
        """Whether the taker closed it because it is not in that round yet."""
        if not self._owner.is_linked(push.to):
            self._queue.forget(push.to)
            return False
        about = bulk.round_of(self._owner.core, push)
        if push.bulk in bulk.IS_SERVED:
            cells: Outgoing | None = await self._serving.cells(push)
            if cells is None or about is None:
                await self._owner.tell(ev.NotServed(push.to, push.bulk, push.subject))
                return False
        elif about is None:
            return False
        elif push.bulk is Bulk.WORK and self._work is not None:
            cells = await self._work.outgoing(push)
        elif push.bulk is Bulk.RESULT and self._owner.store.is_on_disk(push.subject):
            spans = bulk.result_spans(self._owner.core, push)
            cells = self._serving.one_by_one(bulk.StoredResults(self._owner.store, push, spans))
        else:
            cells = InMemory(bulk.outgoing(self._owner.core, self._owner.store, push))
        count = cells.count
        if not count or not bulk.is_of_use(self._owner.core, push):
            return False
        header = BulkHeader(bulk=push.bulk, subject=push.subject, round=about, items=count)
        header = self._hooks.sent_header(header)
        is_part = push.bulk is Bulk.PART
        round_index = self._owner.core.machine.view.index
        if is_part:
            self.parts_in_flight += 1
            self._log.emit("phase", round=round_index, phase="pushing", attempt=0)
        is_measured = push.bulk in (Bulk.PART, Bulk.RESULT)
        num_bytes: int | None = None
        is_whole = False
        began_s = trio.current_time()
        self._serving.num_of_round += push.bulk not in bulk.IS_SERVED
        if is_measured:
            self.uplink.began(began_s)
        try:
            num_bytes, is_whole = await self._send_items(push, header, cells, is_sent)
        except (NetworkError, StateError, trio.TooSlowError) as error:
            reason = str(error) or f"nothing moved for {STALL_S:g} s"
            if isinstance(error, trio.TooSlowError):
                self._pace(push.to).stalled()
            logger.info(
                "not sent peer=%s what=%s reason=%s", short_id(push.to), push.bulk.name, reason
            )
            was_closed = isinstance(error, StreamClosedError)
            return was_closed and bulk.is_early(self._owner.core, push)
        else:
            if is_part and is_whole:
                self._tell_parts(push.to, round_index, count, "out")
                took_s = trio.current_time() - began_s
                await self._owner.tell(ev.BytesGiven(push.to, push.bulk, push.subject, took_s))
        finally:
            if is_measured:
                self.uplink.ended(num_bytes, trio.current_time())
            self.parts_in_flight -= is_part
            self._serving.num_of_round -= push.bulk not in bulk.IS_SERVED
        return False

    def _pace(self, peer: PeerId) -> SendWindow:
        if peer not in self._paces:
            # A peer may come under many names, but not be linked under all of them.
            kept = {p: pace for p, pace in self._paces.items() if self._owner.is_linked(p)}
            self._paces = {**kept, peer: SendWindow()}
        return self._paces[peer]

    async def _send_items(
        self, push: ev.Push, header: BulkHeader, cells: Outgoing, is_sent: Callable[[], None]
    ) -> tuple[int, bool]:
        """How many bytes of payload the taker has now, and whether that is all: a transfer of a
        slow line may take longer than what it is for."""
        num_bytes, meter, serving = 0, Meter(self._pace(push.to)), self._serving
        before, moved = None, self._telling_given(push)
        if push.bulk is Bulk.STATE:
            meter = Meter(self._pace(push.to), gives_way=lambda: serving.gives_way)
            before = serving.turns()
        pause, is_limited = self._line.turn(before), self._line.turn(None) is not None
        with trio.fail_after(STALL_S) as scope:
            stream = await self._transport.open_stream(push.to, BULK_PROTOCOL)
            try:
                await stream.send_frame(encode(header))
                num_left = header.items
                while found := await cells.more():
                    found = [self._hooks.sent_item(push.bulk, item) for item in found]
                    while found:
                        count = num_together(found, piece_bytes(meter, pause))
                        items, found = found[:count], found[count:]
                        if not bulk.is_of_use(self._owner.core, push):
                            logger.info("needed no more peer=%s", short_id(push.to))
                            return num_bytes - meter.under_way, False
                        num_bytes += sum(len(item.payload) for item in items)
                        num_left -= count
                        if not is_limited and meter.is_rest(num_left * len(items[0].payload)):
                            is_sent()
                        await send_items(stream, items, meter, scope, pause, moved)
                is_sent()
                # It is under way until the taker has it: the system's buffers hold a round's bytes.
                while meter.under_way:
                    await await_through(stream, meter, scope)
                    await moved()
            finally:
                await stream.aclose()
        return num_bytes, True

    def _telling_given(self, push: ev.Push) -> Callable[[], Awaitable[None]]:
        """Tells that more of a state or result was read, now and then: it may take long (R11)."""
        told_s = trio.current_time()

        async def tell() -> None:
            nonlocal told_s
            now_s = trio.current_time()
            if push.bulk in GIVEN and now_s >= told_s + GIVEN_EVERY_S:
                told_s = now_s
                await self._owner.tell(ev.BytesGiven(push.to, push.bulk, push.subject))

        return tell

    # In -----------------------------------------------------------------------------------------

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound bulk streams. Raises PeerError for what does not fit.

        A peer that is not linked may be one that only the DHT knows; its cells are none of ours.
        """
        if not self._owner.is_linked(stream.peer):
            logger.debug("bulk stream of a peer without a link peer=%s", short_id(stream.peer))
            return
        if self._num_inbound[stream.peer] >= STREAMS_MAX:
            logger.info("too many bulk streams at once peer=%s", short_id(stream.peer))
            return
        inbound: Inbound | None = None
        self._num_inbound[stream.peer] += 1
        try:
            with trio.fail_after(STALL_S) as scope:
                data = await stream.receive_frame(limits.BULK_HEADER_BYTES_MAX)
                inbound = Inbound(stream, self._owner, scope, decode(BulkHeader, data), self._line)
                scope.deadline = trio.current_time() + STALL_S
                if inbound.header.bulk in bulk.IS_SERVED:
                    await self._receive_fetched(inbound)
                elif inbound.header.bulk is Bulk.WORK:
                    await self._receive_work(inbound)
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
            self._num_inbound[stream.peer] -= 1
            self._num_inbound += Counter()  # Forgets the zeros: a peer may come under many names.
            if inbound is not None and inbound.cells:
                await inbound.tell()

    async def _receive_cells(self, inbound: Inbound) -> None:
        owner, header, peer = self._owner, inbound.header, inbound.stream.peer
        round_index = owner.core.machine.view.index

        async def take(items: Sequence[Item]) -> bool:
            cells = [item.index for item in items]
            accept = bulk.admission(owner.core, owner.store, header, items)
            if accept is None:
                inbound.timed_s = -1.0  # The line does not wait: this node does.
                accept = await self._admission(header, items)
            if accept is None:
                logger.info("cells of nothing known peer=%s", short_id(peer))
                return False
            if sum(len(item.payload) for item in items) <= SMALL_BYTES:
                accept()
            else:
                await self._checks.run(accept)
            if header.bulk is Bulk.RESULT:
                view = owner.core.machine.standing.about(header.subject)
                if view is not None:
                    digest, index = header.subject, view.index
                    here = owner.store.results_to_keep(digest, cells, round_index=index)
                    owner.ahead.offer(index, digest, here)
            inbound.cells.extend(cells)
            return True

        if await inbound.take_all(take) and header.bulk is Bulk.PART:
            self._tell_parts(peer, round_index, header.items, "in")

    async def _admission(
        self, header: BulkHeader, items: Sequence[Item]
    ) -> Callable[[], None] | None:
        """The check, once the message that commits to the cells is here; None if it stays away."""
        owner, accept = self._owner, None
        with trio.move_on_after(OVERTAKEN_S):
            while accept is None:
                await owner.changed()
                accept = bulk.admission(owner.core, owner.store, header, items)
        return accept

    async def _receive_fetched(self, inbound: Inbound) -> None:
        """Cells of a state or step; what nobody asked for any more is nobody's fault."""
        peer, header = inbound.stream.peer, inbound.header

        async def take(items: Sequence[Item]) -> bool:
            for item in items:
                await self.fetching.take(peer, header, item)
            return True

        await inbound.take_all(take, lambda: self.fetching.takes(header))

    async def _receive_work(self, inbound: Inbound) -> None:
        """Cells of work that was asked for; what nobody needs any more is nobody's fault."""
        work, subject = self._work, inbound.header.subject
        if work is None:
            raise LimitError("work in a run without audits")

        async def take(items: Sequence[Item]) -> bool:
            for item in items:
                if not await self._owner.compute(partial(work.keep, subject, item)):
                    return False
                inbound.cells.append(item.index)
            return True

        await inbound.take_all(take, lambda: work.wants(subject))

    def _tell_parts(self, peer: PeerId, round_index: int, cells: int, direction: str) -> None:
        self._log.emit(
            "parts",
            round=round_index,
            peer=peer_id_text(peer),
            cells=cells,
            direction=direction,
        )
