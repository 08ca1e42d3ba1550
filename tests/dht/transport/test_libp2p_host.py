"""The libp2p host: who we are, where we listen, and what we speak."""

import contextlib
import os
import socket
import subprocess
import sys

import pytest
import trio
import trio.testing
from libp2p.crypto.secp256k1 import create_new_key_pair
from multiaddr import Multiaddr

from dht.transport.libp2p_host import TransportConfig, dialable, reachable, reserved_port
from dht.transport.libp2p_inbound import encode_line
from dht.transport.libp2p_link import Link
from dht.transport.libp2p_security import TunedNoise, TunedTls
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
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(encode_line("/multistream/1.0.0") + encode_line(offer))
                received = b""
                while len(received) < len(expected):
                    received += await stream.receive_some()
            assert received == expected


async def test_port_of_another_node_is_refused():
    async with open_loopback() as first:
        port = int(first.addresses()[0].rpartition("/")[2])
        with pytest.raises(ConfigError, match=f"port {port}"):
            async with open_loopback(listen_port=port):
                pass
    async with open_loopback(listen_port=port) as second:
        assert second.addresses() == (f"/ip4/127.0.0.1/tcp/{port}",)


HOME = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["192.168.1.2", "fe80::1%eth0", "2a00::7"],
    "docker0": ["172.17.0.1", "fd00::1"],
}
BOTH = [Multiaddr("/ip4/0.0.0.0/tcp/4001"), Multiaddr("/ip6/::/tcp/4001")]


@pytest.mark.parametrize(
    ("listening", "interfaces", "told"),
    [
        (BOTH, HOME, ["/ip6/2a00::7", "/ip4/192.168.1.2"]),
        (BOTH[:1], HOME, ["/ip4/192.168.1.2"]),
        (BOTH, HOME | {"eth0": ["192.168.1.2"]}, ["/ip4/192.168.1.2"]),
        (BOTH, {"lo": ["::1"], "eth0": ["2a00::7"]}, ["/ip6/2a00::7"]),
        # Its own for itself where it has no other; what it lacks is told to nobody.
        (BOTH, {"lo": ["127.0.0.1", "::1"]}, ["/ip4/127.0.0.1"]),
        (BOTH, {"lo": ["::1"]}, ["/ip6/::1"]),
        (BOTH[:1], {"lo": ["::1"]}, []),
        (BOTH, {}, []),
        ([Multiaddr("/ip4/127.0.0.2/tcp/4001")], HOME, ["/ip4/127.0.0.2"]),
    ],
)
def test_wildcard_addresses_become_those_that_this_machine_has(listening, interfaces, told):
    found = [str(address) for address in reachable(listening, interfaces)]

    assert found == [f"{one}/tcp/4001" for one in told]


def test_one_interface_is_told_of_alone():
    assert [str(one) for one in reachable(BOTH, HOME, "docker0")] == [
        "/ip4/172.17.0.1/tcp/4001",
        "/ip6/fd00::1/tcp/4001",
    ]


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_addresses_are_those_of_both_families(host):
    with reserved_port(TransportConfig(listen_host=host)) as found:
        ports = {str(one).rpartition("/")[2] for one in found}
        assert len(ports) == 1
        assert {str(one).split("/")[2] for one in found} == {"0.0.0.0", "::"}
        assert str(found[0]).split("/")[2] == host
    with reserved_port(TransportConfig(listen_host="127.0.0.1")) as found:
        assert len(found) == 1


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
@pytest.mark.net
async def test_node_on_all_addresses_is_found_over_either_family():
    async with (
        open_transport(TransportConfig(), signer_seed=bytes(32)) as server,
        open_loopback() as client,
    ):
        port = server.addresses()[0].rpartition("/")[2]
        for host in ("/ip4/127.0.0.1", "/ip6/::1"):
            with trio.fail_after(20):
                await client.connect(server.peer_id, [f"{host}/tcp/{port}"])
                assert client.seen(server.peer_id) == f"{host}/tcp/{port}"
                await client.disconnect(server.peer_id)


def test_port_that_another_has_in_the_other_family_leaves_one():
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::", 0))
        port = other.getsockname()[1]
        with reserved_port(TransportConfig(listen_port=port)) as found:
            assert [str(one) for one in found] == [f"/ip4/0.0.0.0/tcp/{port}"]


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


@pytest.mark.extended
def test_import_of_the_transport_loads_no_torch():
    code = "import sys, dht.transport.libp2p_transport; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
