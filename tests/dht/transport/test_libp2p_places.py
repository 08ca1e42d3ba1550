"""A node whose connections somebody wants to use up: whom it still lets in, and what it tells."""

from contextlib import AsyncExitStack

import pytest
import trio

from dht.reaching.inbound_places import KNOCKING_MIN, STREAMLESS_S, WAITING_MAX
from dht.transport.libp2p_transport import Libp2pTransport
from protocol.errors import PeerFullError, SwarmKeyError
from tests.dht.loopback import DEADLINE_S, ECHO, SILENCE, echo, open_loopback, silence, until

MAX = 10
HELLO = b"\x13/multistream/1.0.0\n"


async def hold_open(port: int, first: bytes) -> None:
    """Connect, say a few words or none, and come again as soon as that is cut off."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(first)
                while await stream.receive_some(1000):
                    pass
        except (OSError, trio.BrokenResourceError):
            await trio.lowlevel.checkpoint()


def port_of(transport) -> int:
    return int(transport.addresses()[0].rpartition("/")[2])


async def test_half_open_connections_from_the_same_host_keep_nobody_out():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}, connections_max=MAX) as server,
            open_loopback() as client,
            trio.open_nursery() as nursery,
        ):
            for number in range(2 * KNOCKING_MIN):
                nursery.start_soon(hold_open, port_of(server), HELLO if number % 2 else b"")
            await until(lambda: len(server._door.places) >= 2 * KNOCKING_MIN)
            await client.connect(server.peer_id, server.addresses())
            await client.open_stream(server.peer_id, ECHO)
            nursery.cancel_scope.cancel()


async def visit(one, server) -> None:
    """Connect, and have a stream."""
    await one.connect(server.peer_id, server.addresses())
    await one.open_stream(server.peer_id, ECHO)


async def sit(stack: AsyncExitStack, server, num: int, *, opens: str = "") -> list[Libp2pTransport]:
    """So many strangers that are connected, each with a stream of that protocol if it is named."""
    strangers = []
    for _ in range(num):
        one = await stack.enter_async_context(open_loopback())
        await one.connect(server.peer_id, server.addresses())
        if opens:
            await one.open_stream(server.peer_id, opens)
        strangers.append(one)
    return strangers


async def test_strangers_that_say_nothing_make_room_and_the_full_node_dials_out():
    with trio.fail_after(2 * DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}, connections_max=MAX) as server,
            AsyncExitStack() as stack,
        ):
            await sit(stack, server, MAX)
            assert len(server.connected()) == server._door.places.num_proven_max
            (late,) = await sit(stack, server, 1, opens=ECHO)
            assert late.connected() == (server.peer_id,)
            other = await stack.enter_async_context(open_loopback())
            await server.connect(other.peer_id, other.addresses())


async def test_who_finds_no_place_is_told_that_it_is_full_and_a_member_finds_one():
    with trio.fail_after(2 * DEADLINE_S):
        async with (
            open_loopback({ECHO: echo, SILENCE: silence}, connections_max=MAX) as server,
            AsyncExitStack() as stack,
        ):
            num = server._door.places.num_proven_max
            strangers = await sit(stack, server, num, opens=SILENCE)
            member = await stack.enter_async_context(open_loopback())
            with pytest.raises(PeerFullError, match="try again later") as caught:
                await visit(member, server)
            assert not isinstance(caught.value, SwarmKeyError)
            server.keep_places_for(lambda: {member.peer_id})
            await visit(member, server)
            # A stranger went for it, and the others stayed.
            await until(lambda: sum(bool(one.connected()) for one in strangers) == num - 1)


async def test_who_is_turned_away_before_its_handshake_is_told_why():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback(connections_max=MAX) as server,
            open_loopback() as client,
            trio.open_nursery() as nursery,
        ):
            num = KNOCKING_MIN + WAITING_MAX
            for _ in range(num):
                nursery.start_soon(hold_open, port_of(server), b"")
            await until(lambda: len(server._door.places) >= num)
            with pytest.raises(PeerFullError, match="try again later"):
                await client.connect(server.peer_id, server.addresses())
            nursery.cancel_scope.cancel()


async def test_places_of_strangers_without_a_stream_are_free_again_after_a_while(monkeypatch):
    monkeypatch.setattr("dht.reaching.inbound_places.STREAMLESS_S", STREAMLESS_S / 20)
    monkeypatch.setattr("dht.transport.libp2p_knocking.SWEEP_S", 0.1)
    with trio.fail_after(2 * DEADLINE_S):
        async with (
            open_loopback({SILENCE: silence}, connections_max=MAX) as server,
            AsyncExitStack() as stack,
        ):
            (busy,) = await sit(stack, server, 1, opens=SILENCE)
            await sit(stack, server, 6)
            await until(lambda: len(server.connected()) <= server._door.places.num_proven_max // 2)
            assert busy.peer_id in server.connected()


async def test_places_of_closed_connections_are_given_back():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}, connections_max=2) as server,
            open_loopback() as client,
        ):
            for _ in range(6):
                await client.connect(server.peer_id, server.addresses())
                await client.open_stream(server.peer_id, ECHO)
                await client.disconnect(server.peer_id)
            await until(lambda: len(server._door.places) == 0)
            assert not server._door._cutters
