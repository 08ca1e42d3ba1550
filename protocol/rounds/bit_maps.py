"""Sets of members as bits over a roster, as COMMITs and HAVEs carry them."""

from collections.abc import Collection
from functools import lru_cache

from protocol.identity import PeerId


def pack_senders(senders: Collection[PeerId], members: tuple[PeerId, ...]) -> bytes:
    """A bit map over the roster: bit i of byte i // 8, lowest first, is member i."""
    bits = bytearray(-(-len(members) // 8))
    for index, member in enumerate(members):
        if member in senders:
            bits[index // 8] |= 1 << (index % 8)
    return bytes(bits)


@lru_cache(maxsize=256)
def unpack_senders(bits: bytes, members: tuple[PeerId, ...]) -> frozenset[PeerId]:
    """Inverse of `pack_senders`; bits beyond the roster say nothing."""
    return frozenset(
        member
        for index, member in enumerate(members)
        if index // 8 < len(bits) and bits[index // 8] >> (index % 8) & 1
    )
