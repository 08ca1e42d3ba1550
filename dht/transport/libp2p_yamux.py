"""yamux, the standard way to many streams on one connection, without the library's waiting.

The library's muxer copies each byte four times, polls for a window every 10 ms, gives a stream up
whose reader does not read for 5 s, takes what a peer sends beyond its windows, and answers a peer
from the task that reads, so that two ends that write to each other can wait for each other for
ever. The frames here are the same (github.com/hashicorp/yamux/blob/master/spec.md), and any peer
may have any muxer.
"""

import logging
import struct
from collections import deque
from typing import Self
from weakref import WeakSet

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamReset,
)
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from multiaddr import Multiaddr

from dht.transport.libp2p_session import SEND_BYTES_MAX, Bytes, Session, gathered
from protocol import limits
from protocol.errors import FULL

logger = logging.getLogger(__name__)

WINDOW_BYTES_START = 256 * limits.KIB
"""What either end may send at first; yamux prescribes it."""

WINDOW_BYTES_MAX = 16 * limits.MIB
"""To which the window of a stream grows that is read fast: 100 ms there and back at 160 MB/s."""

GROWS_WITHIN_S = 1.0
"""A window of which half was taken within so long holds its sender up on a long way."""

SMALL_BYTES = 4096
"""Smaller pieces are put together: a million of one byte would take fifty megabytes."""

JOINED_BYTES_MAX = 64 * limits.KIB

UNYIELDED_BYTES_MAX = 512 * limits.KIB
UNYIELDED_BYTES_A_READ = 16 * limits.KIB
"""What is here is taken without a step of the loop, but not for ever: each taking counts for so
much beyond its bytes."""


Part = memoryview | bytearray | bytes


