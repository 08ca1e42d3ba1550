"""The strict codec: one value, one encoding; everything else is a DecodeError."""

import copy
import math
from dataclasses import dataclass
from typing import Annotated, Any, get_origin

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.errors import DecodeError
from protocol.frames import WantChain, decode_frame, encode_frame
from protocol.manifest import Setting, SignedManifest, sign_manifest
from protocol.messages import Held, Kind, List, SealCertificate
from protocol.wire import INT_MAX, OneOf, Range, Size, Spelled, decode, encode
from tests.protocol import vectors
from tests.protocol.strategies import (
    FRAMES,
    TYPES,
    fields_of,
    places,
    range_of,
    refuses,
    size_of,
    values,
)
from tests.protocol.vectors import EXAMPLES

# Round trips


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(data=st.data())
def test_value_decodes_to_itself(kind, data):
    value = data.draw(values(kind))
    encoded = encode(value)
    again = decode(kind, encoded, max_bytes=limits.MANIFEST_BYTES_MAX)
    assert again == value
    assert encode(again) == encoded


@pytest.mark.parametrize("kind", FRAMES)
@settings(deadline=None, max_examples=5)
@given(data=st.data())
def test_frame_decodes_to_itself(kind, data):
    frame = data.draw(values(kind))
    assert decode_frame(encode_frame(frame)) == frame


@settings(deadline=None, max_examples=50)
@given(values(SealCertificate))
def test_bytes_that_a_seal_and_its_certificate_keep_are_their_encoding(certificate):
    assert certificate.value.encoded == encode(certificate.value)
    assert certificate.encoded == encode(certificate)


@pytest.mark.parametrize("value", ["text", "", 0, -1, INT_MAX, -INT_MAX, 0.0, 1e300, True, False])
def test_scalar_of_every_type_travels_with_its_type(value):
    again = decode(Setting, encode(Setting("name", value))).value
    assert again == value
    assert type(again) is type(value)


@settings(deadline=None)
@given(text=st.text(st.characters(), max_size=300))
def test_text_that_encodes_also_decodes(text):
    try:
        data = encode(Setting("name", text))
    except DecodeError:
        assert len(text.encode(errors="surrogatepass")) > limits.STRING_BYTES_MAX or any(
            "\ud800" <= letter <= "\udfff" for letter in text
        )
    else:
        assert decode(Setting, data).value == text


def test_text_is_measured_in_bytes():
    @dataclass(frozen=True)
    class Note:
        text: Annotated[str, Size(2, 4)]

    assert decode(Note, encode(Note("åå"))) == Note("åå")
    for wrong in ("a", "ååå", "\ud800"):
        with pytest.raises(DecodeError):
            encode(Note(wrong))


# What is refused: each place of each example, with everything that does not belong there


def replaced(tree: Any, path: tuple[int, ...], item: Any) -> Any:
    if not path:
        return item
    tree = copy.copy(tree)
    tree[path[0]] = replaced(tree[path[0]], path[1:], item)
    return tree


def at(tree: Any, path: tuple[int, ...]) -> Any:
    for index in path:
        tree = tree[index]
    return tree


