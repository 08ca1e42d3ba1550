"""One stream of a libp2p connection, with our framing, buffering and errors."""

import contextlib
from dataclasses import dataclass, field

import trio
from libp2p.abc import INetStream
from libp2p.exceptions import BaseLibp2pError
from libp2p.stream_muxer.exceptions import MuxedStreamError

from dht.transport.libp2p_link import Spawn
from dht.transport.libp2p_yamux import MuxedStream, Part
from protocol import limits
from protocol.errors import LimitError, StreamClosedError
from protocol.identity import PeerId

SMALL_PART_BYTES = 16 * limits.KIB

FRAME_LENGTH_BYTES = 4

COUNTED_BYTES = limits.PIECE_BYTES_MAX + limits.BULK_ITEMS_HEADER_BYTES_MAX + FRAME_LENGTH_BYTES
"""Payload is counted so much at a time: a piece and what is said of it are not cut."""

LINGER_S_MAX = 120.0
"""How long a closed stream waits for the other end to close. It may still be busy reading what we
sent: 16 MiB, the largest window, in two minutes is 1.1 Mbit/s."""

PEERS_COUNTED_MAX = 1024
"""Of so many peers it is counted what was exchanged with them."""

LINGER_BYTES_MAX = 1 * limits.MIB
"""What the other end may still send after we closed: more shows that it does not listen."""


@dataclass(slots=True)
class Moved:
    """Payload bytes that were exchanged with one peer."""

    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class Traffic:
    """Payload bytes of a transport."""

    sent: int = 0
    received: int = 0
    _peers: dict[PeerId, Moved] = field(default_factory=dict)

    def with_peer(self, peer: PeerId) -> Moved:
        """What is counted for a peer; of those met longest ago it is forgotten."""
        moved = self._peers.get(peer) or Moved()
        limits.keep_newest(self._peers, peer, moved, PEERS_COUNTED_MAX)
        return moved

    def of(self, peer: PeerId) -> tuple[int, int]:
        """Bytes (sent to, received from) a peer."""
        moved = self._peers.get(peer, Moved())
        return moved.sent, moved.received


