"""The 256-bit key space of the DHT: where peers and topics lie, and how far apart they are.

The metric is XOR (Maymounkov and Mazieres 2002). Keys are BLAKE3 digests, so a writer cannot choose
where its topic lies, and a peer that wants to lie near a key has to grind key pairs for it.
"""

import random
from typing import Annotated, NewType

from blake3 import blake3

from protocol.identity import PeerId
from protocol.wire import Size

Key = NewType("Key", bytes)
"""32 bytes: a point of the key space."""

KEY_BYTES = 32
KEY_BITS = 256

WireKey = Annotated[Key, Size(KEY_BYTES, KEY_BYTES)]

# Two domains: the bytes of a topic can never be made to lie exactly where a given peer lies.
_NODE_DOMAIN = b"barnraise/dht/node/1\x00"
_TOPIC_DOMAIN = b"barnraise/dht/topic/1\x00"


def node_key(peer: PeerId) -> Key:
    """Where `peer` lies."""
    return Key(blake3(_NODE_DOMAIN + peer).digest())


def topic_key(topic: bytes) -> Key:
    """Where the records about `topic` lie."""
    return Key(blake3(_TOPIC_DOMAIN + topic).digest())


def distance(first: Key, second: Key) -> int:
    """The XOR of both keys, read as a big-endian number."""
    return int.from_bytes(first, "big") ^ int.from_bytes(second, "big")


def bucket_index(own: Key, other: Key) -> int:
    """Which k-bucket of `own` holds `other`: 255 is the far half of the space, 0 the nearest key.

    Raises ValueError for the own key, which is in no bucket.
    """
    if own == other:
        raise ValueError("the own key is in no bucket")
    return distance(own, other).bit_length() - 1


def random_key_in_bucket(own: Key, index: int, rng: random.Random) -> Key:
    """A uniformly random key that falls into bucket `index` of `own`."""
    offset = (1 << index) | rng.getrandbits(index) if index else 1
    return Key((int.from_bytes(own, "big") ^ offset).to_bytes(KEY_BYTES, "big"))
