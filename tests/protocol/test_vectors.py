"""Golden bytes: the wire does not change unless somebody means it to."""

import json

import pytest

from protocol import frames, messages
from protocol.frames import decode_frame
from protocol.identity import Ed25519Signer, parse_peer_id
from protocol.manifest import open_manifest
from protocol.messages import Kind, SealValue, decode_message, is_signed
from protocol.wire import decode
from tests.protocol import vectors
from tests.protocol.strategies import BULK

GOLDEN = json.loads(vectors.PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", sorted(vectors.vectors().keys() | GOLDEN.keys()))
def test_vectors_of_this_code_are_the_golden_ones(section):
    assert vectors.vectors()[section] == GOLDEN[section]


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_that_this_version_speaks_has_a_golden_message(kind):
    assert (kind in messages._BODIES) == (kind.name in GOLDEN["messages"])


def test_every_frame_has_golden_bytes():
    assert {kind.__name__ for kind in frames._TYPES.values()} == set(GOLDEN["frames"])


@pytest.mark.parametrize("name", GOLDEN["messages"])
def test_golden_message_decodes_to_the_example_and_is_signed(name):
    message, body = decode_message(bytes.fromhex(GOLDEN["messages"][name]["signed"]))
    assert (message.slot, body) == vectors.BODIES[Kind[name]]
    assert is_signed(message, vectors.OTHER)


def test_golden_frames_decode_to_the_examples():
    for frame in vectors.FRAMES:
        golden = bytes.fromhex(GOLDEN["frames"][type(frame).__name__])
        assert decode_frame(golden) == frame


def test_golden_headers_manifest_and_seal_decode_to_the_examples():
    for kind, example in zip(BULK, vectors.BULK, strict=True):
        assert decode(kind, bytes.fromhex(GOLDEN["bulk"][kind.__name__])) == example
    assert open_manifest(bytes.fromhex(GOLDEN["manifest"]), vectors.OTHER) == vectors.MANIFEST
    assert decode(SealValue, bytes.fromhex(GOLDEN["seal value"])) == vectors.SEAL_VALUE


def test_golden_seed_gives_the_golden_peer():
    golden = GOLDEN["identity"]
    signer = Ed25519Signer(bytes.fromhex(golden["seed"]))
    assert signer.peer_id == bytes.fromhex(golden["peer_id"]) == parse_peer_id(golden["text"])
    assert signer.verify(signer.peer_id, b"barn", bytes.fromhex(golden["signature of 'barn'"]))
