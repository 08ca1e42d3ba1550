"""Decoders of what peers say on a stream, and children and servers on this machine."""

import json
from functools import cache, partial
from pathlib import Path

import trio
import trio.testing

from node.peers.handshake import shake_hands
from node.plane.bulk_streams import BulkStreams
from node.status.records import NodeStatus, PeerTable, R, RoundTable, from_plain
from node.text.shown import to_plain
from protocol import limits
from protocol.errors import (
    DecodeError,
    ManifestMismatch,
    NetworkError,
    PeerError,
    StateError,
    StreamClosedError,
)
from protocol.frames import Bulk, BulkHeader, BulkItem, BulkItems, Hello, Refusal, encode_frame
from protocol.identity import PeerId
from protocol.manifest import WIRE_VERSION
from protocol.rounds.reducers import pack_senders, unpack_senders
from protocol.wire import encode
from sim.processes.events import parse_event
from tests.fuzz.mutations import json_bytes
from tests.fuzz.protocol_targets import ADDRESSES
from tests.fuzz.target import JSON_FACTOR, PACKER_BYTES, STACK_BYTES, Target, from_bytes
from tests.node import status_scene
from tests.node.cells.test_bulk_streams import CELLS, committed, hear_commit
from tests.node.edge import FOUNDER_SEED, Desk, signed, toy_manifest
from tests.node.state_run import FOUNDER
from tests.protocol.vectors import PEERS

EVENTS: tuple[object, ...] = (
    {"event": "listening", "peer": "a", "addresses": ["/ip4/1.2.3.4/tcp/1"], "pid": 7},
    {"event": "phase", "round": 3, "phase": "pushing", "attempt": 0},
    {"event": "validation", "round": 3, "loss": 1.5},
    {
        "event": "sealed",
        "round": 3,
        "digest": "ab",
        "listed": ["a"],
        "members": 4,
        "voters": 4,
        "attempt": 0,
        "was_listed": True,
        "wall_s": 1.5,
        "bytes_up": 7,
        "bytes_down": 8,
        "train_loss": None,
    },
)


def _status(kind: type[R], data: bytes) -> None:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StateError("no JSON") from error
    assert isinstance(from_plain(kind, body), kind)


def _status_tree(name: str) -> tuple[object, ...]:
    return (json.loads(json.dumps(to_plain(getattr(status_scene.busy_snapshot(), name)))),)


def _event(data: bytes) -> None:
    if parse_event(data) is None:
        raise DecodeError("no event")


def _senders(data: bytes) -> None:
    senders = unpack_senders(data, PEERS)
    assert senders <= set(PEERS)
    assert unpack_senders(pack_senders(senders, PEERS), PEERS) == senders


class Sent:
    """A stream whose other end has sent all that it ever will; what we send is lost."""

    def __init__(self, peer: PeerId, data: bytes) -> None:
        self.peer = peer
        self._data = data

    @property
    def num_buffered(self) -> int:
        return len(self._data)

    async def send_all(self, *parts: bytes | bytearray | memoryview) -> None:
        """Nobody reads."""

    async def send_soon(self, data: bytes) -> None:
        """Nobody reads."""

    async def receive_into(self, *places: memoryview) -> None:
        for place in places:
            place[:] = await self.receive_exactly(len(place))

    async def send_frame(self, frame: bytes) -> None:
        """Nobody reads."""

    async def receive_exactly(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._data):
            raise StreamClosedError("ended")
        data, self._data = self._data[:num_bytes], self._data[num_bytes:]
        return data

    async def receive_frame(self, max_bytes: int) -> bytes:
        num_bytes = int.from_bytes(await self.receive_exactly(4), "big")
        if num_bytes > max_bytes:
            raise PeerError("too long")
        return await self.receive_exactly(num_bytes)

    async def aclose(self) -> None:
        """Nothing to close."""


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def _hello(data: bytes, _: Path) -> None:
    ours = signed(toy_manifest())
    stream = Sent(PEERS[1], data)
    found = trio.run(shake_hands, stream, ours, ADDRESSES, FOUNDER)
    assert (found.wire, found.run) == (WIRE_VERSION, ours.manifest.digest)


