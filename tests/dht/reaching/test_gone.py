"""A peer is gone when its own system refuses connections, and only then."""

import pytest
import trio

from dht.reaching.addresses import Reached, host_and_port, is_gone, telling

HERE = "127.0.0.1"


def address(port: int, host: str = HERE) -> str:
    return f"/ip4/{host}/tcp/{port}"


async def free_port() -> int:
    (listener,) = await trio.open_tcp_listeners(0, host=HERE)
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


@pytest.mark.net
async def test_port_where_nobody_listens_any_more_tells():
    port = await free_port()
    assert await is_gone([address(port)], Reached(HERE, 55555, is_ours=False))


@pytest.mark.net
async def test_listener_that_is_there_tells_that_the_peer_is():
    (listener,) = await trio.open_tcp_listeners(0, host=HERE)
    port = listener.socket.getsockname()[1]
    gone = await free_port()
    assert not await is_gone([address(gone), address(port)], Reached(HERE, 5, is_ours=False))
    await listener.aclose()


@pytest.mark.net
async def test_listener_that_takes_nobody_yet_tells_that_the_peer_is(monkeypatch):
    """A frozen process: its system still takes connections for it."""
    (listener,) = await trio.open_tcp_listeners(0, host=HERE, backlog=1)
    port = listener.socket.getsockname()[1]
    assert not await is_gone([address(port)], Reached(HERE, 5, is_ours=False))
    await listener.aclose()


@pytest.mark.parametrize(
    ("reached", "told"),
    [
        # We had opened the connection to that very address.
        (Reached("93.184.216.34", 4001, is_ours=True), ["93.184.216.34"]),
        # To another port of that host, which may be a router's.
        (Reached("93.184.216.34", 4002, is_ours=True), []),
        # It had come from there, through whatever router.
        (Reached("93.184.216.34", 4001, is_ours=False), []),
        # On our own network the host is the peer's.
        (Reached("192.168.7.9", 61000, is_ours=False), ["192.168.7.9"]),
        # What it calls its private address may be somebody else's here.
        (Reached("10.0.0.3", 61000, is_ours=False), []),
    ],
)
def test_only_addresses_that_surely_lead_to_the_peer_tell(reached, told):
    addresses = [address(4001, "93.184.216.34"), address(4001, "192.168.7.9")]
    assert telling(addresses, reached) == [(host, 4001) for host in told]


async def test_without_an_address_that_tells_nobody_is_gone(autojump_clock):
    assert not await is_gone([], Reached(HERE, 5, is_ours=True))
    assert not await is_gone(["/dns4/example.org/tcp/1"], Reached(HERE, 5, is_ours=True))


@pytest.mark.parametrize(
    "text", ["", "/", "/ip4/1.2.3.4/udp/5", "/ip4/1.2.3.4/tcp/x", "/ip4/1.2.3.4/tcp/5/p2p/Q"]
)
def test_address_of_another_form_has_no_host_and_port(text):
    assert host_and_port(text) is None
    assert host_and_port("/ip6/::1/tcp/5") == ("::1", 5)


@pytest.mark.parametrize(
    "port", ["0", "65536", "099999", "9" * 20, "9" * 5000, "\u0663", "-1", "+1"]
)
async def test_port_that_there_is_not_tells_nothing(port, autojump_clock):
    """A peer says it of itself, and no system call takes all of them."""
    said = f"/ip4/{HERE}/tcp/{port}"
    assert host_and_port(said) is None
    assert not await is_gone([said], Reached(HERE, 5, is_ours=False))
