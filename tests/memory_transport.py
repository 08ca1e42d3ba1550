"""A Transport in memory: no socket, no clock of its own, the same contract as the real one.

    network = MemoryNetwork()
    async with network.open(signer_seed=seed) as transport: ...

It runs on the virtual clock. A stream holds a bounded number of bytes that nobody has read, so that
a sender waits for a slow reader as it would on a network.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import trio

from protocol import limits
from protocol.errors import (
    LimitError,
    NetworkError,
    PeerError,
    StreamClosedError,
    UnreachableError,
)
from protocol.identity import Ed25519Signer, PeerId, short_id
from protocol.transport import Pace, StreamHandler, at_once

PIECE_BYTES = 64 * limits.KIB
PIECES_UNREAD_MAX = 16
EVENTS_MAX = 4096

ConnectionEvent = tuple[PeerId, bool]


def most_a_second(dials: Sequence[tuple[float, str]]) -> int:
    """The most dials that began in any second."""
    times = [at_s for at_s, _ in dials]
    return max((sum(at <= one < at + 1.0 for one in times) for at in times), default=0)


class MemoryStream:
    """One end of a pair of channels."""

    def __init__(
        self,
        owner: "MemoryTransport",
        peer: PeerId,
        send: trio.MemorySendChannel[bytes],
        receive: trio.MemoryReceiveChannel[bytes],
    ) -> None:
        self._owner = owner
        self._peer = peer
        self._send = send
        self._receive = receive
        self._buffer = bytearray()

    @property
    def peer(self) -> PeerId:
        return self._peer

    @property
    def num_buffered(self) -> int:
        return len(self._buffer)

    async def send_all(self, *parts: bytes | bytearray | memoryview) -> None:
        view = memoryview(b"".join(parts))
        for start in range(0, len(view), PIECE_BYTES):
            piece = bytes(view[start : start + PIECE_BYTES])
            self._owner.sent_bytes += len(piece)
            try:
                await self._send.send(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise StreamClosedError("sending failed: closed") from error

    async def send_soon(self, data: bytes) -> None:
        await self.send_all(data)

    async def receive_exactly(self, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes:
            try:
                self._buffer += await self._receive.receive()
            except (trio.EndOfChannel, trio.ClosedResourceError) as error:
                raise StreamClosedError("receiving failed: closed") from error
        data = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        self._owner.received_bytes += num_bytes
        return data

    async def receive_into(self, *places: memoryview) -> None:
        for place in places:
            place[:] = await self.receive_exactly(len(place))

    async def send_frame(self, frame: bytes) -> None:
        await self.send_all(len(frame).to_bytes(4, "big") + frame)

    async def receive_frame(self, max_bytes: int) -> bytes:
        num_bytes = int.from_bytes(await self.receive_exactly(4), "big")
        if num_bytes > max_bytes:
            raise LimitError(f"a frame of {num_bytes} bytes where {max_bytes} are allowed")
        return await self.receive_exactly(num_bytes)

    async def aclose(self) -> None:
        self._send.close()
        self._receive.close()
        self._buffer.clear()


def stream_pair(
    near: "MemoryTransport", far: "MemoryTransport"
) -> tuple[MemoryStream, MemoryStream]:
    """Two ends of one stream."""
    near_send, far_receive = trio.open_memory_channel[bytes](PIECES_UNREAD_MAX)
    far_send, near_receive = trio.open_memory_channel[bytes](PIECES_UNREAD_MAX)
    return (
        MemoryStream(near, far.peer_id, near_send, near_receive),
        MemoryStream(far, near.peer_id, far_send, far_receive),
    )


@dataclass
class MemoryNetwork:
    """Who listens where."""

    listeners: dict[str, "MemoryTransport"] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Addresses that answer no dial and refuse none."""

    dial_s: float = 0.0
    """How long any other dial takes."""

    @asynccontextmanager
    async def open(
        self, *, signer_seed: bytes, handlers: Mapping[str, StreamHandler] | None = None
    ) -> AsyncIterator["MemoryTransport"]:
        """A transport that listens until the context ends."""
        async with trio.open_nursery() as nursery:
            transport = MemoryTransport(self, nursery, signer_seed)
            for protocol, handler in (handlers or {}).items():
                transport.serve(protocol, handler)
            self.listeners[transport.addresses()[0]] = transport
            try:
                yield transport
            finally:
                del self.listeners[transport.addresses()[0]]
                for peer in transport.connected():
                    await transport.disconnect(peer)
                for send in transport.subscribers:
                    send.close()
                nursery.cancel_scope.cancel()