class MuxedStream(IMuxedStream):
    """Bytes come in by `feed` and leave by `take`; only then may the other end send more."""

    def __init__(self, conn: "Yamux", stream_id: int, *, is_ours: bool) -> None:
        self.stream_id = stream_id
        self.is_ours = is_ours
        self.muxed_conn = conn
        self.send_window = WINDOW_BYTES_START
        self.num_buffered = 0
        self.window_target = WINDOW_BYTES_START
        """Up to so many bytes may lie here unread."""
        self.counted_bytes = 0
        """Of these and those here, what the connection has counted."""
        self._conn = conn
        self._chunks: deque[memoryview | bytearray] = deque()
        self._window = WINDOW_BYTES_START
        self._owed = self._unyielded_bytes = 0
        self._granted_s = trio.current_time()
        self._came = trio.Event()
        self._needed = 1
        self._places: deque[memoryview] = deque()
        """What is still to be filled of the memory that somebody waits in; see `receive_into`."""
        self._widened = trio.Event()
        self._why = ""
        self._is_left = False
        self._is_finished = self._has_finished = False

    # In ------------------------------------------------------------------------------------------

    def take_window(self, num_bytes: int) -> bool:
        """Count bytes that are announced; False if they are more than this end allowed."""
        self._window -= num_bytes
        return self._window >= 0

    def feed(self, piece: memoryview, *, whole: Part) -> None:
        """Keep bytes that arrived as a part of `whole`."""
        if self._why:
            return
        if self._places:
            rest = self._placed(piece)
            self._grant(len(piece) - len(rest))
            if not self._places:
                self._came.set()
            if not rest:
                return
            piece = rest
        self.num_buffered += len(piece)
        last = self._chunks[-1] if self._chunks else None
        if len(piece) >= SMALL_BYTES and 2 * len(piece) >= len(whole):
            self._chunks.append(piece)
        elif isinstance(last, bytearray) and len(last) < JOINED_BYTES_MAX:
            last += piece
        else:
            # A view would hold the whole record for a few bytes of it.
            self._chunks.append(bytearray(piece))
        if self.num_buffered >= self._needed:
            self._came.set()

    def take(self, num_bytes: int) -> list[Part]:
        """At most so many of the bytes that are here; the other end may send as many more."""
        found: list[Part] = []
        left = num_bytes
        while left and self._chunks:
            chunk = self._chunks[0]
            if len(chunk) <= left:
                found.append(self._chunks.popleft())
            elif isinstance(chunk, bytearray):
                # Taking from the front of a bytearray moves nothing.
                found.append(bytes(memoryview(chunk)[:left]))
                del chunk[:left]
            else:
                found.append(chunk[:left])
                self._chunks[0] = chunk[left:]
            left -= len(found[-1])
        self.num_buffered -= num_bytes - left
        self._grant(num_bytes - left)
        return found

    def _grant(self, num_bytes: int) -> None:
        """Few large updates: each is a record on the wire."""
        if self._is_finished or self._why:
            self._conn.count(self)
            return
        self._owed += num_bytes
        if 2 * self._owed < self.window_target:
            return
        now_s = trio.current_time()
        more = min(self.window_target, WINDOW_BYTES_MAX - self.window_target)
        if more and now_s - self._granted_s < GROWS_WITHIN_S and self._conn.may_widen(more):
            self.window_target += more
            self._owed += more
            self._conn.count(self)
        self._granted_s = now_s
        self._window += self._owed
        self._conn.post(WINDOW_UPDATE, 0, self.stream_id, self._owed)
        self._owed = 0

    def begin_with(self, num_bytes: int) -> None:
        """The other end, which opened the stream, is told that it may send so many at first."""
        self._window += num_bytes - self.window_target
        self.window_target = num_bytes

    async def readable(self, num_bytes: int = 1) -> None:
        """Until so many bytes can be taken, or as many as surely come before some are taken, or
        the last. Raises MuxedStreamReset, MuxedStreamEOF where there is nothing to take any more.
        """
        # A step for each piece that arrives would be ten for a cell. Half of the window is sure to
        # come: what was taken and not granted again is less than the other half.
        self._needed = max(1, min(num_bytes, self.window_target // 2))
        if self.num_buffered >= self._needed:
            await self.take_breath(num_bytes)
        while self.num_buffered < self._needed:
            if self.num_buffered and (self._why or self._is_finished):
                await trio.lowlevel.checkpoint()
                return
            await self._more()

    async def _more(self) -> None:
        """Until enough or the end has come. Raises MuxedStreamReset, MuxedStreamEOF behind that,
        and MuxedStreamClosed when the reader is told to leave."""
        if self._is_left:
            raise MuxedStreamClosed("closed here")
        if self._why:
            raise MuxedStreamReset(self._why)
        if self._is_finished:
            raise MuxedStreamEOF("the other end closed")
        self._came = trio.Event()
        await self._came.wait()

    def leave(self) -> None:
        """Nobody here wants to read any more: whoever waits to, stops."""
        self._is_left = True
        self._came.set()

    async def drain(self, most: int) -> None:
        """Throw away what comes behind `leave`, until the other end has sent its last byte, or as
        many as `most`."""
        while most > 0 and not (self._why or (self._is_finished and not self.num_buffered)):
            if self.num_buffered:
                most -= self.num_buffered
                self.take(self.num_buffered)
                continue
            self._needed, self._came = 1, trio.Event()
            await self._came.wait()

    async def take_breath(self, num_bytes: int) -> None:
        """Where nothing is to be waited for: a step of the loop once in a while, for the others."""
        self._unyielded_bytes += UNYIELDED_BYTES_A_READ + num_bytes
        if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
            self._unyielded_bytes = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    def _placed(self, piece: memoryview) -> memoryview:
        """Put what fits where somebody waits; the rest."""
        while piece and self._places:
            place = self._places.popleft()
            num_bytes = min(len(piece), len(place))
            place[:num_bytes] = piece[:num_bytes]
            piece = piece[num_bytes:]
            if num_bytes < len(place):
                self._places.appendleft(place[num_bytes:])
        return piece

    async def receive_into(self, *places: memoryview) -> None:
        """Fill them, as the bytes come. Raises as `readable` does, with a part of them filled."""
        self._places.extend(place for place in places if place)
        num_bytes = sum(map(len, places))
        for part in self.take(num_bytes):
            self._placed(memoryview(part))
        if not self._places:
            await self.take_breath(num_bytes)
        try:
            while self._places:
                await self._more()
        finally:
            self._places.clear()

    async def read(self, n: int | None = None) -> bytes:
        """At most `n` bytes, at least one; see `readable`."""
        await self.readable()
        return b"".join(self.take(self.num_buffered if n is None or n < 0 else n))

    def finish(self) -> None:
        """The other end sends nothing more."""
        self._is_finished = True
        self._came.set()
        self._forget_if_done()

    # Out -----------------------------------------------------------------------------------------

    def widen(self, num_bytes: int) -> None:
        """The other end takes more."""
        self.send_window += num_bytes
        self._widened.set()

    def raise_if_not_sending(self) -> None:
        """Raise MuxedStreamReset or MuxedStreamClosed if the stream takes nothing any more."""
        if self._why:
            raise MuxedStreamReset(self._why)
        if self._has_finished:
            raise MuxedStreamClosed("closed here")

    async def write(self, *parts: bytes | memoryview) -> None:
        """Send every byte, as the other end's window allows; whoever waits sets the deadline.

        Raises MuxedStreamReset, MuxedStreamClosed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        waiting = deque(memoryview(part) for part in parts if part)
        while waiting:
            self.raise_if_not_sending()
            if self.send_window <= 0:
                self._widened = trio.Event()
                await self._widened.wait()
                continue
            try:
                await self._conn.send_data(self, waiting)
            except ConnectionClosedError as error:
                raise MuxedStreamReset(str(error)) from error

    def write_soon(self, data: bytes) -> bool:
        """Send a few bytes with what goes next; False, and nothing is sent, if there is no room.

        Raises as `write`, which nobody is in meanwhile.
        """
        self.raise_if_not_sending()
        if len(data) > self.send_window or not self._conn.post_data(self.stream_id, data):
            return False
        self.send_window -= len(data)
        return True

    async def close(self) -> None:
        """Send nothing more; the other end still may."""
        if not (self._has_finished or self._why):
            self._has_finished = True
            self._conn.post(WINDOW_UPDATE, FIN, self.stream_id, 0)
            self._forget_if_done()
        if self._why:
            self._drop_unread()
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        """End both directions at once."""
        if not self._why:
            if not (self._has_finished and self._is_finished):
                self._conn.post(WINDOW_UPDATE, RST, self.stream_id, 0)
            self.end("closed here")
        self._drop_unread()
        await trio.lowlevel.checkpoint()

    def _drop_unread(self) -> None:
        self._chunks.clear()
        self.num_buffered = 0
        self._conn.count(self)

    def end(self, why: str) -> None:
        """Nothing comes and nothing goes any more, for this reason; what is here can be taken."""
        self._why = self._why or why
        self._came.set()
        self._widened.set()
        self._conn.forget(self)

    def _forget_if_done(self) -> None:
        if self._has_finished and self._is_finished:
            self._conn.forget(self)

    # What the library asks -----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether both directions are at their end."""
        return bool(self._why) or (self._has_finished and self._is_finished)

    def set_deadline(self, ttl: int) -> None:
        """Callers set deadlines with trio's scopes."""
        raise NotImplementedError

    def get_remote_address(self) -> tuple[str, int] | None:
        """IP address and port of the other end."""
        return self._conn.get_remote_address()

    async def __aenter__(self) -> Self:
        """Nothing to enter."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


# Connections ------------------------------------------------------------------------------------

HEADER = struct.Struct("!BBHII")
"""Version, type, flags, stream, length."""

DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8

INBOUND_STREAMS_MAX = 256
"""Streams that one connection may have open to us. The library opens no more than 256 itself, so
only a hostile peer gets there; each costs a task and up to a window of memory."""

UNSENT_BYTES_MAX = 64 * limits.KIB
"""Answers that wait for the socket, 12 bytes each. A peer that asks so often reads nothing."""

UNREAD_BYTES_MAX = 64 * limits.MIB
"""That may lie unread, over all streams of a connection: windows grow no further."""

UNREAD_BYTES_OF_ALL_MAX = 256 * limits.MIB
"""The same over all connections: else many peers whose streams nobody reads would hold as many
times that much."""

PATIENCE_S = 0.01
"""So long an answer that is not urgent waits for something that goes the same way. Alone it is a
record, a call of the system and a step of the loop at both ends: as much as a quarter of a MiB."""

GOODBYE_S = 0.1


FULL_CODE = 0x66756C6C
"""The reason of a goodbye of a node that has no place for the peer."""


class ProtocolError(Exception):
    """The peer sends what is no yamux; its connection is cut."""


class Yamux(IMuxedConn):
    """The streams of one connection."""

    def __init__(
        self, conn: ISecureConn, peer_id: ID, beside: "WeakSet[Yamux] | None" = None
    ) -> None:
        """`beside` are all that share what may lie unread; this one joins them."""
        assert isinstance(conn, Session)
        self._beside = WeakSet[Yamux]() if beside is None else beside
        self._beside.add(self)
        self.secured_conn = conn
        self.peer_id = peer_id
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.on_close: object = None
        self.streams: dict[int, MuxedStream] = {}
        self._next_id = 1 if conn.is_initiator else 2
        self._num_inbound = 0
        self.granted_bytes = 0
        """That may lie here unread, over all streams; also what lies in those that ended."""
        self._usual_window = WINDOW_BYTES_START
        """That of the last stream that was opened to us and ended."""
        self._accepted, self._to_accept = trio.open_memory_channel[MuxedStream](INBOUND_STREAMS_MAX)
        self._sending = trio.Semaphore(1, max_value=1)
        """A turn. What a lock does to find out who dies with it takes longer than all the rest."""
        self._unsent = bytearray()
        self._has_unsent = trio.Event()
        self._has_patient = trio.Event()
        self._late_s = 0.0
        """When the patience of what waits ends, if anything does."""
        self._head = bytearray()
        self._left = 0
        self._flags = 0
        self._sink: MuxedStream | None = None

    # What the library asks -----------------------------------------------------------------------

    @property
    def is_initiator(self) -> bool:
        """Whether this end dialled."""
        return self.secured_conn.is_initiator

    @property
    def is_established(self) -> bool:
        """Whether streams can be opened."""
        return self.event_started.is_set() and not self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        return self.event_closed.is_set()

    def get_remote_address(self) -> tuple[str, int] | None:
        """IP address and port of the other end."""
        return self.secured_conn.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The other end as a multiaddr."""
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct or relayed."""
        return self.secured_conn.get_connection_type()

    async def start(self) -> None:
        """Read and answer until the connection is gone. Raises nothing: the library would stop."""
        self.event_started.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._answer)
                nursery.start_soon(self._answer_late)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._end()

    async def open_stream(self) -> IMuxedStream:
        """A new stream; the other end hears of it with its first bytes at the latest."""
        if self.is_closed:
            raise MuxedConnUnavailable("the connection is gone")
        stream = MuxedStream(self, self._next_id, is_ours=True)
        self.streams[self._next_id] = stream
        self.count(stream)
        self._next_id += 2
        self.post(WINDOW_UPDATE, SYN, stream.stream_id, 0)
        await trio.lowlevel.checkpoint()
        return stream

    async def accept_stream(self) -> IMuxedStream:
        """The next stream that the other end opens. Raises MuxedConnUnavailable at the end."""
        try:
            return await self._to_accept.receive()
        except trio.EndOfChannel:
            raise MuxedConnUnavailable("the connection is gone") from None

    async def close(self, code: int = 0) -> None:
        """Say goodbye, if the other end takes it at once, and close the connection.

        A `code` of `FULL_CODE` tells it why.
        """
        if not self.is_closed:
            self.post(GO_AWAY, 0, 0, code)
            with trio.move_on_after(GOODBYE_S):
                await self._send_unsent()
        self._end()
        await self.secured_conn.close()

    def _end(self) -> None:
        self.event_closed.set()
        self.secured_conn.link.lose("closed by yamux")
        self._accepted.close()
        for stream in tuple(self.streams.values()):
            stream.end("the connection is gone")
        self.streams.clear()
        self._has_unsent.set()
        self._has_patient.set()

    # Out -----------------------------------------------------------------------------------------

    def post(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Send a frame without data soon, from whatever task."""
        self._unsent += HEADER.pack(0, kind, flags, stream_id, length)
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.secured_conn.link.lose("it asks, and does not read the answers")
            self._unsent.clear()
        self._has_unsent.set()

    def post_data(self, stream_id: int, data: bytes) -> bool:
        """Send a few bytes with what goes next, or a little later; False if much waits already."""
        if len(self._unsent) + len(data) > UNSENT_BYTES_MAX // 2:
            return False
        if not self._unsent:
            self._late_s = trio.current_time() + PATIENCE_S
        self._unsent += HEADER.pack(0, DATA, 0, stream_id, len(data)) + data
        self._answer_if_late()
        return True

    def _answer_if_late(self) -> None:
        """Where more of a frame is on its way, what waits is looked at again when that is here: a
        timer costs the loop more than a step. Otherwise one is set."""
        if self._left:
            if trio.current_time() >= self._late_s:
                self._has_unsent.set()
        else:
            self._has_patient.set()

    async def _answer_late(self) -> None:
        while not self.is_closed:
            # Set again while this slept: of a line with much traffic it is one step each time.
            if not self._has_patient.is_set():
                await self._has_patient.wait()
            self._has_patient = trio.Event()
            await trio.sleep(PATIENCE_S)
            if self._unsent:
                self._has_unsent.set()

    async def _answer(self) -> None:
        while not self.is_closed:
            await self._has_unsent.wait()
            self._has_unsent = trio.Event()
            try:
                await self._send_unsent()
            except ConnectionClosedError:
                return

    async def _send_unsent(self) -> None:
        await self._take_turn()
        try:
            if self._unsent:
                data = bytes(self._unsent)
                self._unsent.clear()
                await self.secured_conn.send((data,))
        finally:
            self._sending.release()

    async def _take_turn(self) -> None:
        """Wait until nobody else sends. As a rule nobody does, and it takes no step of the loop."""
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()

    async def send_data(self, stream: MuxedStream, waiting: deque[memoryview]) -> None:
        """Take of what waits what fits the stream's window and one frame, and send it.

        Cancelled, it is all sent or nothing is, and the stream's position is unknown.
        Raises ConnectionClosedError, and MuxedStreamReset.
        """
        await self._take_turn()
        try:
            stream.raise_if_not_sending()
            # What opens a stream goes before its bytes.
            room = SEND_BYTES_MAX - HEADER.size - len(self._unsent)
            num_bytes = min(sum(map(len, waiting)), stream.send_window, room)
            if num_bytes <= 0:
                return
            stream.send_window -= num_bytes
            head = self._unsent + HEADER.pack(0, DATA, 0, stream.stream_id, num_bytes)
            self._unsent.clear()
            await self.secured_conn.send(gathered(head, waiting, num_bytes))
        finally:
            self._sending.release()

    # In ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        link = self.secured_conn.link
        try:
            self.feed(self.secured_conn.unread())
            while True:
                for data in await self.secured_conn.receive(self._left):
                    self.feed(data)
                if self._unsent:
                    self._answer_if_late()
        except ConnectionClosedError as error:
            link.lose(str(error))
        except ProtocolError as error:
            logger.warning("connection cut peer=%s reason=%s", self.peer_id, error)
            link.lose(f"no yamux: {error}")

    def feed(self, data: Bytes) -> None:
        """Take what arrived. Raises ProtocolError."""
        view = memoryview(data)
        while view:
            if self._left:
                piece = view[: self._left]
                self._left -= len(piece)
                if self._sink is not None:
                    self._sink.feed(piece, whole=data)
                view = view[len(piece) :]
                if not self._left:
                    self._flagged(self._sink, self._flags)
            elif not self._head and len(view) >= HEADER.size:
                self._frame(*HEADER.unpack_from(view))
                view = view[HEADER.size :]
            else:
                missing = HEADER.size - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) == HEADER.size:
                    head, self._head = self._head, bytearray()
                    self._frame(*HEADER.unpack(head))

    def _frame(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> None:
        if version or kind > GO_AWAY:
            raise ProtocolError(f"version {version}, type {kind}")
        if kind == PING:
            if flags & SYN:
                self.post(PING, ACK, 0, length)
        elif kind == GO_AWAY:
            why = FULL if length == FULL_CODE else "the other end says goodbye"
            raise ConnectionClosedError(why, transport="tcp")
        else:
            self._stream_frame(kind, flags, stream_id, length)

    def _stream_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        stream = self._opened(stream_id) if flags & SYN else self.streams.get(stream_id)
        if kind == DATA:
            if stream is not None and not stream.take_window(length):
                raise ProtocolError(f"{length} bytes beyond the window of a stream")
            self._left, self._sink, self._flags = length, stream, flags
            if length:
                return
        elif stream is not None:
            stream.widen(length)
        self._flagged(stream, flags)

    def _flagged(self, stream: MuxedStream | None, flags: int) -> None:
        if stream is not None and flags & FIN:
            stream.finish()
        if stream is not None and flags & RST:
            stream.end("reset by the other end")

    def _opened(self, stream_id: int) -> MuxedStream | None:
        if stream_id % 2 == self._next_id % 2 or stream_id in self.streams or not stream_id:
            raise ProtocolError(f"opens stream {stream_id}")
        stream = MuxedStream(self, stream_id, is_ours=False)
        # Those that came and went before anybody looked lie in the channel, too.
        waiting = self._accepted.statistics().current_buffer_used
        if self.is_closed or max(waiting, self._num_inbound) >= INBOUND_STREAMS_MAX:
            self.post(WINDOW_UPDATE, RST, stream_id, 0)
            return None
        self._accepted.send_nowait(stream)
        self.streams[stream_id] = stream
        self._num_inbound += 1
        more = self._window_to_begin_with() - WINDOW_BYTES_START
        if more and not self.may_widen(more):
            more = 0
        stream.begin_with(WINDOW_BYTES_START + more)
        self.count(stream)
        self.post(WINDOW_UPDATE, ACK, stream_id, more)
        return stream

    def _window_to_begin_with(self) -> int:
        """As wide as that of the streams before it. Transfers follow each other, each opened while
        the one before is on its way, and one that began anew would take five round trips until it
        fills a long line."""
        theirs = (one.window_target for one in self.streams.values() if not one.is_ours)
        return max(self._usual_window, *theirs, WINDOW_BYTES_START)

    def may_widen(self, num_bytes: int) -> bool:
        """Whether the windows of all streams together may grow by so many bytes."""
        if self.granted_bytes + num_bytes > UNREAD_BYTES_MAX:
            return False
        of_all = sum(one.granted_bytes for one in self._beside)
        return of_all + num_bytes <= UNREAD_BYTES_OF_ALL_MAX

    def count(self, stream: MuxedStream) -> None:
        """Count anew what may lie unread in a stream. One that has ended holds what lies in it."""
        is_open = self.streams.get(stream.stream_id) is stream
        now_bytes = stream.window_target if is_open else stream.num_buffered
        self.granted_bytes += now_bytes - stream.counted_bytes
        stream.counted_bytes = now_bytes

    def forget(self, stream: MuxedStream) -> None:
        """Both ends are done with a stream. Its number may be another's by now."""
        if self.streams.get(stream.stream_id) is stream:
            del self.streams[stream.stream_id]
            if not stream.is_ours:
                self._num_inbound -= 1
                self._usual_window = stream.window_target
        self.count(stream)


class Muxers(MuxerMultistream):
    """Agrees on yamux as the library does, and makes ours of it."""

    def __init__(self, negotiate_timeout: int) -> None:
        super().__init__({TProtocol(YAMUX_PROTOCOL): Yamux}, negotiate_timeout=negotiate_timeout)
        self._made = WeakSet[Yamux]()

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Raises MultiselectError when the other end has no yamux."""
        await self.select_transport(conn)
        return Yamux(conn, peer_id, self._made)
