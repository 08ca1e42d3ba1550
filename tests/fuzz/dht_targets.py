"""Decoders of `dht`, and of the streams below it: what strangers send."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import trio
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID

from dht.kademlia.messages import (
    Nodes,
    Pong,
    Stored,
    Values,
    decode_reply,
    decode_request,
    encode_message,
)
from dht.reaching.routers import decode_address, decode_mapping
from dht.transport.libp2p_inbound import accept_protocol, encode_line, request_protocol
from dht.transport.libp2p_session import Bytes, NoiseSession, Session
from dht.transport.libp2p_yamux import (
    HEADER,
    INBOUND_STREAMS_MAX,
    MuxedStream,
    ProtocolError,
    Yamux,
)
from protocol import limits
from protocol.errors import (
    DecodeError,
    LimitError,
    StreamClosedError,
    UnreachableError,
)
from tests.dht.kademlia.test_messages import PAIRS
from tests.dht.muxing import feed, muxed_stream, stream_over
from tests.fuzz.protocol_targets import WIRE_BASE, WIRE_FACTOR
from tests.fuzz.target import Target, from_bytes
from tests.protocol.vectors import (
    SIGNER,
)


def _read_any_reply(data: bytes) -> None:
    for request_, _ in PAIRS:
        try:
            reply = decode_reply(data, request_)
        except DecodeError:
            continue
        assert isinstance(reply, Pong | Nodes | Values | Stored)
        return
    raise DecodeError("of no request")


class Lines:
    """A stream whose other end has sent all that it ever will; what we send is lost."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def num_buffered(self) -> int:
        return len(self._data)

    async def send_raw(self, data: bytes) -> None:
        """Nobody reads."""

    async def receive_raw(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._data):
            raise StreamClosedError("ended")
        data, self._data = self._data[:num_bytes], self._data[num_bytes:]
        return data


def _pieces(data: bytes) -> Iterator[bytes]:
    """It all in pieces of some sizes."""
    while data:
        size = 1 + len(data) % 7
        yield data[:size]
        data = data[size:]


async def _fill(data: bytes) -> None:
    """Memory of some sizes, until the bytes are at their end."""
    muxed = muxed_stream()
    feed(muxed, _pieces(data))
    stream, filled = stream_over(muxed, SIGNER.peer_id), b""
    try:
        while True:
            place = bytearray(1 + len(filled) % 11)
            await stream.receive_into(memoryview(place))
            filled += place
    except StreamClosedError:
        assert data.startswith(filled)
        assert len(data) - len(filled) < 11


async def _read_frames(data: bytes) -> None:
    await _fill(data)
    muxed = muxed_stream()
    feed(muxed, _pieces(data))
    stream = stream_over(muxed, SIGNER.peer_id)
    frames = []
    try:
        while True:
            frames.append(await stream.receive_frame(1024))
    except StreamClosedError:
        if not frames:
            raise
    assert all(len(frame) <= 1024 and frame in data for frame in frames)


class NoSession(Session):
    """Under a muxer that is fed by hand."""

    def __init__(self) -> None:
        self.is_initiator = True
        self._plain = b""
        self.link = SimpleNamespace(lose=lambda _why: None)  # type: ignore[assignment] # enough

    async def send(self, parts: Sequence[Bytes]) -> None:
        raise NotImplementedError

    async def receive(self, due: int = 0) -> list[Bytes]:
        raise NotImplementedError


async def _feed_muxer(data: bytes) -> None:
    muxer = Yamux(NoSession(), ID(b"peer"))
    ours = await muxer.open_stream()
    for piece in _pieces(data):
        muxer.feed(piece)
    assert isinstance(ours, MuxedStream)
    streams = {ours, *muxer.streams.values()}
    assert len(streams) <= INBOUND_STREAMS_MAX + 1
    assert all(0 <= stream.num_buffered <= len(data) for stream in streams)