class Libp2pStream:
    """Implements `protocol.transport.Stream` over a stream of the library.

    The library's own `read_exactly` gives up after a hundred short reads, some six megabytes.
    """

    def __init__(
        self,
        net_stream: INetStream,
        peer: PeerId,
        *,
        traffic: Traffic,
        spawn: Spawn,
    ) -> None:
        self.gone = trio.Event()
        self._net = net_stream
        self._muxed = _muxed_of(net_stream)
        self._peer = peer
        self._traffic, self._moved = traffic, traffic.with_peer(peer)
        self._spawn = spawn
        self._closed = False
        self._sending = trio.CancelScope()

    @property
    def peer(self) -> PeerId:
        """The proven identity of the other end."""
        return self._peer

    async def send_all(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send every byte. Raises StreamClosedError; a cancelled stream is to be closed."""
        views = [memoryview(part).cast("B") for part in parts]
        if sum(map(len, views)) <= COUNTED_BYTES:
            await self._send_counted(*views)
            return
        for view in views:
            for start in range(0, len(view), COUNTED_BYTES):
                await self._send_counted(view[start : start + COUNTED_BYTES])

    async def _send_counted(self, *parts: memoryview) -> None:
        num_bytes = sum(map(len, parts))
        self._traffic.sent += num_bytes
        self._moved.sent += num_bytes
        await self.send_raw(*parts)

    async def receive_exactly(self, num_bytes: int) -> bytes:
        """Exactly `num_bytes` bytes. Raises StreamClosedError; cancelled, it is to be closed."""
        data = await self.receive_raw(num_bytes)
        self._traffic.received += num_bytes
        self._moved.received += num_bytes
        return data

    async def receive_into(self, *places: memoryview) -> None:
        """Fill all. Raises StreamClosedError; cancelled, the stream is to be closed."""
        self._raise_if_closed()
        try:
            await self._muxed.receive_into(*places)
        except MuxedStreamError as error:
            raise self._receiving_failed(error) from error
        self._raise_if_closed()
        num_bytes = sum(map(len, places))
        self._traffic.received += num_bytes
        self._moved.received += num_bytes

    async def send_soon(self, data: bytes) -> None:
        """Send a few bytes with what goes next; see `protocol.transport.Stream`."""
        self._raise_if_closed()
        try:
            is_posted = self._muxed.write_soon(data)
        except MuxedStreamError as error:
            raise StreamClosedError(f"sending failed: {root_message(error)}") from error
        if not is_posted:
            await self.send_all(data)
            return
        self._traffic.sent += len(data)
        self._moved.sent += len(data)

    async def send_frame(self, frame: bytes) -> None:
        """Send one frame, its length and bytes in one piece."""
        await self.send_all(len(frame).to_bytes(FRAME_LENGTH_BYTES, "big") + frame)

    async def receive_frame(self, max_bytes: int) -> bytes:
        """The next frame. Raises LimitError before reading one that claims over `max_bytes`."""
        num_bytes = int.from_bytes(await self.receive_exactly(FRAME_LENGTH_BYTES), "big")
        if num_bytes > max_bytes:
            raise LimitError(f"a frame of {num_bytes} bytes where {max_bytes} are allowed")
        return await self.receive_exactly(num_bytes)

    async def send_raw(self, *parts: bytes | memoryview) -> None:
        """Send every byte, not counted as payload."""
        self._raise_if_closed()
        with trio.CancelScope() as self._sending:
            try:
                await self._muxed.write(*parts)
            except MuxedStreamError as error:
                raise StreamClosedError(f"sending failed: {root_message(error)}") from error
        self._raise_if_closed()

    async def receive_raw(self, num_bytes: int) -> bytes:
        """Exactly `num_bytes` bytes, not counted as payload."""
        self._raise_if_closed()
        muxed = self._muxed
        if num_bytes <= muxed.num_buffered:
            await muxed.take_breath(num_bytes)
            self._raise_if_closed()
            if num_bytes <= muxed.num_buffered:  # It may have been reset meanwhile.
                return b"".join(muxed.take(num_bytes))
        # Joined once at the end: growing one buffer instead costs a third of the processor time of
        # a transfer, in page faults. The stream puts small pieces together before we see them.
        parts: list[Part] = []
        missing = num_bytes
        while missing:
            try:
                await muxed.readable(missing)
            except MuxedStreamError as error:
                raise self._receiving_failed(error) from error
            self._raise_if_closed()
            for part in muxed.take(missing):
                missing -= len(part)
                _append(parts, part)
        return b"".join(parts)

    def _receiving_failed(self, error: MuxedStreamError) -> StreamClosedError:
        self._raise_if_closed()
        return StreamClosedError(f"receiving failed: {root_message(error)}")

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise StreamClosedError("closed here")

    @property
    def num_buffered(self) -> int:
        """Bytes that have arrived and were not asked for yet."""
        return self._muxed.num_buffered

    async def aclose(self) -> None:
        """Close both directions; what was sent still arrives. Never raises, never blocks.

        A task that waits in this stream gets StreamClosedError.
        """
        if not self._closed:
            self._closed = True
            self._muxed.leave()
            self._sending.cancel()
            self._spawn(self._finish)

    async def _finish(self) -> None:
        """Say that we closed, then wait for the other end to do so, or cut it off.

        Without the waiting, a peer that never closes could fill the library's buffer of this
        stream for ever. A reset at once would lose what the other end has not read yet.
        """
        try:
            with contextlib.suppress(BaseLibp2pError), trio.move_on_after(LINGER_S_MAX):
                await self._net.close()
                await self._muxed.drain(LINGER_BYTES_MAX)
            await self._net.reset()
        finally:
            self.gone.set()


def _muxed_of(net_stream: INetStream) -> MuxedStream:
    """Ours below the library's, whose own reading and writing takes and gives a lock each time."""
    muxed = getattr(net_stream, "muxed_stream", None)
    assert isinstance(muxed, MuxedStream)
    return muxed


def _append(parts: list[Part], part: Part) -> None:
    """Put small parts together on the way: a million of one byte would take fifty megabytes."""
    last = parts[-1] if parts else b""
    if len(part) < SMALL_PART_BYTES and isinstance(last, bytearray):
        last += part
    else:
        parts.append(bytearray(part) if len(part) < SMALL_PART_BYTES else part)


def root_message(error: BaseException) -> str:
    """The message of the deepest cause that has one: the library leaves most of them empty."""
    message = "the other end closed" if isinstance(error, EOFError) else type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        message = str(cause) or message
        # Of several failed attempts the last says it as well as any; their group says nothing.
        cause = cause.exceptions[-1] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    return message
