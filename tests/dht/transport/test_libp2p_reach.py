"""Being dialled back over libp2p on loopback: who answers, and what is told then."""

import os

import pytest
import trio
from psutil import net_if_addrs

from dht.reaching.dial_back import Answered, Silent
from dht.transport.libp2p_transport import TransportConfig, open_transport
from protocol.errors import ConfigError
from protocol.identity import PeerId
from tests.dht.loopback import DEADLINE_S, ECHO, ask, echo, open_loopback, silence, until

OUTSIDE = "/ip4/198.51.100.7/tcp/4001"


@pytest.mark.net
async def test_only_the_peer_itself_is_found_at_its_address():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as near, open_loopback({ECHO: echo}) as far:
            (address,) = far.addresses()
            knock = near.reach._knock
            assert await knock(far.peer_id, address)
            assert not await knock(PeerId(bytes(32)), address)
            assert not await knock(near.peer_id, address)
            # It leaves no connection, and harms none that there is.
            assert far.connected() == near.connected() == ()
            await near.connect(far.peer_id, (address,))
            assert await knock(far.peer_id, address)
            stream = await near.open_stream(far.peer_id, ECHO)
            assert await ask(stream, b"hello") == b"hello"
            await until(lambda: len(far._links.of(near.peer_id)) == 1)


@pytest.mark.net
async def test_closed_and_silent_ports_are_no_answer():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as near, trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, silence, 0)
            port = listeners[0].socket.getsockname()[1]
            found = True
            with trio.move_on_after(0.5):
                found = await near.reach._knock(PeerId(bytes(32)), f"/ip4/127.0.0.1/tcp/{port}")
            nursery.cancel_scope.cancel()
        async with open_loopback() as near:
            assert not await near.reach._knock(PeerId(bytes(32)), f"/ip4/127.0.0.1/tcp/{port}")
    assert found  # It waited: the server gives it KNOCK_S.


def test_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ConfigError, match="there is no eth99; there are"):
        TransportConfig(interface="eth99")


@pytest.mark.net
async def test_addresses_of_one_interface_alone_are_told():
    loopback = next(name for name in net_if_addrs() if name.startswith(("lo", "Loopback")))
    config = TransportConfig(listen_host="0.0.0.0", interface=loopback)
    with trio.fail_after(DEADLINE_S):
        async with open_transport(config, signer_seed=os.urandom(32)) as node:
            assert [one.split("/")[2] for one in node.addresses()] == ["127.0.0.1"]


@pytest.mark.net
async def test_what_others_found_decides_what_is_told():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as node:
            reach, votes = node.reach, node.reach.dial_back.votes
            (own,) = node.addresses()
            assert reach.needs_relay()  # Loopback is nowhere public.
            assert not reach.is_proved()
            votes.heard(Answered(OUTSIDE), "a", 4001, trio.current_time())
            assert node.addresses() == (own, OUTSIDE)
            assert reach.is_proved()
            assert not reach.needs_relay()
            votes.heard(Silent(OUTSIDE), "a", 4001, trio.current_time())
            assert node.addresses() == (own,)
            assert reach.needs_relay()


@pytest.mark.net
async def test_addresses_that_a_user_announces_are_told_alone_whatever_others_found():
    announced = "/ip4/203.0.113.9/tcp/4002"
    with trio.fail_after(DEADLINE_S):
        async with open_loopback(announce=(announced,)) as node:
            votes = node.reach.dial_back.votes
            votes.heard(Answered(OUTSIDE), "a", 4001, trio.current_time())
            for network in "abcde":
                votes.heard(Silent(announced), network, 4002, trio.current_time())
            assert node.addresses() == (announced,)
            assert not node.reach.needs_relay()


@pytest.mark.net
async def test_change_of_the_network_forgets_what_was_found_and_is_told():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as node, trio.open_nursery() as nursery:
            reach = node.reach
            nursery.start_soon(reach.run)
            reach.dial_back.votes.heard(Answered(OUTSIDE), "a", 4001, trio.current_time())
            # As if it had looked before the machine was carried elsewhere.
            reach._own = ("/ip4/10.9.9.9/tcp/4001",)
            await reach.changed()
            assert OUTSIDE not in node.addresses()
            assert "/ip4/10.9.9.9/tcp/4001" not in node.addresses()
            nursery.cancel_scope.cancel()