def _header(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return HEADER.pack(0, kind, flags, stream_id, length)


def _muxed() -> bytes:
    """Two streams opened, data, a ping, a wider window, an end, a reset."""
    return b"".join(
        (
            *(_header(1, 1, 2, 0), _header(0, 0, 2, 500), bytes(500), _header(2, 1, 0, 7)),
            *(_header(0, 1, 4, 3), b"abc", _header(1, 2, 1, 1000), _header(0, 4, 2, 1), b"x"),
            *(_header(1, 8, 4, 0), _header(0, 0, 1, 20), bytes(20)),
        )
    )


class Arrived:
    """A link to which all has come already."""

    peer, lost_reason = None, ""

    def __init__(self, data: bytes) -> None:
        self._pieces = list(_pieces(data))[::-1]

    async def arrived(self, due: int) -> bytes:
        if not self._pieces:
            raise ConnectionClosedError("ended")
        return self._pieces.pop()

    def lose(self, why: str) -> None:
        self.lost_reason = why


class KnownKeys(NoiseSession):
    """A session whose keys everybody knows."""

    def __init__(self, link: Arrived) -> None:
        self.link = link  # type: ignore[assignment] # enough of one
        self._plain, self._half = b"", bytearray()
        self._num_received = 0
        self._decrypt = ChaCha20Poly1305(bytes(32)).decrypt_into


async def _receive_records(data: bytes) -> None:
    session = KnownKeys(Arrived(data))
    plain = b""
    try:
        while True:
            plain += await session.read(1000)
    except ConnectionClosedError:
        if not plain:
            raise
    assert len(plain) < len(data)


def _records() -> bytes:
    cipher = ChaCha20Poly1305(bytes(32))
    found = b""
    for number, plain in enumerate((b"hello", b"", bytes(3000))):
        record = cipher.encrypt(struct.pack("<4xQ", number), plain, None)
        found += len(record).to_bytes(2, "big") + record
    return found


PROTOCOL = "/barnraise/control/1"


def _accept(data: bytes, _: Path) -> None:
    assert trio.run(accept_protocol, Lines(data), {PROTOCOL}) == PROTOCOL


def _request(data: bytes, _: Path) -> None:
    trio.run(request_protocol, Lines(data), PROTOCOL)


def _negotiation() -> tuple[bytes, ...]:
    hello = encode_line("/multistream/1.0.0")
    return hello + encode_line(PROTOCOL), hello + encode_line("/other/1" * 30) * 3


TARGETS = [
    Target(
        name="dht request",
        covers=("dht.kademlia.messages.decode_request",),
        read=from_bytes(decode_request),
        errors=(DecodeError,),
        examples=lambda: tuple(encode_message(request_) for request_, _ in PAIRS),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="dht reply",
        covers=("dht.kademlia.messages.decode_reply",),
        read=from_bytes(_read_any_reply),
        errors=(DecodeError,),
        examples=lambda: tuple(encode_message(reply) for _, reply in PAIRS),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="nat-pmp mapping",
        covers=("dht.reaching.routers.decode_mapping",),
        read=from_bytes(decode_mapping),
        errors=(DecodeError,),
        examples=lambda: (bytes.fromhex("00820000000000070fa10fa200000e10"),),
    ),
    Target(
        name="nat-pmp address",
        covers=("dht.reaching.routers.decode_address",),
        read=from_bytes(decode_address),
        errors=(DecodeError,),
        examples=lambda: (bytes.fromhex("0080000000000007cb007107"),),
    ),
    Target(
        name="frames of a stream",
        covers=(
            "dht.transport.libp2p_stream.Libp2pStream.receive_frame",
            "dht.transport.libp2p_stream.Libp2pStream.receive_exactly",
            "dht.transport.libp2p_stream.Libp2pStream.receive_raw",
            "dht.transport.libp2p_stream.Libp2pStream.receive_into",
            "dht.transport.libp2p_yamux.MuxedStream.receive_into",
        ),
        read=lambda data, _: trio.run(_read_frames, data),
        errors=(LimitError, StreamClosedError),
        examples=lambda: (b"\0\0\0\3abc\0\0\4\0" + bytes(1024) + b"\0\0\0\0",),
        memory_base=256 * limits.KIB,
    ),
    Target(
        name="yamux",
        covers=(
            "dht.transport.libp2p_yamux.Yamux.feed",
            "dht.transport.libp2p_yamux.MuxedStream.feed",
            "dht.transport.libp2p_yamux.MuxedStream.read",
        ),
        read=lambda data, _: trio.run(_feed_muxer, data),
        errors=(ProtocolError, ConnectionClosedError),
        examples=lambda: (_muxed(),),
        memory_base=512 * limits.KIB,
        memory_factor=100,
    ),
    Target(
        name="records of Noise",
        covers=(
            "dht.transport.libp2p_session.NoiseSession.receive",
            "dht.transport.libp2p_session.Session.read",
        ),
        read=lambda data, _: trio.run(_receive_records, data),
        errors=(ConnectionClosedError,),
        examples=lambda: (_records(),),
        memory_base=512 * limits.KIB,
        memory_factor=100,
    ),
    Target(
        name="negotiation, answering",
        covers=("dht.transport.libp2p_inbound.accept_protocol",),
        read=_accept,
        errors=(DecodeError, StreamClosedError),
        examples=lambda: _negotiation()[:1],
        memory_base=256 * limits.KIB,
    ),
    Target(
        name="negotiation, asking",
        covers=("dht.transport.libp2p_inbound.request_protocol",),
        read=_request,
        errors=(UnreachableError, StreamClosedError),
        examples=lambda: _negotiation()[:1],
        memory_base=256 * limits.KIB,
    ),
]
