"""A stream of ours with what it was fed, without a connection."""

from types import SimpleNamespace
from typing import Any

from dht.transport.libp2p_muxed_stream import MuxedStream
from dht.transport.libp2p_stream import Libp2pStream, Traffic
from protocol.identity import PeerId


class Muxer:
    """Keeps what a stream posts; widens every window."""

    def __init__(self):
        self.posted = []

    def post(self, kind, flags, stream_id, length):
        self.posted.append((kind, flags, stream_id, length))

    async def send_data(self, stream, data):
        raise NotImplementedError

    def forget(self, stream):
        pass

    def may_widen(self, num_bytes):
        return True

    def get_remote_address(self):
        return None


def muxed_stream(muxer=None):
    """A stream of `muxer`."""
    return MuxedStream(muxer or Muxer(), 1, is_ours=True)


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
