"""One stream of a libp2p connection, with our framing, buffering and errors."""

import contextlib
from dataclasses import dataclass

import trio
from libp2p.abc import INetStream
from libp2p.exceptions import BaseLibp2pError
from libp2p.network.stream.exceptions import StreamError
from libp2p.stream_muxer.yamux.yamux import YamuxStream

from dht.libp2p_security import Spawn
from protocol import limits
from protocol.errors import LimitError, StreamClosedError
from protocol.identity import PeerId

READ_BYTES = 256 * limits.KIB
"""Read as much as this at a time, if it is there: a small frame then costs one read and not two,
and the pieces of a large one are acknowledged together."""

SMALL_CHUNK_BYTES = 16 * limits.KIB

FRAME_LENGTH_BYTES = 4

LINGER_S_MAX = 120.0
"""How long a closed stream waits for the other end to close. It may still be busy reading what we
sent: 16 MiB, the largest window, in two minutes is 1.1 Mbit/s."""

LINGER_BYTES_MAX = 1 * limits.MIB
"""What the other end may still send after we closed: more shows that it does not listen."""


@dataclass(slots=True)
class Traffic:
    """Payload bytes of a transport."""

    sent: int = 0
    received: int = 0


class Libp2pStream:
    """Implements `protocol.transport.Stream` over a stream of the library.

    The library's own `read_exactly` gives up after a hundred short reads, some six megabytes;
    and it reads and acknowledges the four bytes of a length by themselves.
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
        self._peer = peer
        self._traffic = traffic
        self._spawn = spawn
        self._buffer = bytearray()
        self._closed = False
        self._receiving = trio.CancelScope()
        self._sending = trio.CancelScope()

    @property
    def peer(self) -> PeerId:
        """The proven identity of the other end."""
        return self._peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send every byte. Raises StreamClosedError; a cancelled stream is to be closed."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), limits.CHUNK_BYTES):
            piece = view[start : start + limits.CHUNK_BYTES]
            self._traffic.sent += len(piece)
            await self.send_raw(piece)

    async def receive_exactly(self, num_bytes: int) -> bytes:
        """Exactly `num_bytes` bytes. Raises StreamClosedError; cancelled, it is to be closed."""
        data = await self.receive_raw(num_bytes)
        self._traffic.received += num_bytes
        return data

    async def send_frame(self, frame: bytes) -> None:
        """Send one frame, its length and bytes in one piece."""
        await self.send_all(len(frame).to_bytes(FRAME_LENGTH_BYTES, "big") + frame)

    async def receive_frame(self, max_bytes: int) -> bytes:
        """The next frame. Raises LimitError before reading one that claims over `max_bytes`."""
        num_bytes = int.from_bytes(await self.receive_exactly(FRAME_LENGTH_BYTES), "big")
        if num_bytes > max_bytes:
            raise LimitError(f"a frame of {num_bytes} bytes where {max_bytes} are allowed")
        return await self.receive_exactly(num_bytes)

    async def send_raw(self, data: bytes | memoryview) -> None:
        """Send every byte, not counted as payload."""
        self._raise_if_closed()
        with trio.CancelScope() as self._sending:
            try:
                # The library slices what it is given and joins each slice to a header, which a
                # memoryview allows without a copy of the whole.
                await self._net.write(data)  # type: ignore[arg-type]
            except StreamError as error:
                raise StreamClosedError(f"sending failed: {root_message(error)}") from error
        self._raise_if_closed()

    async def receive_raw(self, num_bytes: int) -> bytes:
        """Exactly `num_bytes` bytes, not counted as payload."""
        buffer = self._buffer
        if len(buffer) >= num_bytes:
            data = bytes(memoryview(buffer)[:num_bytes])
            # Taking from the front of a bytearray moves nothing.
            del buffer[:num_bytes]
            return data
        # Joined once at the end: growing one buffer instead costs a third of the processor time of
        # a transfer, in page faults. Small chunks are put together on the way, because a million
        # chunks of one byte would take fifty megabytes.
        parts: list[bytes | bytearray] = [buffer]
        missing = num_bytes - len(buffer)
        self._buffer = bytearray()
        while missing > 0:
            chunk = await self._receive_some(max(missing, READ_BYTES))
            if len(chunk) > missing:
                self._buffer += memoryview(chunk)[missing:]
                chunk = chunk[:missing]
            missing -= len(chunk)
            last = parts[-1]
            if len(chunk) == num_bytes:
                return chunk
            if len(chunk) < SMALL_CHUNK_BYTES and isinstance(last, bytearray):
                last += chunk
            else:
                parts.append(bytearray(chunk) if len(chunk) < SMALL_CHUNK_BYTES else chunk)
        return b"".join(parts)

    async def _receive_some(self, num_bytes_max: int) -> bytes:
        self._raise_if_closed()
        chunk = b""
        with trio.CancelScope() as self._receiving:
            try:
                chunk = await self._net.read(num_bytes_max)
            except StreamError as error:
                raise StreamClosedError(f"receiving failed: {root_message(error)}") from error
        self._raise_if_closed()
        return chunk

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise StreamClosedError("closed here")

    @property
    def num_buffered(self) -> int:
        """Bytes that have arrived and were not asked for yet."""
        return len(self._buffer)

    async def aclose(self) -> None:
        """Close both directions; what was sent still arrives. Never raises, never blocks.

        A task that waits in this stream gets StreamClosedError.
        """
        if not self._closed:
            self._closed = True
            self._receiving.cancel()
            self._sending.cancel()
            self._buffer.clear()
            self._spawn(self._finish)

    async def _finish(self) -> None:
        """Say that we closed, then wait for the other end to do so, or cut it off.

        Without the waiting, a peer that never closes could fill the library's buffer of this
        stream for ever. A reset at once would lose what the other end has not read yet.
        """
        try:
            with contextlib.suppress(BaseLibp2pError), trio.move_on_after(LINGER_S_MAX):
                await self._net.close()
                left = LINGER_BYTES_MAX
                while left > 0:
                    left -= len(await self._net.read(READ_BYTES))
            await self._net.reset()
        finally:
            forget_event(self._net)
            self.gone.set()


def forget_event(net_stream: INetStream) -> None:
    """Drop what the library keeps of a stream that is gone.

    A reader that waits while the stream ends puts its event back into the connection's table when
    it wakes, and nobody takes it out again: half a kilobyte per stream, for the life of the
    connection.
    """
    stream = getattr(net_stream, "muxed_stream", None)
    if isinstance(stream, YamuxStream) and stream.stream_id not in stream.conn.streams:
        stream.conn.stream_events.pop(stream.stream_id, None)


def root_message(error: BaseException) -> str:
    """The message of the deepest cause that has one: the library leaves most of them empty."""
    message = "the other end closed" if isinstance(error, EOFError) else type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        message = str(cause) or message
        # Of several failed attempts the last says it as well as any; their group says nothing.
        cause = cause.exceptions[-1] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    return message