def _hellos() -> tuple[bytes, ...]:
    run = toy_manifest().digest
    return (framed(encode_frame(Hello(wire=WIRE_VERSION, run=run, addresses=ADDRESSES))),)


def _refusals() -> tuple[bytes, ...]:
    other = encode(signed(toy_manifest(title="other")))
    stranger = encode_frame(Hello(wire=WIRE_VERSION, run=bytes(32), addresses=()))
    return (
        framed(stranger, encode_frame(Refusal(reason="another run", manifest=other))),
        framed(stranger, encode_frame(Refusal(reason="no", manifest=b""))),
    )


def _refused(data: bytes, folder: Path) -> None:
    try:
        _hello(data, folder)
    except ManifestMismatch:
        return


@cache
def _desks() -> tuple[Desk, bytes]:
    """A second node that has heard the founder's COMMIT, and the stream of the founder's parts."""
    source, target = Desk(FOUNDER_SEED, toy_manifest()), Desk(b"t" * 32, toy_manifest())
    digest, commit = committed(source)
    hear_commit(source, target, digest)
    items = source.store.parts(commit.root, CELLS)
    parts = [framed(encode(BulkHeader(bulk=Bulk.PART, subject=digest, round=1, items=len(items))))]
    for item in items:
        size, piece = len(item.payload), limits.PIECE_BYTES_MIN
        said = BulkItem(index=item.index, length=size, proof=b"".join(item.proof))
        parts += [framed(encode(BulkItems(items=(said,), piece=piece))), item.payload]
    return target, b"".join(parts)


def _bulk(data: bytes, _: Path) -> None:
    target, _parts = _desks()
    target.told.clear()
    stream = Sent(Desk(FOUNDER_SEED, toy_manifest()).signer.peer_id, data)

    async def accept() -> None:
        streams = target.streams(None)  # type: ignore[arg-type]  # it only receives
        assert isinstance(streams, BulkStreams)
        await streams.accept(stream)

    # A part of a COMMIT that was never heard waits a while; here the while is over at once.
    trio.run(accept, clock=trio.testing.MockClock(autojump_threshold=0))


TARGETS = [
    *(
        Target(
            name=f"answer about {name}",
            covers=("node.status.records.from_plain",),
            read=from_bytes(read),
            errors=(StateError,),
            trees=partial(_status_tree, name),
            dump=json_bytes,
            memory_factor=JSON_FACTOR,
        )
        for name, read in (
            ("status", partial(_status, NodeStatus)),
            ("peers", partial(_status, PeerTable)),
            ("rounds", partial(_status, RoundTable)),
        )
    ),
    Target(
        name="event of a node",
        covers=("sim.processes.events.parse_event",),
        read=from_bytes(_event),
        errors=(DecodeError, ValueError),
        trees=lambda: EVENTS,
        dump=json_bytes,
        memory_factor=JSON_FACTOR,
    ),
    Target(
        name="bit map of senders",
        covers=("protocol.rounds.reducers.unpack_senders",),
        read=from_bytes(_senders),
        errors=(),
        examples=lambda: (b"\x03", b"\x01\x00"),
    ),
    Target(
        name="hello",
        covers=("node.peers.handshake.shake_hands",),
        read=_hello,
        errors=(PeerError, NetworkError, ManifestMismatch),
        examples=_hellos,
        memory_base=STACK_BYTES + 2 * PACKER_BYTES,
        memory_factor=20,
        weight=2,
    ),
    Target(
        name="refusal",
        covers=("node.peers.handshake.shake_hands",),
        read=_refused,
        errors=(PeerError, NetworkError),
        examples=lambda: _refusals()[:1],
        memory_base=STACK_BYTES + 2 * PACKER_BYTES,
        memory_factor=20,
        weight=2,
    ),
    Target(
        name="bulk stream",
        covers=("node.plane.bulk_streams.BulkStreams.accept",),
        read=_bulk,
        errors=(PeerError, NetworkError),
        examples=lambda: (_desks()[1],),
        memory_base=STACK_BYTES + 2 * PACKER_BYTES,
        memory_factor=20,
        weight=2,
    ),
]
