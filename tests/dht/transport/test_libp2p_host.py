"""The libp2p host: who we are, where we listen, and what we speak."""

import contextlib
import os
import subprocess
import sys

import pytest
import trio
import trio.testing
from libp2p.crypto.secp256k1 import create_new_key_pair
from multiaddr import Multiaddr

from dht.transport.libp2p_host import TransportConfig, dialable, reachable
from dht.transport.libp2p_link import Link
from dht.transport.libp2p_negotiate import encode_line
from dht.transport.libp2p_security import TunedNoise
from dht.transport.libp2p_tls import TunedTls
from dht.transport.libp2p_transport import open_transport
from protocol.errors import ConfigError, UnreachableError
from protocol.identity import Ed25519Signer, peer_id_text
from tests.dht.loopback import (
    DEADLINE_S,
    open_loopback,
    until,
)

pytestmark = pytest.mark.net


async def test_peer_id_is_the_one_of_the_library():
    seed = os.urandom(32)
    config = TransportConfig(listen_host="127.0.0.1")
    async with open_transport(config, signer_seed=seed) as transport:
        assert transport.peer_id == Ed25519Signer(seed).peer_id
        assert str(transport.host.get_id()) == peer_id_text(transport.peer_id)


@pytest.mark.parametrize(("offer", "answer"), [("/plaintext/2.0.0", "na"), ("/noise", "/noise")])
async def test_noise_is_the_only_secure_channel(offer, answer):
    expected = encode_line("/multistream/1.0.0") + encode_line(answer)
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as transport:
            port = int(transport.addresses()[0].rpartition("/")[2])
            async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
                await socket.send_all(encode_line("/multistream/1.0.0") + encode_line(offer))
                received = b""
                while len(received) < len(expected):
                    received += await socket.receive_some()
            assert received == expected


async def test_port_of_another_node_is_refused():
    async with open_loopback() as first:
        port = int(first.addresses()[0].rpartition("/")[2])
        with pytest.raises(ConfigError, match=f"port {port}"):
            async with open_loopback(listen_port=port):
                pass
    async with open_loopback(listen_port=port) as second:
        assert second.addresses() == (f"/ip4/127.0.0.1/tcp/{port}",)


def test_wildcard_address_becomes_addresses_of_this_machine():
    found = [str(address) for address in reachable(Multiaddr("/ip4/0.0.0.0/tcp/4001"))]
    assert found
    assert all(text.endswith("/tcp/4001") and "0.0.0.0" not in text for text in found)


async def test_announced_addresses_replace_our_own():
    announce = ("/ip4/203.0.113.7/tcp/4001", "/dns4/example.org/tcp/4001")
    async with open_loopback(announce=announce) as transport:
        assert transport.addresses() == announce


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "/ip4/127.0.0.1",
        "/ip4/127.0.0.1/udp/4001/quic-v1",
        "/ip4/127.0.0.1/tcp/4001/ws",
        "/ip4/300.0.0.1/tcp/4001",
        "/ip4/127.0.0.1/tcp/4001/p2p-circuit",
        "/dns4/" + "a" * 300 + "/tcp/4001",
    ],
)
def test_address_that_is_not_plain_tcp_is_refused(address):
    with pytest.raises(ValueError, match=r"no multiaddr|not /ip4|longer"):
        dialable(address)


@pytest.mark.parametrize(
    "wrong",
    [{"listen_host": "example.org"}, {"listen_port": 70_000}, {"announce": ("/ip4/1.2.3.4",)}],
)
def test_config_names_the_field_that_is_wrong(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TransportConfig(**wrong)


@pytest.mark.parametrize(("name", "kind"), [("/noise", TunedNoise), ("/tls/1.0.0", TunedTls)])
async def test_peer_with_another_kind_of_key_is_refused(name, kind):
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback() as client:
            network = client.host.get_network()
            key_pair = create_new_key_pair()
            foreign = kind(
                key_pair, lambda raw: Link(raw, spawn=client._spawn, on_lost=lambda _: None)
            )
            offered = network.upgrader.security_multistream.transports
            offered.clear()
            offered[name] = foreign
            events = server.connection_events()
            # Noise lets the dialler finish first; then the refusal comes as a closed connection.
            with contextlib.suppress(UnreachableError):
                await client.connect(server.peer_id, server.addresses())
            await until(lambda: not client.connected())
            assert server.connected() == ()
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()


def test_import_of_the_transport_loads_no_torch():
    code = "import sys, dht.transport.libp2p_transport; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
