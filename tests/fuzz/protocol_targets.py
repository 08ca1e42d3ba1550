"""Decoders of `protocol`: what strangers send."""

from functools import partial
from typing import Any

from node.peers.invite import Invite, InvitePeer
from node.peers.links import Announcement
from node.peers.public_runs import RunAdvert
from node.peers.two_histories import ToldFile
from node.using.ledger import FORMAT, ExportHead
from protocol import limits
from protocol.entry_kinds import Accusation, decode_runs, encode_runs
from protocol.errors import (
    DecodeError,
    PeerError,
)
from protocol.evidence import Finding, WorkFinding
from protocol.frames import decode_frame, encode_frame
from protocol.identity import parse_peer_id, peer_id_text
from protocol.manifest import open_manifest
from protocol.messages import FilledSlot, decode_body, decode_message
from protocol.rounds.credit import Credit, Folded
from protocol.wire import decode, encode
from tests.dht.kademlia.test_messages import PAIRS
from tests.fuzz.target import PACKER_BYTES, STACK_BYTES, Target, from_bytes, from_text
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
    decode(FilledSlot, EVIDENCE[Accusation.TWO_MESSAGES].first),
    decode(Finding, EVIDENCE[Accusation.WRONG_SUM].first),
    decode(WorkFinding, EVIDENCE[Accusation.WRONG_WORK].first),
    ToldFile(7, bytes(32)),
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


RUNS_EXAMPLES = ([(0, 5)], [(3, 300), (1000, 1001)], [(n, n + 1) for n in range(1, 900, 2)])

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
        name="runs of blocks",
        covers=("protocol.entry_kinds.decode_runs",),
        read=from_bytes(decode_runs),
        errors=(ValueError,),
        examples=lambda: tuple(encode_runs(runs) for runs in RUNS_EXAMPLES),
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
]
