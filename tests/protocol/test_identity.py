"""Keys, peer ids, signatures: one text per peer, no signature that fits by itself."""

import hashlib
import random

import base58
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from protocol import manifest, messages
from protocol import messages as slots
from protocol.errors import DecodeError
from protocol.identity import (
    Ed25519Signer,
    KeyedHashSigner,
    PeerId,
    Signer,
    parse_peer_id,
    peer_id_text,
    short_id,
)

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
IDENTITY: Point = (0, 1)

REAL = Ed25519Signer(bytes(range(32)))
SIMULATED = KeyedHashSigner(PeerId(bytes(range(32))))
BOTH = pytest.mark.parametrize("signer", [REAL, SIMULATED], ids=["Ed25519", "keyed hash"])


# RFC 8032, section 7.1, tests 1 and 2: secret key, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]


@pytest.mark.parametrize(("seed_hex", "public", "message", "signature"), RFC_8032)
def test_signatures_are_those_of_the_standard(seed_hex, public, message, signature):
    signer = Ed25519Signer(bytes.fromhex(seed_hex))
    assert signer.peer_id.hex() == public
    assert signer.sign(bytes.fromhex(message)).hex() == signature


@BOTH
@given(message=st.binary(max_size=200))
def test_signature_fits_its_writer_and_its_message_alone(signer: Signer, message):
    signature = signer.sign(message)
    other = Ed25519Signer(bytes(32)).peer_id
    assert signer.verify(signer.peer_id, message, signature)
    assert not signer.verify(other, message, signature)
    assert not signer.verify(signer.peer_id, message + b"\x00", signature)


@BOTH
def test_flipped_bit_of_signature_or_key_is_refused(signer: Signer, seed):
    rng = random.Random(f"{seed}/flips")
    signature = signer.sign(b"barn")
    for bit in rng.sample(range(512), 64):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not signer.verify(signer.peer_id, b"barn", bytes(flipped))
    for bit in range(256):
        peer = bytearray(signer.peer_id)
        peer[bit // 8] ^= 1 << bit % 8
        assert not signer.verify(PeerId(bytes(peer)), b"barn", signature)


@BOTH
@given(peer=st.binary(max_size=40), signature=st.binary(max_size=80))
def test_verify_answers_any_bytes_with_no(signer: Signer, peer, signature):
    assert not signer.verify(PeerId(peer), b"barn", signature)
    assert not signer.verify(signer.peer_id, b"barn", signature)


def test_private_key_shows_in_no_repr():
    assert REAL.seed.hex() not in repr(REAL)
    assert repr(REAL.seed) not in repr(REAL)


# Keys and signatures at the edges of the curve


def add(one: Point, two: Point) -> Point:
    (x1, y1), (x2, y2) = one, two
    t = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + t, -1, P)
    return x % P, (y1 * y2 + x1 * x2) * pow(1 - t, -1, P) % P


def times(scalar: int, point: Point) -> Point:
    total = IDENTITY
    while scalar:
        if scalar & 1:
            total = add(total, point)
        point, scalar = add(point, point), scalar >> 1
    return total


