"""Hostile bytes: nothing but DecodeErrors, no memory beyond what arrived."""

import random
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import DecodeError
from protocol.frames import Chain, StatusAsk, WantChain, decode_frame, encode_frame
from protocol.gossip import Farewell
from protocol.manifest import SignedManifest
from protocol.messages import Kind, List, decode_message
from protocol.wire import decode, encode
from tests.protocol import vectors
from tests.protocol.strategies import TYPES, refuses
from tests.protocol.vectors import EXAMPLES


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_decode_errors(data):
    for kind in TYPES:
        refuses(kind, data)


MSGPACK = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats()),
        *(st.text(max_size=40), st.binary(max_size=40)),
        st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=12)),
    ),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner),
)


@settings(deadline=None)
@given(tree=MSGPACK)
def test_random_msgpack_raises_nothing_but_decode_errors(tree):
    data = msgpack.packb(tree)
    for kind in TYPES:
        refuses(kind, data)


@pytest.mark.quick(8)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_flipped_bytes_raise_nothing_but_decode_errors(example, seed):
    kind, data = type(example), encode(example)
    rng = random.Random(f"{seed}/flips/{kind.__name__}")
    for index in range(len(data)):
        for flip in (1 << rng.randrange(8), rng.randrange(1, 256)):
            flipped = bytearray(data)
            flipped[index] ^= flip
            refuses(kind, bytes(flipped))


@pytest.mark.quick(8)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_bytes_put_in_or_taken_out_raise_nothing_but_decode_errors(example, seed):
    kind, data = type(example), encode(example)
    rng = random.Random(f"{seed}/cuts/{kind.__name__}")
    for _ in range(500):
        first, second = sorted(rng.choices(range(len(data) + 1), k=2))
        refuses(kind, data[:first] + data[second:])
        refuses(kind, data[:second] + data[first:])
        refuses(kind, data[:first] + rng.randbytes(rng.randrange(1, 9)) + data[first:])


@settings(deadline=None)
@given(data=st.binary(max_size=300))
def test_random_frames_and_messages_raise_nothing_but_decode_errors(data):
    for read in (decode_frame, decode_message):
        try:
            read(data)
        except DecodeError:
            continue


def test_every_first_byte_of_a_frame_is_known_or_refused():
    body = encode_frame(WantChain(first=7))[1:]
    accepted = {}
    for number in range(256):
        try:
            accepted[number] = decode_frame(bytes([number]) + body)
        except DecodeError:
            continue
    bye = Farewell(incarnation=7)
    assert accepted == {6: WantChain(first=7), 8: StatusAsk(nonce=7), 19: bye}


def test_empty_frame_is_refused():
    with pytest.raises(DecodeError):
        decode_frame(b"")


BOMBS = {
    "arrays in arrays": b"\xdd\x00\x01\x00\x00" * 1000,
    "arrays of one in arrays of one": b"\x91" * 60_000,
    "an array that claims 2^32 items": b"\xdd\xff\xff\xff\xff" + bytes(1000),
    "an array of empty arrays": b"\xdc\xff\x00" + b"\x90" * 0xFF00,
    "text that claims 4 GiB": b"\x91\xdb\xff\xff\xff\xff",
    "bytes that claim 4 GiB": b"\x91\xc6\xff\xff\xff\xff",
    "a map that claims 2^32 pairs": b"\x91\xdf\xff\xff\xff\xff",
    "an extension that claims 4 GiB": b"\x91\xc9\xff\xff\xff\xff\x01",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
@pytest.mark.parametrize("kind", [WantChain, List, Chain, SignedManifest])
def test_decoder_allocates_no_more_than_a_few_copies_of_what_came(kind, bomb):
    heads = (b"", b"\x93\xdc\x00\x40", b"\x91")
    refuses(kind, b"\xc0")  # what is made once per type is made here
    for head in heads:
        tracemalloc.start()
        try:
            assert refuses(kind, head + bomb)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # The decoder's own stack is 41 KiB, whatever comes.
        assert peak < 64 * limits.KIB + 4 * len(bomb)


def test_list_of_the_right_type_costs_no_multiple_of_its_limit():
    # The most Python objects per byte that any message can ask for.
    body = vectors.BODIES[Kind.NEWATTEMPT][1]
    data = msgpack.unpackb(encode(body))
    data[-1] = [0] * limits.CELLS_MAX
    packed = msgpack.packb(data)
    tracemalloc.start()
    try:
        decode(type(body), packed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 * limits.CELLS_MAX
