"""Streams and muxers of ours with what they were fed, without a connection."""

from types import SimpleNamespace
from typing import Any

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID

from dht.transport.libp2p_session import SEND_BYTES_MAX, Session
from dht.transport.libp2p_stream import Libp2pStream, Traffic
from dht.transport.libp2p_yamux import HEADER, MuxedStream, Yamux
from protocol.identity import PeerId


class Muxer:
    """Keeps what a stream posts; widens every window."""

    def __init__(self):
        self.posted = []

    def post(self, kind, flags, stream_id, length):
        self.posted.append((kind, flags, stream_id, length))

    def post_data(self, stream_id, data):
        self.posted.append((stream_id, data))
        return True

    async def send_data(self, stream, waiting):
        raise NotImplementedError

    def forget(self, stream):
        pass

    def count(self, stream):
        pass

    def may_widen(self, num_bytes):
        return True

    def get_remote_address(self):
        return None


def muxed_stream(muxer=None):
    """A stream of `muxer`."""
    conn: Any = muxer or Muxer()
    return MuxedStream(conn, 1, is_ours=True)


def stream_over(muxed: MuxedStream, peer: PeerId) -> Libp2pStream:
    """Ours over one."""
    net_stream: Any = SimpleNamespace(muxed_stream=muxed)
    return Libp2pStream(net_stream, peer, traffic=Traffic(), spawn=lambda _: None)


def feed(muxed, pieces):
    """What arrives, each piece by itself, and the end."""
    for piece in pieces:
        assert muxed.take_window(len(piece))
        muxed.feed(memoryview(piece), whole=piece)
    muxed.finish()


class Pipe(Session):
    """A session in memory: what one end sends the other receives, as it is."""

    def __init__(self, *, is_initiator, out, into):
        self.is_initiator = is_initiator
        self.out, self.into = out, into
        self._plain = b""
        self.reasons: list[str] = []
        self.link: Any = SimpleNamespace(lose=self.lose, close=trio.lowlevel.checkpoint)

    def lose(self, why):
        self.reasons.append(why)
        self.out.close()

    async def send(self, parts):
        assert sum(map(len, parts)) <= SEND_BYTES_MAX
        try:
            await self.out.send(b"".join(parts))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(str(error)) from error

    async def receive(self, due=0):
        try:
            return [await self.into.receive()]
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(str(error)) from error


def muxers():
    """Two muxers that are connected with each other; only `start` moves bytes."""
    one_out, two_in = trio.open_memory_channel[bytes](1)
    two_out, one_in = trio.open_memory_channel[bytes](1)
    peer = ID(b"peer")
    one = Yamux(Pipe(is_initiator=True, out=one_out, into=one_in), peer)
    return one, Yamux(Pipe(is_initiator=False, out=two_out, into=two_in), peer)


def frame(kind, flags, stream_id, length, data=b""):
    return HEADER.pack(0, kind, flags, stream_id, length) + data
