"""Decoders of `protocol` and `dht`: what strangers send."""

import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.peer.id import ID

from dht.libp2p_muxed_stream import MuxedStream
from dht.libp2p_negotiate import accept, encode_line, request
from dht.libp2p_session import Bytes, NoiseSession, Session
from dht.libp2p_yamux import HEADER, INBOUND_STREAMS_MAX, ProtocolError, Yamux
from dht.messages import Nodes, Pong, Stored, Values, decode_reply, decode_request, encode_message
from node.peers.announcement import Announcement
from node.peers.invite import Invite, InvitePeer
from node.peers.public_runs import RunAdvert
from node.rules.credit import Credit, Folded
from node.using.ledger import FORMAT, ExportHead
from protocol import limits
from protocol.errors import (
    DecodeError,
    LimitError,
    PeerError,
    StreamClosedError,
    UnreachableError,
)
from protocol.frames import decode_frame, encode_frame
from protocol.identity import parse_peer_id, peer_id_text
from protocol.manifest import open_manifest
from protocol.messages import decode_body, decode_message
from protocol.wire import decode, encode
from tests.dht.muxing import feed, muxed_stream, stream_over
from tests.dht.test_messages import PAIRS
from tests.fuzz.target import PACKER_BYTES, STACK_BYTES, Target, from_bytes, from_text
from tests.protocol.crdt_strategies import EXAMPLES as CRDT_EXAMPLES
from tests.protocol.entry_vectors import ENTRIES, EVIDENCE, OFFER, SUBJECT, TOKEN
from tests.protocol.strategies import TYPES
from tests.protocol.vectors import (
    BULK,
    CERTIFICATE,
    EXAMPLES,
    FRAMES,
    SEAL_VALUE,
    SIGNED,
    SIGNER,
    digest,
)

WIRE_BASE = STACK_BYTES + PACKER_BYTES
WIRE_FACTOR = 10
"""Of messages with many small fields: a Python object for a few bytes of msgpack."""

ADDRESSES = ("/ip4/203.0.113.1/tcp/4001",)
INVITE = Invite(digest(0xD0), "a barn", (InvitePeer(SIGNER.peer_id, ADDRESSES),), (OFFER,))
FOLDED = Folded(
    run=digest(1),
    shard=0,
    genesis_root=digest(2),
    round=3,
    seal=digest(3),
    credits=(Credit(peer=SIGNER.peer_id, rounds=3, samples=60, tokens=960),),
)
WIRE_EXAMPLES: dict[type[Any], list[bytes]] = {
    kind: [] for kind in (*TYPES, Invite, Announcement, RunAdvert)
}
"""Every type that some decoder of ours asks the wire for, with what it looks like."""

for _value in (
    *EXAMPLES.values(),
    *FRAMES,
    *BULK,
    *SIGNED.values(),
    SEAL_VALUE,
    CERTIFICATE,
    INVITE,
    OFFER.taken_by(SUBJECT),
    TOKEN,
    Announcement(ADDRESSES),
    RunAdvert(digest(1), "a barn", "gpt", 7, 4, ADDRESSES),
    FOLDED,
    ExportHead(format=FORMAT, manifest=b"signed", folded=FOLDED, rounds=9),
    *(message for pair in PAIRS for message in pair),
    *ENTRIES.values(),
    *(entry.content for entry in ENTRIES.values()),
    *(entry.signed_header for entry in ENTRIES.values()),
    *EVIDENCE.values(),
    *CRDT_EXAMPLES,
):
    WIRE_EXAMPLES.setdefault(type(_value), []).append(encode(_value))


def _read_wire(kind: type[Any], data: bytes) -> None:
    value = decode(kind, data, max_bytes=limits.MANIFEST_BYTES_MAX)
    assert encode(value) == data, "one value has one encoding"


def _read_frame(data: bytes) -> None:
    assert encode_frame(decode_frame(data)) == data


def _read_message(data: bytes) -> None:
    message, body = decode_message(data)
    assert encode(message) == data
    assert decode_body(message) == body


def _read_peer_id(text: str) -> None:
    assert peer_id_text(parse_peer_id(text)) == text


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


