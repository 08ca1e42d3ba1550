"""How a peer is reached, in one word, and what was exchanged with it."""

import socket
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from dht.transport.libp2p_link import Links
from dht.transport.libp2p_stream import PEERS_COUNTED_MAX, Traffic
from dht.transport.libp2p_transport import TransportConfig, open_transport
from protocol.identity import PeerId
from tests.dht.loopback import DEADLINE_S, ECHO, ask, echo, open_loopback

PEER = PeerId(b"p" * 32)


@dataclass(frozen=True)
class Connection:
    """What `Links.path` looks at, of one link."""

    remote: tuple[str, int] | None
    is_direct: bool = True
    is_initiator: bool = False
    is_punched: bool = False


CIRCUIT = Connection(None, is_direct=False)


def path_over(*connections, is_listed):
    links = Links(lambda task: None)
    for one in connections:
        links._up.setdefault(PEER, {})[one] = None
    return links.path(PEER, is_listed=is_listed)


@pytest.mark.parametrize(
    ("connections", "is_listed", "word"),
    [
        ((), True, ""),
        ((CIRCUIT,), False, "relayed"),
        ((Connection(("192.168.1.9", 4001)),), False, "LAN"),
        ((Connection(("127.0.0.1", 4001)),), True, "LAN"),
        ((Connection(("45.33.7.9", 4001), is_initiator=True),), False, "direct"),
        ((Connection(("45.33.7.9", 50_000)),), True, "direct"),
        ((Connection(("45.33.7.9", 50_000)),), False, "mapped"),
        ((CIRCUIT, Connection(("45.33.7.9", 4001), is_punched=True)), False, "punched"),
    ],
)
def test_path_is_that_of_the_best_connection(connections, is_listed, word):
    assert path_over(*connections, is_listed=is_listed) == word


@pytest.mark.net
async def test_bytes_are_counted_by_peer():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}) as server,
            open_loopback() as client,
            open_loopback() as other,
        ):
            for one, size in ((client, 5000), (other, 70)):
                await one.connect(server.peer_id, server.addresses())
                await ask(await one.open_stream(server.peer_id, ECHO), b"x" * size)
                assert one.path(server.peer_id) == server.path(one.peer_id) == "LAN"
                assert one.traffic_with(server.peer_id) == (size + 4, size + 4)
                assert server.traffic_with(one.peer_id) == (size + 4, size + 4)
            assert server.traffic() == (5078, 5078)
            assert client.traffic_with(other.peer_id) == (0, 0)


def test_peers_without_end_are_not_counted_for_ever():
    traffic = Traffic()
    for number in range(PEERS_COUNTED_MAX + 5):
        traffic.with_peer(PeerId(number.to_bytes(32))).sent = 7
    assert traffic.of(PeerId(bytes(32))) == (0, 0)
    assert traffic.of(PeerId((PEERS_COUNTED_MAX + 4).to_bytes(32))) == (7, 0)


@pytest.fixture
def has_ip6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 on loopback here: {error}")


@pytest.mark.net
@pytest.mark.parametrize(("listens", "dials"), [("::1", "/ip6/::1/"), ("::", "/ip4/127.0.0.1/")])
@pytest.mark.usefixtures("has_ip6")
async def test_other_end_of_a_connection_to_an_ip6_listener_is_known(
    listens: str, dials: str
) -> None:
    config = TransportConfig(listen_host=listens)
    with trio.fail_after(DEADLINE_S):
        async with open_transport(config, signer_seed=b"s" * 32) as server:
            address = f"{dials}tcp/{server.addresses()[0].rpartition('/')[2]}"
            named = replace(config, named=(address,))
            async with open_transport(named, signer_seed=b"c" * 32) as client:
                await client.connect(server.peer_id, [address])
                while not server.connected():
                    await trio.testing.wait_all_tasks_blocked(0.001)
                assert client.seen(server.peer_id) == address
                # Who listens for both versions sees IPv4 under its own name.
                assert server.seen(client.peer_id).startswith(f"{dials}tcp/")
