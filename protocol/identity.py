"""Who a peer is: an Ed25519 key, its peer id, and the seam through which all signing goes."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NewType, Protocol

import base58
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import DecodeError

PeerId = NewType("PeerId", bytes)
"""The 32 raw bytes of an Ed25519 public key. Peers are ordered by these bytes everywhere."""

PEER_ID_BYTES = 32
SIGNATURE_BYTES = 64
KEY_SEED_BYTES = 32

# libp2p's text form of an Ed25519 peer id: the identity multihash of the protobuf-wrapped key.
# Source: libp2p specs, peer-ids.
_LIBP2P_PREFIX = bytes.fromhex("002408011220")
_TEXT_CHARACTERS_MAX = 64

# The y coordinates of the eight points whose order divides the cofactor. Under such a key one
# signature fits every eighth message or all of them, whoever makes it, and OpenSSL accepts it.
# Source: "Taming the many EdDSAs", Chalkias, Garillot and Nikolaenko 2020, table 6.
_FIELD_PRIME = 2**255 - 19
_ORDER_8_Y = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER_Y = frozenset({0, 1, _FIELD_PRIME - 1, _ORDER_8_Y, _FIELD_PRIME - _ORDER_8_Y})


class Signer(Protocol):
    """SEAM: signs for this node, verifies for every peer. Real keys, or the simulator's hashes."""

    @property
    def peer_id(self) -> PeerId:
        """The peer id that `sign` signs for."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of `message` by this node."""
        ...

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is `peer`'s over `message`. Never raises on hostile input."""
        ...


def peer_id_text(peer: PeerId) -> str:
    """The libp2p text form, as it stands behind `/p2p/` in a multiaddr."""
    return base58.b58encode(_LIBP2P_PREFIX + peer).decode("ascii")


def parse_peer_id(text: str) -> PeerId:
    """Inverse of `peer_id_text`. Raises DecodeError for anything but a sound Ed25519 peer id."""
    if len(text) > _TEXT_CHARACTERS_MAX:
        raise DecodeError(f"peer id text is longer than {_TEXT_CHARACTERS_MAX} characters")
    try:
        raw = base58.b58decode(text)
    except ValueError as error:
        raise DecodeError(f"not a base58 peer id: {text!r}") from error
    if len(raw) != len(_LIBP2P_PREFIX) + PEER_ID_BYTES or not raw.startswith(_LIBP2P_PREFIX):
        raise DecodeError(f"not an Ed25519 peer id: {text!r}")
    peer = PeerId(raw[len(_LIBP2P_PREFIX) :])
    # base58 looks past blanks at the end; one peer has one text.
    if peer_id_text(peer) != text:
        raise DecodeError(f"not the canonical text of a peer id: {text!r}")
    if _is_weak(peer):
        raise DecodeError(f"a peer id that identifies nobody: {text!r}")
    return peer


def _is_weak(peer: PeerId) -> bool:
    """Whether the key is a point of small order, or spelled with a coordinate beyond the field."""
    y = int.from_bytes(peer, "little") & (2**255 - 1)
    return y >= _FIELD_PRIME or y in _SMALL_ORDER_Y


@lru_cache(maxsize=4096)
def short_id(peer: PeerId) -> str:
    """The last eight characters of the text form: what logs and tables show."""
    return peer_id_text(peer)[-8:]


@dataclass(frozen=True, slots=True)
class Ed25519Signer:
    """The real Signer. `seed` is the 32-byte private key; it is kept out of reprs and logs."""

    seed: bytes = field(repr=False)
    _key: Ed25519PrivateKey = field(init=False, repr=False, compare=False)
    peer_id: PeerId = field(init=False)

    def __post_init__(self) -> None:
        key = Ed25519PrivateKey.from_private_bytes(self.seed)
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "peer_id", PeerId(key.public_key().public_bytes_raw()))

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature of `message`."""
        return self._key.sign(message)

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is `peer`'s; a key that is weak or no curve point signs nothing."""
        if _is_weak(peer):
            return False
        try:
            Ed25519PublicKey.from_public_bytes(peer).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class KeyedHashSigner:
    """The simulator's Signer: a keyed hash that every node of one world can check. Not secret.

    It is some forty times faster than Ed25519, and a world has no outsiders.
    """

    peer_id: PeerId

    def sign(self, message: bytes) -> bytes:
        """64 bytes of BLAKE3 keyed with the peer id."""
        return blake3(message, key=self.peer_id).digest(SIGNATURE_BYTES)

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is what `peer` would have made."""
        return len(peer) == PEER_ID_BYTES and signature == blake3(message, key=peer).digest(
            SIGNATURE_BYTES
        )