async def _read_frames(data: bytes) -> None:
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

    async def receive(self) -> list[Bytes]:
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

    async def read(self, _num_bytes: int | None = None) -> bytes:
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
        self._decrypt = ChaCha20Poly1305(bytes(32)).decrypt


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
    assert trio.run(accept, Lines(data), {PROTOCOL}) == PROTOCOL


def _request(data: bytes, _: Path) -> None:
    trio.run(request, Lines(data), PROTOCOL)


def _negotiation() -> tuple[bytes, ...]:
    hello = encode_line("/multistream/1.0.0")
    return hello + encode_line(PROTOCOL), hello + encode_line("/other/1" * 30) * 3


def _wire_targets() -> list[Target]:
    return [
        Target(
            name=f"wire {kind.__module__.split('.')[-1]} {kind.__name__}",
            covers=("protocol.wire.decode", f"{kind.__module__}.{kind.__name__}"),
            read=from_bytes(partial(_read_wire, kind)),
            errors=(DecodeError,),
            examples=partial(tuple, examples),
            memory_base=WIRE_BASE,
            memory_factor=WIRE_FACTOR,
        )
        for kind, examples in WIRE_EXAMPLES.items()
        if examples
    ]


TARGETS = [
    *_wire_targets(),
    Target(
        name="frame",
        covers=("protocol.frames.decode_frame",),
        read=from_bytes(_read_frame),
        errors=(DecodeError,),
        examples=lambda: tuple(map(encode_frame, FRAMES)),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="message",
        covers=("protocol.messages.decode_message", "protocol.messages.decode_body"),
        read=from_bytes(_read_message),
        errors=(DecodeError,),
        examples=lambda: tuple(message.encoded for message in SIGNED.values()),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="manifest",
        covers=("protocol.manifest.open_manifest",),
        read=from_bytes(partial(open_manifest, signer=SIGNER)),
        errors=(PeerError,),
        examples=lambda: (encode(EXAMPLES["manifest"]),),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="peer id",
        covers=("protocol.identity.parse_peer_id",),
        read=from_text(_read_peer_id),
        errors=(DecodeError,),
        examples=lambda: (peer_id_text(SIGNER.peer_id).encode(),),
    ),
    Target(
        name="dht request",
        covers=("dht.messages.decode_request",),
        read=from_bytes(decode_request),
        errors=(DecodeError,),
        examples=lambda: tuple(encode_message(request_) for request_, _ in PAIRS),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="dht reply",
        covers=("dht.messages.decode_reply",),
        read=from_bytes(_read_any_reply),
        errors=(DecodeError,),
        examples=lambda: tuple(encode_message(reply) for _, reply in PAIRS),
        memory_base=WIRE_BASE,
        memory_factor=WIRE_FACTOR,
    ),
    Target(
        name="frames of a stream",
        covers=(
            "dht.libp2p_stream.Libp2pStream.receive_frame",
            "dht.libp2p_stream.Libp2pStream.receive_exactly",
            "dht.libp2p_stream.Libp2pStream.receive_raw",
        ),
        read=lambda data, _: trio.run(_read_frames, data),
        errors=(LimitError, StreamClosedError),
        examples=lambda: (b"\0\0\0\3abc\0\0\4\0" + bytes(1024) + b"\0\0\0\0",),
        memory_base=256 * limits.KIB,
    ),
    Target(
        name="yamux",
        covers=(
            "dht.libp2p_yamux.Yamux.feed",
            "dht.libp2p_muxed_stream.MuxedStream.feed",
            "dht.libp2p_muxed_stream.MuxedStream.read",
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
            "dht.libp2p_session.NoiseSession.receive",
            "dht.libp2p_session.Session.read",
        ),
        read=lambda data, _: trio.run(_receive_records, data),
        errors=(ConnectionClosedError,),
        examples=lambda: (_records(),),
        memory_base=512 * limits.KIB,
        memory_factor=100,
    ),
    Target(
        name="negotiation, answering",
        covers=("dht.libp2p_negotiate.accept",),
        read=_accept,
        errors=(DecodeError, StreamClosedError),
        examples=lambda: _negotiation()[:1],
        memory_base=256 * limits.KIB,
    ),
    Target(
        name="negotiation, asking",
        covers=("dht.libp2p_negotiate.request",),
        read=_request,
        errors=(UnreachableError, StreamClosedError),
        examples=lambda: _negotiation()[:1],
        memory_base=256 * limits.KIB,
    ),
]
