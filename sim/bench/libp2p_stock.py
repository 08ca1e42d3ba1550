"""py-libp2p as it comes, to compare with: its Noise, its yamux, its defaults."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from multiaddr import Multiaddr

from protocol.errors import StreamClosedError
from protocol.limits import MIB

_FOREVER_S = 1 << 30


class StockStream:
    """The part of our streams that a transfer needs, over one of the library's."""

    def __init__(self, net_stream: INetStream) -> None:
        self._net = net_stream

    async def send_all(self, data: bytes | bytearray | memoryview, /) -> None:
        """Send every byte."""
        await self._net.write(bytes(data))

    async def receive_exactly(self, num_bytes: int) -> bytes:
        """Exactly so many bytes."""
        received = bytearray()
        while len(received) < num_bytes:
            data = await self._net.read(min(MIB, num_bytes - len(received)))
            if not data:
                raise StreamClosedError("the other end closed")
            received += data
        return bytes(received)

    async def aclose(self) -> None:
        """Close both directions."""
        await self._net.close()


@asynccontextmanager
async def open_stock(
    protocol: str, handler: Callable[[StockStream], Awaitable[None]]
) -> AsyncIterator[tuple[IHost, str, list[str]]]:
    """A host that listens on loopback and serves one protocol; its id and addresses as text."""
    host = new_host()

    async def serve(net_stream: INetStream) -> None:
        stream = StockStream(net_stream)
        await handler(stream)
        await stream.aclose()

    host.set_stream_handler(TProtocol(protocol), serve)
    async with host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        addresses = [str(address).partition("/p2p/")[0] for address in host.get_addrs()]
        yield host, str(host.get_id()), addresses


async def stock_stream(host: IHost, peer: str, addresses: list[str], protocol: str) -> StockStream:
    """A new stream to another such host."""
    peer_id = ID.from_base58(peer)
    host.get_peerstore().add_addrs(peer_id, [Multiaddr(one) for one in addresses], _FOREVER_S)
    await host.connect(PeerInfo(peer_id, [Multiaddr(one) for one in addresses]))
    return StockStream(await host.new_stream(peer_id, [TProtocol(protocol)]))
