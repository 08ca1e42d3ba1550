"""A circuit as the library sees it: one more connection to a peer, below its own handshake."""

import trio
from libp2p.abc import IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr

from dht.transport.libp2p_stream import Libp2pStream
from protocol.errors import NetworkError
from protocol.transport import Stream


class CircuitConnection(IRawConnection):
    """Bytes to and from the other end of a circuit, over a stream to the relay.

    They are payload of the streams within, and counted there: for the peer at the other end.
    """

    def __init__(self, stream: Stream, *, is_initiator: bool) -> None:
        assert isinstance(stream, Libp2pStream), "circuits are of this library's streams"
        self.is_initiator = is_initiator
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        """What has arrived, at most `n` bytes; raises ConnectionClosedError at the end."""
        stream = self._stream
        try:
            if stream.num_buffered:
                return await stream.receive_raw(min(stream.num_buffered, n or 1 << 20))
            first = await stream.receive_raw(1)
            rest = min(stream.num_buffered, (n or 1 << 20) - 1)
            return first + await stream.receive_raw(rest) if rest else first
        except NetworkError as error:
            raise ConnectionClosedError(f"the circuit ended: {error}") from error

    async def write(self, data: bytes | memoryview) -> None:
        """Send every byte; raises ConnectionClosedError."""
        try:
            await self._stream.send_raw(data)
        except NetworkError as error:
            raise ConnectionClosedError(f"the circuit ended: {error}") from error

    async def close(self) -> None:
        """End the circuit."""
        with trio.CancelScope(shield=True):
            await self._stream.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Unknown: the relay's says nothing about the other end."""
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        """None: the other end may be anywhere."""
        return []

    def get_connection_type(self) -> ConnectionType:
        """Relayed."""
        return ConnectionType.RELAYED
