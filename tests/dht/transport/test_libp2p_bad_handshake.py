"""Handshakes over a circuit, where a relay, or who comes by it, chooses every byte."""

import os
import random
import struct
from contextlib import suppress

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dht.reaching import relay_server
from dht.reaching.addresses import RELAY_FRAMES, RELAY_PROTOCOL, Joined, circuit_address
from dht.reaching.relay_client import join_circuit
from dht.transport.libp2p_inbound import encode_line
from protocol.errors import NetworkError, UnreachableError
from tests.dht.loopback import ECHO, ask, echo, open_loopback, until
from tests.dht.transport.test_libp2p_circuit import lab, relayed

HEADER, NOISE, TLS = (encode_line(name) for name in ("/multistream/1.0.0", "/noise", "/tls/1.0.0"))
pytestmark = pytest.mark.net


def message(garbage):
    """A first or second message of Noise: a true key, and what does not decrypt."""
    data = X25519PrivateKey.generate().public_key().public_bytes_raw() + garbage
    return struct.pack("!H", len(data)) + data


async def receive_message(stream):
    (size,) = struct.unpack("!H", await stream.receive_exactly(2))
    return await stream.receive_exactly(size)


async def test_stranger_whose_last_message_does_not_decrypt_harms_nobody():
    async with lab() as made, made.home({ECHO: echo}) as far, open_loopback() as near:
        await near.connect(made.relay.peer_id, made.relay.addresses())
        circuit = await join_circuit(near, made.relay.peer_id, far.peer_id)
        await circuit.send_all(HEADER + NOISE)
        assert await circuit.receive_exactly(len(HEADER + NOISE)) == HEADER + NOISE
        await circuit.send_all(message(b""))
        await receive_message(circuit)
        await circuit.send_all(struct.pack("!H", 200) + os.urandom(200))
        await until(lambda: not made.server.books._num_circuits)
        await near.connect(far.peer_id, relayed(far))
        assert await ask(await near.open_stream(far.peer_id, ECHO), b"still") == b"still"


async def test_relay_that_answers_in_somebodys_place_is_a_failed_dial():
    async with lab() as made, open_loopback() as near, made.home({ECHO: echo}) as far:

        async def impostor(stream):
            await stream.receive_frame(256)
            await stream.send_frame(RELAY_FRAMES.encode(Joined()))
            await stream.send_all(HEADER)
            heard = b""
            while not heard.endswith(NOISE):
                heard += await stream.receive_exactly(1)
                if heard.endswith(TLS):
                    await stream.send_all(encode_line("na"))
            await stream.send_all(NOISE)
            await receive_message(stream)
            await stream.send_all(message(os.urandom(200)))

        served = made.relay._inbound._handlers[RELAY_PROTOCOL]
        made.relay._inbound._handlers[RELAY_PROTOCOL] = impostor
        address = circuit_address(made.relay.peer_id, made.relay.addresses()[0])
        with pytest.raises(UnreachableError, match="Noise: InvalidTag"):
            await near.connect(far.peer_id, (address,))
        made.relay._inbound._handlers[RELAY_PROTOCOL] = served
        await near.connect(far.peer_id, relayed(far))
        assert await ask(await near.open_stream(far.peer_id, ECHO), b"still") == b"still"


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["tls", "noise", "private"])
async def test_relay_that_flips_a_bit_of_a_handshake_harms_nobody(kind, seed, monkeypatch):
    config = {"psk": b"k" * 32} if kind == "private" else {"security": kind}
    rng, some = random.Random(f"{seed}/{kind}"), relay_server._some
    flip_at = -1
    carried = dict[object, int]()

    async def flipping(near):
        piece = bytearray(await some(near))
        start = carried.get(near.peer, 0)
        carried[near.peer] = start + len(piece)
        if near.peer == liar and start <= flip_at < carried[near.peer]:
            piece[flip_at - start] ^= 1 << rng.randrange(8)
        return bytes(piece)

    monkeypatch.setattr(relay_server, "_some", flipping)
    async with (
        lab(**config) as made,
        made.home({ECHO: echo}, **config) as far,
        open_loopback(dial_timeout_s=0.5, **config) as near,
    ):
        for liar in (near.peer_id, far.peer_id) * 8:
            flip_at = rng.randrange(40, 300)
            carried.clear()
            with suppress(UnreachableError, NetworkError):
                await near.connect(far.peer_id, relayed(far))
                stream = await near.open_stream(far.peer_id, ECHO)
                with trio.move_on_after(0.5):
                    await ask(stream, b"q" * 300)
            assert carried[liar] > flip_at
            for link in near._links.of(far.peer_id):
                link.lose("flipped")
            await until(lambda: not near._links.of(far.peer_id))
        flip_at = -1
        await near.connect(far.peer_id, relayed(far))
        assert await ask(await near.open_stream(far.peer_id, ECHO), b"still") == b"still"