def on_curve(y: int) -> list[Point]:
    """The points with that y coordinate."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    return [(x, y % P), (-x % P, y % P)] if x * x % P == square else []


def small_order_points() -> set[Point]:
    """L times a point of the curve is one of them; the right one makes all eight."""
    torsions = (times(L, point) for y in range(2, 40) for point in on_curve(y))
    found = ({times(k, torsion) for k in range(8)} for torsion in torsions)
    return next(points for points in found if len(points) == 8)


def encodings(point: Point) -> set[bytes]:
    """The canonical encoding, and all others that a lenient reader takes for the same point."""
    x, y = point
    signs = (0, 1) if x == 0 else (x & 1,)
    spelled = (y, y + P) if y + P < 2**255 else (y,)
    return {(s | sign << 255).to_bytes(32, "little") for s in spelled for sign in signs}


SMALL_ORDER_POINTS = small_order_points()
SMALL_ORDER_KEYS = sorted(set.union(*map(encodings, SMALL_ORDER_POINTS)))


def accepted_by_the_library(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def test_there_are_eight_points_of_small_order_in_fourteen_spellings():
    assert len(SMALL_ORDER_POINTS) == 8
    assert all(times(8, point) == IDENTITY for point in SMALL_ORDER_POINTS)
    assert len(SMALL_ORDER_KEYS) == 14


@pytest.mark.parametrize("key", SMALL_ORDER_KEYS, ids=bytes.hex)
def test_key_of_small_order_signs_nothing(key):
    # S = 0 and R = any point of small order: with such a key it fits one message in eight or more.
    forgeries = [
        (b"%d" % number, r + bytes(32))
        for number in range(8)
        for r in SMALL_ORDER_KEYS
        if accepted_by_the_library(key, r + bytes(32), b"%d" % number)
    ]
    assert forgeries, "the library refuses such keys by itself: identity.py need not any longer"
    for message, signature in forgeries:
        assert not REAL.verify(PeerId(key), message, signature)


@pytest.mark.parametrize("key", SMALL_ORDER_KEYS, ids=bytes.hex)
def test_key_of_small_order_is_no_peer_id(key):
    with pytest.raises(DecodeError):
        parse_peer_id(peer_id_text(PeerId(key)))


def test_key_with_a_coordinate_beyond_the_field_is_no_peer_id():
    for y in range(P, 2**255):
        for sign in (0, 1):
            peer = PeerId((y | sign << 255).to_bytes(32, "little"))
            assert not REAL.verify(peer, b"barn", bytes(64))
            with pytest.raises(DecodeError):
                parse_peer_id(peer_id_text(peer))


def test_signature_has_no_second_form():
    """S + L means what S means; R has spellings beyond the field. Both would be new bytes."""
    signature = REAL.sign(b"barn")
    scalar = int.from_bytes(signature[32:], "little")
    for multiple in range(1, 2**256 // L):
        beyond = scalar + multiple * L
        if beyond < 2**256:
            spelled = signature[:32] + beyond.to_bytes(32, "little")
            assert not REAL.verify(REAL.peer_id, b"barn", spelled)

    half = bytearray(hashlib.sha512(REAL.seed).digest()[:32])
    half[0] &= 248
    half[31] = half[31] & 63 | 64
    secret = int.from_bytes(half, "little")

    def signed_with_nonce_zero(r: bytes) -> bytes:
        challenge = hashlib.sha512(r + REAL.peer_id + b"barn").digest()
        scalar = int.from_bytes(challenge, "little") * secret % L
        return r + scalar.to_bytes(32, "little")

    canonical = (1).to_bytes(32, "little")
    assert REAL.verify(REAL.peer_id, b"barn", signed_with_nonce_zero(canonical))
    for other in encodings(IDENTITY) - {canonical}:
        assert not REAL.verify(REAL.peer_id, b"barn", signed_with_nonce_zero(other))


# Text


@given(seed_bytes=st.binary(min_size=32, max_size=32))
def test_text_of_a_peer_id_parses_to_it(seed_bytes):
    peer = Ed25519Signer(seed_bytes).peer_id
    text = peer_id_text(peer)
    assert text.startswith("12D3KooW")
    assert parse_peer_id(text) == peer
    assert short_id(peer) == text[-8:]


@given(text=st.text(max_size=80))
def test_other_text_is_refused(text):
    with pytest.raises(DecodeError):
        parse_peer_id(text)


@given(raw=st.binary(max_size=44))
def test_base58_of_something_else_is_refused(raw):
    with pytest.raises(DecodeError):
        parse_peer_id(base58.b58encode(raw).decode())


@pytest.mark.parametrize("wrapped", ["{} ", "{}\n", " {}", "1{}", "{}1", "{}\x00", "{}é"])
def test_peer_has_one_text(wrapped):
    with pytest.raises(DecodeError):
        parse_peer_id(wrapped.format(peer_id_text(REAL.peer_id)))


def test_long_text_is_refused_before_it_is_read():
    with pytest.raises(DecodeError, match="longer than 64"):
        parse_peer_id("1" * 1_000_000)


def test_no_signing_domain_is_the_beginning_of_another():
    from dht.kademlia import records

    domains = [
        slots._MESSAGE_DOMAIN,
        slots._LIST_DOMAIN,
        messages._SEAL_DOMAIN,
        slots._SLICE_DOMAIN,
        manifest._DOMAIN,
        records._SIGNING_DOMAIN,
        # What libp2p signs with the same key in its secure channels.
        b"noise-libp2p-static-key:",
        b"libp2p-tls-handshake:",
    ]
    for one in domains:
        assert not any(other.startswith(one) for other in domains if other is not one)
