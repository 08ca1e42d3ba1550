"""Addresses with names in them: the system says where they lead."""

import os

import pytest
import trio
from multiaddr import Multiaddr

from dht.reaching.addresses import circuit_address
from dht.transport import libp2p_dialing
from dht.transport.libp2p_dialing import LOOKUPS_MAX, located
from protocol.errors import UnreachableError
from protocol.identity import Ed25519Signer
from tests.dht.loopback import DEADLINE_S, ECHO, ask, echo, open_loopback

pytestmark = pytest.mark.net

IPV4 = r"127\.0\.0\.1"
NOWHERE = "/dns6/127.0.0.1/tcp/4001"
"""A system refuses it by itself: no name server is asked, who may be slow or lie."""


async def where(address: str) -> list[str]:
    with trio.fail_after(DEADLINE_S):
        found = await located(Multiaddr(address), trio.CapacityLimiter(LOOKUPS_MAX))
    return [str(one) for one in found]


@pytest.mark.parametrize("address", ["/ip4/203.0.113.1/tcp/4001", "/ip6/2001:db8::1/tcp/1"])
async def test_address_without_a_name_is_left_as_it_is(address):
    assert await where(address) == [address]


async def test_name_of_this_machine_is_found_without_a_name_server():
    assert "/ip4/127.0.0.1/tcp/4001" in await where("/dns/localhost/tcp/4001")
    assert await where("/dns4/localhost/tcp/4001") == ["/ip4/127.0.0.1/tcp/4001"]


async def test_name_that_no_system_knows_is_named_with_the_reason():
    with pytest.raises(ValueError, match=rf"the name {IPV4} does not resolve: [A-Z]"):
        await where(NOWHERE)


async def test_peer_is_dialled_by_name():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            (address,) = server.addresses()
            named = address.replace("/ip4/127.0.0.1/", "/dns4/localhost/")
            assert named != address
            await client.connect(server.peer_id, [named])
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await ask(stream, b"found") == b"found"


async def test_peer_whose_name_is_not_known_is_unreachable_with_that_reason():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback() as client:
            with pytest.raises(UnreachableError, match=f"the name {IPV4} does not resolve"):
                await client.connect(server.peer_id, [NOWHERE])


OUTSIDE = "/ip4/192.0.2.1/tcp/4001"
"""Whoever tells it is not alone with others on one machine."""


async def test_strangers_words_do_not_lead_into_this_machine():
    """Neither plainly, nor by a name, nor by a relay that is to be there."""
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback(announce=(OUTSIDE,)) as client:
            (plain,) = server.addresses()
            named = plain.replace("/ip4/127.0.0.1/", "/dns4/localhost/")
            relay = circuit_address(Ed25519Signer(os.urandom(32)).peer_id, named)
            for address in (plain, named, relay):
                with pytest.raises(UnreachableError, match="is not dialled because others say so"):
                    await client.connect(server.peer_id, [address])
            assert server.connected() == ()


@pytest.mark.parametrize("host", ["/ip4/127.0.0.1/", "/dns4/localhost/"])
async def test_address_that_the_user_named_is_dialled_wherever_it_leads(host):
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server:
            (plain,) = server.addresses()
            address = plain.replace("/ip4/127.0.0.1/", host)
            async with open_loopback(announce=(OUTSIDE,), named=(address,)) as client:
                await client.connect(server.peer_id, [address])
                assert client.connected() == (server.peer_id,)


async def test_further_addresses_of_a_name_wait_for_their_turn(monkeypatch):
    """Who says a name chooses how many addresses it has."""
    asked = []

    async def pace(address: str) -> bool:
        asked.append(address)
        return len(asked) < 3

    async def everywhere(*_) -> list[Multiaddr]:
        return [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}") for port in (1, 2, 3, 4)]

    monkeypatch.setattr(libp2p_dialing, "located", everywhere)
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as client:
            with pytest.raises(UnreachableError, match="too much else is being dialled"):
                await client.connect(Ed25519Signer(os.urandom(32)).peer_id, [NOWHERE], pace)
            assert asked == [NOWHERE] * 3
