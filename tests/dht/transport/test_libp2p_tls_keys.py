"""Wishes for new keys, which any peer of TLS 1.3 may send at any time; OpenSSL answers itself."""

import hmac
import struct

import pytest
import trio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from libp2p.io.exceptions import ConnectionClosedError

from dht.transport.libp2p_security import _UNSENT_BYTES_MAX
from tests.dht.loopback import DEADLINE_S
from tests.dht.transport.test_libp2p_tls import shake, tls_of

ANSWER_BYTES = 27
"""A record with a message of five bytes."""


class Hand:
    """Writes the records of a TLS client itself (RFC 8446, sections 4.6.3, 5.2 and 7)."""

    def __init__(self, secret):
        self._hash = {32: "sha256", 48: "sha384"}[len(secret)]
        self._secret = secret
        self._number = 0

    def _expanded(self, label, size):
        name = b"tls13 " + label
        info = struct.pack("!HB", size, len(name)) + name + b"\x00"
        return hmac.digest(self._secret, info + b"\x01", self._hash)[:size]

    def record(self, content, kind):
        plain = content + bytes([kind])
        key, vector = self._expanded(b"key", 32), self._expanded(b"iv", 12)
        nonce = bytes(a ^ b for a, b in zip(vector, self._number.to_bytes(12, "big"), strict=True))
        head = struct.pack("!BHH", 23, 0x0303, len(plain) + 16)
        self._number += 1
        return head + AESGCM(key).encrypt(nonce, plain, head)

    def wish(self):
        """A record that asks the other end for new keys; the next is under our own new ones."""
        record = self.record(b"\x18\x00\x00\x01\x01", 22)
        self._secret, self._number = self._expanded(b"traffic upd", len(self._secret)), 0
        return record


async def ends(nursery):
    """A client that is written by hand, and the server's session."""
    client, server = [await tls_of(nursery, seed) for seed in (1, 2)]
    lines: list[bytes] = []
    client._outbound.set_keylog_callback(lambda _, line: lines.append(line))
    mine, theirs = await shake(client, server, server._local_peer)
    assert mine.connection.get_cipher_name() == "TLS_AES_256_GCM_SHA384"
    (secret,) = (line.split()[2] for line in lines if line.startswith(b"CLIENT_TRAFFIC_SECRET_0 "))
    return mine, theirs, Hand(bytes.fromhex(secret.decode()))


async def test_new_keys_are_taken_and_given():
    async with trio.open_nursery() as nursery:
        mine, theirs, hand = await ends(nursery)
        with trio.fail_after(DEADLINE_S):
            for number in range(100):
                await mine.link.write(hand.wish() + hand.record(b"%3d" % number, 23))
                assert await theirs.read() == b"%3d" % number
            await theirs.send((b"all",))
            assert await mine.read() == b"all"
        nursery.cancel_scope.cancel()


async def test_wishes_for_new_keys_without_end_end_the_connection():
    most = _UNSENT_BYTES_MAX // ANSWER_BYTES
    async with trio.open_nursery() as nursery:
        mine, theirs, hand = await ends(nursery)
        with trio.fail_after(DEADLINE_S):
            for _ in range(most - 1):
                await mine.link.write(hand.wish() + hand.record(b"x", 23))
                assert await theirs.read() == b"x"
            await mine.link.write(b"".join(hand.wish() for _ in range(3)))
            with pytest.raises(ConnectionClosedError, match="new keys"):
                await theirs.read()
        assert "new keys" in theirs.link.lost_reason
        nursery.cancel_scope.cancel()