class MemoryTransport:
    """Implements `protocol.transport.Transport`. Opened by a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, nursery: trio.Nursery, signer_seed: bytes) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.dials: list[tuple[float, str]] = []
        """When which address was dialled."""

        self.subscribers: list[trio.MemorySendChannel[ConnectionEvent]] = []
        self._network = network
        self._nursery = nursery
        self._peer_id = Ed25519Signer(signer_seed).peer_id
        self._handlers: dict[str, StreamHandler] = {}
        # The other end, and our ends of the streams of that connection.
        self._connections: dict[PeerId, tuple[MemoryTransport, list[MemoryStream]]] = {}
        self._dialled: set[PeerId] = set()

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    def addresses(self) -> tuple[str, ...]:
        return (f"/memory/{self._peer_id.hex()}",)

    async def connect(self, peer: PeerId, addresses: Sequence[str], pace: Pace = at_once) -> None:
        await trio.lowlevel.checkpoint()
        if peer in self._connections:
            return
        failures = []
        for address in addresses:
            if not await pace(address):
                failures.append(f"{address!r}: too much else is being dialled")
                continue
            if peer in self._connections:
                return
            self.dials.append((trio.current_time(), address))
            took_s = float("inf") if address in self._network.silent else self._network.dial_s
            if took_s:
                with trio.move_on_after(took_s):
                    await trio.Event().wait()
                if peer in self._connections:
                    return
            listener = self._network.listeners.get(address)
            if listener is None:
                failures.append(f"{address!r}: nobody listens")
            elif listener.peer_id != peer or listener is self:
                failures.append(f"{address!r}: somebody else answers")
            else:
                self._dialled.add(peer)
                listener._dialled.discard(self._peer_id)
                self._set_up(listener)
                listener._set_up(self)
                return
        tried = "; ".join(failures) or "no address known"
        raise UnreachableError(f"{short_id(peer)}: {tried}")

    def _set_up(self, other: "MemoryTransport") -> None:
        self._connections[other.peer_id] = (other, [])
        self._tell(other.peer_id, up=True)

    def _tell(self, peer: PeerId, *, up: bool) -> None:
        for send in self.subscribers:
            with suppress(trio.BrokenResourceError):  # nobody listens any more
                send.send_nowait((peer, up))

    async def open_stream(self, peer: PeerId, protocol: str) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        if peer not in self._connections:
            raise UnreachableError(f"{short_id(peer)}: not connected")
        other, streams = self._connections[peer]
        handler = other._handlers.get(protocol)
        if handler is None:
            raise UnreachableError(f"{short_id(peer)} {protocol}: it does not serve {protocol}")
        ours, theirs = stream_pair(self, other)
        streams.append(ours)
        other._connections[self._peer_id][1].append(theirs)
        other._nursery.start_soon(other._handle, handler, theirs)
        return ours

    async def _handle(self, handler: StreamHandler, stream: MemoryStream) -> None:
        try:
            await handler(stream)
        except* (PeerError, NetworkError):
            pass
        finally:
            await stream.aclose()

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        assert protocol not in self._handlers, f"{protocol} is served already"
        self._handlers[protocol] = handler

    async def disconnect(self, peer: PeerId) -> None:
        if peer in self._connections:
            other, _ = self._connections[peer]
            await other._tear_down(self._peer_id)
            await self._tear_down(peer)

    async def _tear_down(self, peer: PeerId) -> None:
        _, streams = self._connections.pop(peer)
        for stream in streams:
            await stream.aclose()
        self._tell(peer, up=False)

    def connected(self) -> tuple[PeerId, ...]:
        return tuple(sorted(self._connections))

    def connection_events(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        send, receive = trio.open_memory_channel[ConnectionEvent](EVENTS_MAX)
        for peer in self.connected():
            send.send_nowait((peer, True))
        self.subscribers.append(send)
        return receive

    def has_dialled(self, peer: PeerId) -> bool | None:
        return peer in self._dialled if peer in self._connections else None

    def dialled(self, peer: PeerId) -> str:
        other = self._connections.get(peer)
        return other[0].addresses()[0] if other is not None and peer in self._dialled else ""

    def traffic(self) -> tuple[int, int]:
        return self.sent_bytes, self.received_bytes