def strangers(kind: Any, limit: object, item: Any) -> list[Any]:
    """What may not stand in the place of `item`."""
    wrong: list[Any] = [None, {}, {1: 2}, msgpack.ExtType(5, b""), msgpack.ExtType(1, b"x")]
    if isinstance(limit, OneOf):
        wrong += ["", "another", b"friends", 0]
    elif kind is bool:
        wrong += [int(item), "true", b"", [item], 1.0]
    elif kind is int:
        bound = range_of(int, limit)
        wrong += [True, False, float(item), str(item), b"", [item]]
        wrong += [n for n in (bound.low - 1, bound.high + 1, -(2**63), 2**64 - 1) if n != item]
    elif kind is float:
        bound = range_of(float, limit)
        wrong += [0, True, "0.5", b"", [item], math.nan, math.inf, -math.inf, -0.0]
        wrong += [math.nextafter(bound.low, -math.inf), math.nextafter(bound.high, math.inf)]
    elif kind is bytes:
        size = size_of(bytes, limit)
        wrong += [item.hex(), 0, list(item), item + bytes(size.high - len(item) + 1)]
        wrong += [item[: size.low - 1]] if size.low else []
    elif kind is str:
        size = size_of(str, limit)
        wrong += [item.encode(), 0, [item], item + "x" * (size.high - len(item.encode()) + 1)]
        wrong += [""] if size.low else []
        if isinstance(limit, Spelled):
            wrong += [item[:-1] + odd for odd in ("\x1b", "\n", "\u202e", "é", "A", " ", ";", "²")]
    elif isinstance(item, list):
        wrong += [0, "", b"", dict(enumerate(item)), [*item[:-1], None]]
        if get_origin(kind) is tuple:
            size = size_of(kind, limit)
            wrong += [(item * (size.high // len(item) + 1))[: size.high + 1]] if item else []
            wrong += [[]] if size.low else []
        else:
            wrong += [[*item, None]]
            wrong += [item[:-1], [*item, item[-1]]] if item else []  # Welcome has no fields.
    else:  # an enumeration
        wrong += [0, -1, 99, True, str(item), float(item)]
    return wrong


@pytest.mark.quick(20)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_no_field_takes_what_does_not_belong_there(example):
    kind = type(example)
    tree = msgpack.unpackb(encode(example))
    for path, expected, limit in places(kind, tree):
        if expected == int | float | str | bool:
            continue
        for stranger in strangers(expected, limit, at(tree, path)):
            data = msgpack.packb(replaced(tree, path, stranger))
            assert refuses(kind, data), (kind, path, stranger)


def test_scalar_refuses_other_types():
    strange: list[Any] = [None, b"x", [], [1], {}]
    for wrong in [*strange, math.nan, math.inf, -0.0, 2**63, -(2**63), "x" * 1025]:
        assert refuses(Setting, msgpack.packb(["name", wrong])), wrong


def spellings(item: Any) -> list[bytes]:
    """msgpack that means the same as `item`, at its head."""
    if isinstance(item, bool) or item is None:
        return []
    if isinstance(item, int):
        widths = ((8, 0xCC, 0xD0), (16, 0xCD, 0xD1), (32, 0xCE, 0xD2), (64, 0xCF, 0xD3))
        found = []
        for bits, unsigned, signed in widths:
            if 0 <= item < 1 << bits:
                found.append(bytes([unsigned]) + item.to_bytes(bits // 8, "big"))
            if -(1 << bits - 1) <= item < 1 << bits - 1:
                found.append(bytes([signed]) + item.to_bytes(bits // 8, "big", signed=True))
        return found
    if isinstance(item, float):
        return [b"\xca" + msgpack.packb(item, use_single_float=True)[1:]] if item < 1e30 else []
    if isinstance(item, list):
        body = b"".join(map(msgpack.packb, item))
        heads = (b"\xdc" + len(item).to_bytes(2, "big"), b"\xdd" + len(item).to_bytes(4, "big"))
        return [head + body for head in heads]
    body = item.encode() if isinstance(item, str) else item
    codes = (0xD9, 0xDA, 0xDB) if isinstance(item, str) else (0xC4, 0xC5, 0xC6)
    sizes = zip(codes, (1, 2, 4), strict=True)
    return [
        bytes([code]) + len(body).to_bytes(size, "big") + body
        for code, size in sizes
        if len(body) < 1 << 8 * size
    ]


@pytest.mark.quick(20)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_no_value_has_a_second_spelling(example):
    kind, canonical = type(example), encode(example)
    tree = msgpack.unpackb(canonical)
    tried = 0
    for path, _, _ in places(kind, tree):
        item, mark = at(tree, path), b"here stands the item"
        before, after = msgpack.packb(replaced(tree, path, mark)).split(msgpack.packb(mark))
        for spelling in spellings(item):
            data = before + spelling + after
            if data != canonical:
                tried += 1
                assert refuses(kind, data), (path, spelling)
    assert tried


def test_equal_floats_have_equal_bytes():
    zero, negative = vectors.BODIES[Kind.COMMIT][1], msgpack.packb(-0.0)
    data = encode(zero).replace(msgpack.packb(0.0), negative, 1)
    assert negative in data
    with pytest.raises(DecodeError, match="negative zero"):
        decode(type(zero), data)
    with pytest.raises(DecodeError, match="negative zero"):
        encode(Setting("name", -0.0))


@pytest.mark.quick(20)
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_bytes_behind_or_missing_are_refused(example):
    kind, data = type(example), encode(example)
    assert all(refuses(kind, data + tail) for tail in (b"\x00", b"\xc0", data))
    assert all(refuses(kind, data[:length]) for length in range(len(data)))


def test_more_bytes_than_allowed_are_refused_unread():
    data = encode(WantChain(first=7))
    with pytest.raises(DecodeError, match="at most 1 allowed"):
        decode(WantChain, data, max_bytes=1)


# Types


@pytest.mark.parametrize("kind", TYPES)
def test_types_nest_no_deeper_than_the_limit(kind):
    def depth(raw: Any) -> int:
        return 1 + max(map(depth, raw), default=0) if isinstance(raw, list) else 0

    found = [depth(msgpack.unpackb(encode(e))) for e in EXAMPLES.values() if type(e) is kind]
    assert max(found) <= limits.NESTING_MAX


def test_type_that_nests_deeper_than_the_limit_is_a_bug():
    @dataclass(frozen=True)
    class Twigs:
        twigs: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]

    @dataclass(frozen=True)
    class Nest:
        branches: tuple[tuple[Twigs, ...], ...]

    @dataclass(frozen=True)
    class Deeper:
        nests: Nest

    nest = Nest(((Twigs(((((1,),),),)),),))
    assert decode(Nest, encode(nest)) == nest
    with pytest.raises(AssertionError, match="9 deep"):
        encode(Deeper(nest))


@dataclass(frozen=True)
class _Kinded:
    kind: Kind


@pytest.mark.parametrize(
    "wrong",
    [
        WantChain(first=True),
        WantChain(first=1.0),  # type: ignore[arg-type] # the point of the test
        WantChain(first=-1),
        WantChain(first=limits.ROUNDS_MAX + 1),
        Held(first=0, stop=1, senders=bytes(9)),
        Held(first=0, stop=1, senders=bytearray(b"x")),  # type: ignore[arg-type]
        List(commits=[], drifts=(), certificate=()),  # type: ignore[arg-type]
        _Kinded(kind=8),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_own_value_beyond_its_limits_is_not_encoded(wrong):
    with pytest.raises(DecodeError):
        encode(wrong)


def test_error_names_the_field_and_cuts_what_the_peer_said():
    tree = msgpack.unpackb(encode(sign_manifest(vectors.MANIFEST, vectors.SIGNER)))
    trust = list(fields_of(type(vectors.MANIFEST))).index("trust")
    tree[0][trust] = "evil\n" * 200
    with pytest.raises(DecodeError, match=r"SignedManifest\.manifest\.trust: 'evil\\n") as caught:
        decode(SignedManifest, msgpack.packb(tree))
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_limits_of_range_and_size_are_inclusive():
    @dataclass(frozen=True)
    class Edge:
        number: Annotated[int, Range(2, 3)]
        items: Annotated[tuple[bool, ...], Size(1, 2)]

    for fits in (Edge(2, (True,)), Edge(3, (True, False))):
        assert decode(Edge, encode(fits)) == fits
    for wrong in (Edge(1, (True,)), Edge(4, (True,)), Edge(2, ()), Edge(2, (True,) * 3)):
        with pytest.raises(DecodeError):
            encode(wrong)
