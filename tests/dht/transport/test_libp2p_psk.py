"""Private swarms: who lacks the PSK learns nothing, and no proof of it can be used again."""

from contextlib import suppress
from functools import partial

import pytest
import trio

from dht.directory import KademliaDirectory
from dht.kademlia.routing import Contact
from dht.transport.libp2p_transport import TransportConfig
from protocol.errors import ConfigError, UnreachableError
from protocol.identity import Ed25519Signer
from tests.dht.loopback import DEADLINE_S, ECHO, ask, echo, only_link, open_loopback, until

OURS, THEIRS = b"o" * 32, b"t" * 32
pytestmark = pytest.mark.net


async def test_members_of_a_private_swarm_talk_by_noise_alone():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}, psk=OURS) as server,
            open_loopback(psk=OURS) as client,
        ):
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await ask(stream, b"q" * 300_000) == b"q" * 300_000
            await until(lambda: only_link(client).muxed is not None)
            session = only_link(client).muxed.secured_conn
            assert session.security == "noise"


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (OURS, THEIRS, "its PSK is not ours"),
        (OURS, None, "a private swarm has a PSK"),
        (None, OURS, "it is not in our private swarm"),
    ],
    ids=["another", "none", "one too many"],
)
async def test_whoever_has_not_the_psk_is_told_so_and_not_let_in(one, other, reason):
    with trio.fail_after(5.0):
        async with open_loopback(psk=one) as server, open_loopback(psk=other) as client:
            with pytest.raises(UnreachableError, match=reason):
                await client.connect(server.peer_id, server.addresses())
            assert server.connected() == client.connected() == ()


async def test_a_handshake_played_again_opens_nothing():
    """What a listener on the line recorded of a member is no proof for anybody else."""
    recorded = bytearray()

    async def record(port, *, task_status):
        async def relay(line):
            onward = await trio.open_tcp_stream("127.0.0.1", port)
            async with line, onward, trio.open_nursery() as nursery:

                async def back():
                    with suppress(trio.BrokenResourceError):
                        async for data in onward:
                            await line.send_all(data)

                nursery.start_soon(back)
                # Either end may reset what it disconnects from.
                with suppress(trio.BrokenResourceError):
                    async for data in line:
                        recorded.extend(data)
                        await onward.send_all(data)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_tcp, relay, 0, host="127.0.0.1")
            listeners = await nursery.start(serve)
            task_status.started(listeners[0].socket.getsockname()[1])

    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}, psk=OURS) as server,
            open_loopback(psk=OURS) as client,
            trio.open_nursery() as nursery,
        ):
            port = int(server.addresses()[0].rpartition("/")[2])
            wire = await nursery.start(record, port)
            await client.connect(server.peer_id, [f"/ip4/127.0.0.1/tcp/{wire}"])
            await ask(await client.open_stream(server.peer_id, ECHO), b"here")
            await client.disconnect(server.peer_id)
            await until(lambda: not server.connected())
            async with await trio.open_tcp_stream("127.0.0.1", port) as again:
                await again.send_all(bytes(recorded))
                answer = bytearray()
                with suppress(trio.BrokenResourceError):  # It ends when the server gives up.
                    async for data in again:
                        answer.extend(data)
            assert server.connected() == ()
            assert b"/yamux" not in answer
            assert client.peer_id not in answer
            assert server.peer_id not in answer
            nursery.cancel_scope.cancel()


async def test_directories_of_a_private_and_a_public_network_do_not_mix():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback(psk=OURS) as private,
            open_loopback() as public,
            trio.open_nursery() as nursery,
        ):
            there = KademliaDirectory(private, Ed25519Signer(b"p" * 32), lambda: 1e9)
            here = KademliaDirectory(public, Ed25519Signer(b"q" * 32), lambda: 1e9)
            await nursery.start(there.run)
            await nursery.start(here.run)
            await there.announce(b"topic", b"value", ttl_s=600.0)
            way_in = Contact(private.peer_id, private.addresses())
            assert not await here.join([way_in])
            assert await here.find(b"topic") == ()
            nursery.cancel_scope.cancel()


def test_psk_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="psk: 31 bytes instead of 32"):
        TransportConfig(psk=b"s" * 31)


def test_psk_is_in_no_repr():
    assert "sssss" not in repr(TransportConfig(psk=b"s" * 32))
