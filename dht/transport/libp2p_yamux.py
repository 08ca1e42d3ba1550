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
from weakref import WeakSet

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedConnUnavailable
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL
from multiaddr import Multiaddr

from dht.transport.libp2p_muxed_stream import WINDOW_BYTES_START, MuxedStream
from dht.transport.libp2p_session import SEND_BYTES_MAX, Bytes, Session, gathered
from protocol import limits
from protocol.errors import FULL

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


logger = logging.getLogger(__name__)


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
