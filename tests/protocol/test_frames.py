"""Control frames: a type byte and canonical bytes; the headers of bulk streams."""

import pytest

from protocol import frames, limits
from protocol.errors import DecodeError
from protocol.frames import (
    Bulk,
    BulkHeader,
    BulkItem,
    BulkItems,
    Chain,
    Hello,
    Messages,
    Want,
    decode_frame,
    encode_frame,
    wants,
)
from protocol.messages import Kind
from protocol.wire import decode, encode
from tests.protocol.vectors import BULK, CERTIFICATE, FRAMES, SIGNED, digest

PIECE = limits.PIECE_BYTES_MIN

EACH = pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)


@EACH
def test_frame_is_its_number_and_its_bytes(frame):
    data = encode_frame(frame)
    assert frames._TYPES[data[0]] is type(frame)
    assert data[1:] == encode(frame)
    assert decode_frame(data) == frame


def test_numbers_of_frames_are_the_wires():
    names = [kind.__name__ for _, kind in sorted(frames._TYPES.items())]
    assert sorted(frames._TYPES) == list(range(1, 27))
    assert names == [type(frame).__name__ for frame in FRAMES]


@EACH
def test_frame_under_a_number_of_no_type_is_refused(frame):
    body = encode_frame(frame)[1:]
    for number in (0, 27, 127, 255):
        with pytest.raises(DecodeError, match=f"no frame of type {number:02x}"):
            decode_frame(bytes([number]) + body)


@EACH
def test_frame_with_bytes_behind_or_missing_is_refused(frame):
    data = encode_frame(frame)
    for wrong in (data + b"\x00", data[:-1], data[:1], data[:1] + data):
        with pytest.raises(DecodeError):
            decode_frame(wrong)


def test_frame_beyond_the_limit_is_refused_unread():
    data = bytes([2]) + bytes(limits.CONTROL_FRAME_BYTES_MAX)
    with pytest.raises(DecodeError, match="at most"):
        decode_frame(data)


def test_own_frame_beyond_the_limit_is_a_bug():
    frame = Messages(messages=(SIGNED[Kind.COMMIT],) * 256)
    with pytest.raises(AssertionError, match="a frame of"):
        encode_frame(frame)


def test_hello_of_a_later_version_can_be_read():
    """So that each side can say which version it speaks."""
    hello = Hello(wire=7, run=digest(1), addresses=())
    assert decode_frame(encode_frame(hello)) == hello


@pytest.mark.parametrize("wrong", [(), (CERTIFICATE,) * (limits.CHAIN_SEALS_PER_FRAME_MAX + 1)])
def test_chain_holds_some_seals_and_not_too_many(wrong):
    with pytest.raises(DecodeError):
        encode_frame(Chain(seals=wrong))


@pytest.mark.parametrize(
    ("first", "bits"),
    [
        (0, b""),
        (0, b"\x02"),
        (0, b"\x01\x00"),
        (0, b"\xff" * (limits.WANT_CELLS_MAX // 8 + 1)),
        (-1, b"\x01"),
        (2**31 + 1, b"\x01"),
    ],
)
def test_want_begins_with_its_first_cell_and_ends_with_its_last(first, bits):
    with pytest.raises((DecodeError, ValueError)):
        encode_frame(Want(bulk=Bulk.PART, subject=digest(1), first=first, bits=bits))


@pytest.mark.parametrize("bits", [b"", b"\x02", b"\x01\x00"])
def test_want_of_other_bits_is_refused_on_arrival(bits):
    good = encode_frame(Want(bulk=Bulk.PART, subject=digest(1), first=0, bits=b"\x81"))
    wrong = good[:-3] + b"\xc4" + bytes([len(bits)]) + bits
    assert decode_frame(good[:-3] + b"\xc4\x01\x81") == decode_frame(good)
    with pytest.raises(DecodeError):
        decode_frame(wrong)


@pytest.mark.parametrize(
    "cells",
    [
        (0,),
        (7,),
        (5, 6, 13),
        tuple(range(limits.WANT_CELLS_MAX)),
        (3, 2**31),
        tuple(range(1, 40_000, 3)),
    ],
)
def test_wants_name_the_very_cells_in_few_frames_of_few_bytes(cells):
    found = list(wants(Bulk.STATE, digest(1), reversed(cells)))
    heard = [decode_frame(encode_frame(want)) for want in found]
    assert heard == found
    assert [cell for want in found for cell in want.cells] == list(cells)
    assert len(found) <= 1 + (cells[-1] - cells[0]) // limits.WANT_CELLS_MAX
    assert all(len(encode_frame(want)) <= 1600 for want in found)


def test_no_cells_are_no_want():
    assert not list(wants(Bulk.PART, digest(1), ()))


def items(
    *, index: int = 0, length: int = 1, piece: int = PIECE, proof: bytes = b"", count: int = 1
) -> BulkItems:
    item = BulkItem(index=index, length=length, proof=proof)
    return BulkItems(items=(item,) * count, piece=piece)


def test_proof_that_is_no_whole_digests_is_refused():
    good = encode(items(proof=bytes(32)))
    wrong = good.replace(b"\xc4\x20" + bytes(32), b"\xc4\x1f" + bytes(31))
    assert decode(BulkItems, good).items[0].nodes == (bytes(32),)
    with pytest.raises(DecodeError, match="whole digests"):
        decode(BulkItems, wrong)


def test_items_that_are_no_piece_together_are_refused():
    most = limits.CHUNK_BYTES
    assert decode(BulkItems, encode(items(length=most))).items[0].length == most, "one may be more"
    assert len(items(length=PIECE // 2, count=2).items) == 2
    with pytest.raises(ValueError, match="one piece"):
        items(length=PIECE // 2 + 1, count=2)
    good = encode(items(length=PIECE // 4, count=4))
    decode(BulkItems, good)
    # The length of the first of them, one more.
    number = (PIECE // 4).to_bytes(2, "big")
    wrong = good.replace(b"\xcd" + number, b"\xcd" + (PIECE // 4 + 1).to_bytes(2, "big"), 1)
    with pytest.raises(DecodeError, match="one piece"):
        decode(BulkItems, wrong)


@pytest.mark.parametrize("header", BULK, ids=lambda header: type(header).__name__)
def test_bulk_header_decodes_to_itself(header):
    assert decode(type(header), encode(header)) == header


@pytest.mark.parametrize(
    "wrong",
    [
        BulkHeader(bulk=Bulk.PART, subject=digest(1), round=1, items=0),
        BulkHeader(bulk=Bulk.PART, subject=bytes(31), round=1, items=1),
        items(index=-1),
        items(length=limits.CHUNK_BYTES + 1),
        items(piece=limits.PIECE_BYTES_LEAST - 1),
        items(piece=limits.PIECE_BYTES_MAX + 1),
        items(proof=bytes(32 * 33)),
        items(count=0),
        items(count=limits.ITEMS_TOGETHER_MAX + 1),
    ],
    ids=repr,
)
def test_bulk_header_beyond_its_limits_is_refused(wrong):
    with pytest.raises(DecodeError):
        encode(wrong)
