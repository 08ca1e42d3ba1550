"""A peer with bad intentions: it speaks the real transport, and says whatever a test wants."""

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from dht.transport.libp2p_transport import Libp2pTransport, TransportConfig, open_transport
from node.peers.handshake import shake_hands
from node.peers.links import CONTROL_PROTOCOL
from node.state.config import PeerAddress
from protocol import limits
from protocol.errors import BarnraiseError, NetworkError
from protocol.identity import Ed25519Signer, peer_id_text
from protocol.manifest import SignedManifest
from protocol.transport import Stream
from tests.e2e.swarm import NodeUnderTest

POLL_S = 0.05


async def until(what: str, holds, *, timeout_s: float = 60.0) -> None:
    """Wait for something that another process does."""
    with trio.move_on_after(timeout_s):
        while not holds():
            await wait(POLL_S)
        return
    raise AssertionError(f"{what}: not within {timeout_s} s")


async def wait(seconds: float) -> None:
    """For something that no event of ours tells."""
    with trio.move_on_after(seconds):
        await trio.Event().wait()


@dataclass
class Hostile:
    """A peer with a key of its own, connected to one honest node."""

    transport: Libp2pTransport
    signer: Ed25519Signer
    signed: SignedManifest
    target: PeerAddress
    frames: list[bytes] = field(default_factory=list)
    """What the honest node said to it over the links that `listening` has."""

    @property
    def name(self) -> str:
        """As the honest node's events write it."""
        return peer_id_text(self.signer.peer_id)

    async def open(self, protocol: str) -> Stream:
        """A stream to the honest node, after which no hello was asked."""
        if self.target.peer not in self.transport.connected():
            await self.transport.connect(self.target.peer, [self.target.address])
        return await self.transport.open_stream(self.target.peer, protocol)

    async def link(self) -> Stream:
        """A control stream with a hello of the right run."""
        stream = await self.open(CONTROL_PROTOCOL)
        await shake_hands(stream, self.signed, (), self.signer)
        return stream

    @asynccontextmanager
    async def linked(self) -> AsyncIterator[Stream]:
        """A link on which it listens and keeps what it hears."""
        stream = await self.link()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, stream)
            yield stream
            nursery.cancel_scope.cancel()
        await stream.aclose()

    async def _listen(self, stream: Stream) -> None:
        try:
            while True:
                self.frames.append(await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX))
        except NetworkError:
            pass  # The honest node has had enough.

    async def send_raw(self, protocol: str, data: bytes) -> None:
        """Bytes on a stream of their own, which then ends; whether anybody takes them or not."""
        stream = await self.open(protocol)
        try:
            await stream.send_all(data)
        except BarnraiseError:
            pass
        finally:
            await stream.aclose()


@asynccontextmanager
async def hostile(target: PeerAddress, signed: SignedManifest) -> AsyncIterator[Hostile]:
    """A hostile peer under a new name."""
    signer = Ed25519Signer(os.urandom(32))

    async def hang_up(stream: Stream) -> None:
        del stream

    config = TransportConfig(listen_host="127.0.0.1")
    async with open_transport(config, signer_seed=signer.seed) as transport:
        transport.serve(CONTROL_PROTOCOL, hang_up)
        yield Hostile(transport, signer, signed, target)


def framed(data: bytes, *, claimed: int | None = None) -> bytes:
    """A frame, of which the length may be a lie."""
    return struct.pack(">I", len(data) if claimed is None else claimed) + data


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    rss_mib: float
    descriptors: int

    @classmethod
    def of(cls, node: NodeUnderTest) -> "Footprint":
        assert node.process is not None
        folder = Path(f"/proc/{node.process.pid}")
        pages = int((folder / "statm").read_text().split()[1])
        rss_mib = pages * os.sysconf("SC_PAGE_SIZE") / limits.MIB
        return cls(rss_mib, len(list((folder / "fd").iterdir())))
