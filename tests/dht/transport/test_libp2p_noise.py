"""Noise's records: encrypted from the caller's memory, decrypted wherever the socket cuts them."""

import random
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from libp2p.io.exceptions import ConnectionClosedError

from dht.transport.libp2p_session import SEND_BYTES_MAX, NoiseSession


class KeyedLink:
    """Where records lie between two sessions."""

    def __init__(self):
        self.data = bytearray()
        self.lost_reason = ""

    async def write(self, data):
        self.data += data

    async def arrived(self, due=0):
        data, self.data = bytes(self.data), bytearray()
        return data

    def lose(self, why):
        self.lost_reason = why


def noise_session():
    """A session that reads what it has written itself."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    session: Any = NoiseSession.__new__(NoiseSession)
    cipher = ChaCha20Poly1305(bytes(32))
    session._encrypt, session._decrypt = cipher.encrypt_into, cipher.decrypt_into
    session._num_sent = session._num_received = 0
    session._plain, session._half = b"", bytearray()
    session.link = KeyedLink()
    return session


@pytest.mark.parametrize("size", [1, 12, 65_519, 65_520, 200_000, SEND_BYTES_MAX])
async def test_records_are_decrypted_wherever_the_socket_cuts_them(seed, size):
    rng = random.Random(f"{seed}/{size}")
    session = noise_session()
    sent = b""
    for _ in range(3):
        parts = (rng.randbytes(12), rng.randbytes(size - min(size, 12)))
        await session.send(parts)
        sent += b"".join(parts)
    wire = bytes(session.link.data)
    received = b""
    while wire:
        cut = rng.choice((1, 2, 3, 30, 70_000, 300_000))
        received += session._decrypted(wire[:cut])
        wire = wire[cut:]
    assert received == sent


async def test_flipped_bit_ends_the_connection(seed):
    session = noise_session()
    await session.send((b"hello",))
    session.link.data[random.Random(seed).randrange(2, len(session.link.data))] ^= 4
    with pytest.raises(ConnectionClosedError, match="does not decrypt") as caught:
        await session.receive()
    assert isinstance(caught.value.__cause__, InvalidTag)
