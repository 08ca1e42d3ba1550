"""What every Transport promises: each test runs over libp2p on loopback and in memory.

The real one must not sleep, so a test waits for what it expects under a deadline that only a
failure reaches.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest
import trio
import trio.testing

from dht.transport.libp2p_transport import TransportConfig, open_transport
from protocol.errors import DecodeError, LimitError, StreamClosedError, UnreachableError
from protocol.identity import Ed25519Signer, PeerId
from protocol.transport import Stream, StreamHandler, Transport
from tests.memory_transport import MemoryNetwork

DEADLINE_S = 20.0
ECHO = "/test/echo/1"
MIB = 1024 * 1024
NOBODY = "/ip4/127.0.0.1/tcp/1"


class EventfulTransport(Transport, Protocol):
    """With the part that the node uses beside the seam."""

    def connection_events(self) -> trio.MemoryReceiveChannel[tuple[PeerId, bool]]: ...


class World(Protocol):
    """One network of a kind."""

    def open(
        self, handlers: Mapping[str, StreamHandler] | None = None
    ) -> AbstractAsyncContextManager[EventfulTransport]: ...


class Libp2pWorld:
    config = TransportConfig(listen_host="127.0.0.1")

    def open(self, handlers=None):
        return open_transport(self.config, signer_seed=os.urandom(32), handlers=handlers)


class NoiseWorld(Libp2pWorld):
    config = TransportConfig(listen_host="127.0.0.1", security="noise")


class MemoryWorld:
    def __init__(self):
        self.network = MemoryNetwork()

    def open(self, handlers=None):
        return self.network.open(signer_seed=os.urandom(32), handlers=handlers)


@pytest.fixture(
    params=[
        pytest.param(Libp2pWorld, marks=pytest.mark.net),
        pytest.param(NoiseWorld, marks=pytest.mark.net),
        MemoryWorld,
    ],
    ids=["libp2p", "noise", "memory"],
)
def world(request):
    return request.param()


async def echo(stream: Stream) -> None:
    while True:
        await stream.send_frame(await stream.receive_frame(16 * MIB))


async def test_frame_comes_back_as_sent(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert stream.peer == server.peer_id
            for frame in (b"", b"x", os.urandom(100_000), b"last"):
                await stream.send_frame(frame)
                assert await stream.receive_frame(100_000) == frame


async def test_each_address_is_dialled_at_the_pace_that_is_asked_for(world):
    asked = []

    async def pace(address: str) -> bool:
        asked.append(address)
        return len(asked) > 1

    with trio.fail_after(DEADLINE_S):
        async with world.open() as server, world.open() as client:
            (address,) = server.addresses()
            with pytest.raises(UnreachableError, match="too much else is being dialled"):
                await client.connect(server.peer_id, [address], pace)
            with pytest.raises(UnreachableError):
                await client.connect(server.peer_id, [NOBODY, f"{NOBODY}1"], pace)
            assert server.connected() == ()
            await client.connect(server.peer_id, [address], pace)
            await client.connect(server.peer_id, [address], pace)
            assert asked == [address, NOBODY, f"{NOBODY}1", address]
            assert client.connected() == (server.peer_id,)


async def test_eight_mebibytes_come_back_as_sent(world):
    sent = os.urandom(8 * MIB)

    async def send_back(stream: Stream) -> None:
        await stream.send_all(bytearray(await stream.receive_exactly(len(sent))))

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: send_back}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, memoryview(sent))
                assert await stream.receive_exactly(len(sent)) == sent


async def test_pieces_of_a_stream_are_received_in_any_sizes(world):
    async def count(stream: Stream) -> None:
        await stream.send_all(bytes(range(256)) * 1024)

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: count}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            received = b""
            for num_bytes in (0, 1, 3, 250, 65_536, 100_000, 96_354):
                received += await stream.receive_exactly(num_bytes)
            assert received == bytes(range(256)) * 1024


async def test_frame_over_the_limit_is_refused_before_its_bytes_are_read(world):
    async def boast(stream: Stream) -> None:
        await stream.send_all(b"\xff\xff\xff\xff")
        await trio.sleep_forever()

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: boast}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            with pytest.raises(LimitError, match="4294967295"):
                await stream.receive_frame(100)


async def test_what_was_sent_before_the_end_still_arrives(world):
    async def send_and_leave(stream: Stream) -> None:
        await stream.send_frame(b"x" * 1000)

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: send_and_leave}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await stream.receive_frame(1000) == b"x" * 1000
            with pytest.raises(StreamClosedError):
                await stream.receive_exactly(1)


async def test_closed_stream_refuses_and_wakes_its_own_side(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)

            async def wait_in_vain() -> None:
                with pytest.raises(StreamClosedError):
                    await stream.receive_exactly(1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_in_vain)
                await trio.testing.wait_all_tasks_blocked()
                await stream.aclose()
            await stream.aclose()
            with pytest.raises(StreamClosedError):
                await stream.send_all(b"x")
            with pytest.raises(StreamClosedError):
                await stream.receive_exactly(1)


async def test_peer_that_closes_ends_the_handler_of_the_other(world):
    ended = trio.Event()

    async def read_for_ever(stream: Stream) -> None:
        try:
            await echo(stream)
        finally:
            ended.set()

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: read_for_ever}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            await stream.aclose()
            await ended.wait()


async def test_unknown_protocol_is_unreachable(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            with pytest.raises(UnreachableError, match="/test/unknown/1"):
                await client.open_stream(server.peer_id, "/test/unknown/1")


async def test_stream_without_connection_is_unreachable(world):
    async with world.open() as client:
        with pytest.raises(UnreachableError, match="not connected"):
            await client.open_stream(Ed25519Signer(b"\1" * 32).peer_id, ECHO)


async def test_connect_goes_past_bad_addresses(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            addresses = ["nonsense", "/ip4/127.0.0.1/tcp/1", *server.addresses()]
            await client.connect(server.peer_id, addresses)
            assert client.connected() == (server.peer_id,)


async def test_connect_names_every_address_that_failed(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open() as client:
            stranger = Ed25519Signer(b"\1" * 32).peer_id
            with pytest.raises(UnreachableError) as caught:
                await client.connect(stranger, ["nonsense", "/ip4/127.0.0.1/tcp/1"])
            assert "'nonsense'" in str(caught.value)
            assert "'/ip4/127.0.0.1/tcp/1'" in str(caught.value)
            with pytest.raises(UnreachableError, match="no address"):
                await client.connect(stranger, [])


async def test_connect_refuses_another_peer_at_the_right_address(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open() as server, world.open() as client:
            stranger = Ed25519Signer(b"\1" * 32).peer_id
            with pytest.raises(UnreachableError):
                await client.connect(stranger, server.addresses())
            assert client.connected() == ()


async def test_connect_refuses_ourselves(world):
    async with world.open() as client:
        with pytest.raises(UnreachableError):
            await client.connect(client.peer_id, client.addresses())


async def test_connect_twice_at_once_makes_one_connection(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open() as server, world.open() as client:
            events = server.connection_events()
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(client.connect, server.peer_id, server.addresses())
            await client.connect(server.peer_id, [])
            assert await events.receive() == (client.peer_id, True)
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()


async def test_one_end_has_dialled_and_the_other_has_not(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            assert client.has_dialled(server.peer_id) is None
            await client.connect(server.peer_id, server.addresses())
            # The handler of a stream runs on a connection that its end counts.
            stream = await client.open_stream(server.peer_id, ECHO)
            await stream.send_frame(b"")
            assert await stream.receive_frame(1) == b""
            assert client.has_dialled(server.peer_id) is True
            assert server.has_dialled(client.peer_id) is False
            await server.disconnect(client.peer_id)
            assert server.has_dialled(client.peer_id) is None


async def test_both_ends_tell_of_a_connection_and_of_its_end(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            ours, theirs = client.connection_events(), server.connection_events()
            await client.connect(server.peer_id, server.addresses())
            assert await ours.receive() == (server.peer_id, True)
            assert await theirs.receive() == (client.peer_id, True)
            late = client.connection_events()
            assert await late.receive() == (server.peer_id, True)
            stream = await client.open_stream(server.peer_id, ECHO)
            await client.disconnect(server.peer_id)
            assert await ours.receive() == (server.peer_id, False)
            assert await theirs.receive() == (client.peer_id, False)
            assert client.connected() == server.connected() == ()
            with pytest.raises(StreamClosedError):
                await stream.receive_exactly(1)
            await client.disconnect(server.peer_id)
            await client.connect(server.peer_id, server.addresses())
            assert await ours.receive() == (server.peer_id, True)


async def test_end_of_the_transport_ends_its_streams_and_events(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server:
            theirs = server.connection_events()
            async with world.open() as client:
                ours = client.connection_events()
                await client.connect(server.peer_id, server.addresses())
                stream = await client.open_stream(server.peer_id, ECHO)
            with pytest.raises(StreamClosedError):
                await stream.receive_exactly(1)
            assert [event async for event in ours] == [
                (server.peer_id, True),
                (server.peer_id, False),
            ]
            assert await theirs.receive() == (client.peer_id, True)
            assert await theirs.receive() == (client.peer_id, False)


async def test_traffic_counts_payload_of_both_ends(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert client.traffic() == server.traffic() == (0, 0)
            await stream.send_frame(b"x" * 96)
            await stream.receive_frame(96)
            assert client.traffic() == server.traffic() == (100, 100)


@pytest.mark.parametrize("error", [DecodeError("bad"), UnreachableError("gone")])
async def test_error_of_a_handler_ends_its_stream_only(world, error):
    async def fail(stream: Stream) -> None:
        async with trio.open_nursery():
            raise error

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo, "/test/fail/1": fail}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            good = await client.open_stream(server.peer_id, ECHO)
            bad = await client.open_stream(server.peer_id, "/test/fail/1")
            with pytest.raises(StreamClosedError):
                await bad.receive_exactly(1)
            await good.send_frame(b"alive")
            assert await good.receive_frame(5) == b"alive"


async def test_bug_in_a_handler_comes_out_of_its_transport(world):
    async def stumble(stream: Stream) -> None:
        raise KeyError("bug")

    with trio.fail_after(DEADLINE_S):
        with pytest.RaisesGroup(KeyError, allow_unwrapped=True, flatten_subgroups=True):
            async with world.open({ECHO: stumble}) as server, world.open() as client:
                await client.connect(server.peer_id, server.addresses())
                await client.open_stream(server.peer_id, ECHO)
                await trio.sleep_forever()


async def test_handler_can_be_added_while_running(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open() as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            server.serve(ECHO, echo)
            stream = await client.open_stream(server.peer_id, ECHO)
            await stream.send_frame(b"hello")
            assert await stream.receive_frame(5) == b"hello"


async def test_handler_finds_its_peer_connected(world):
    async def say_who_is_there(stream: Stream) -> None:
        await stream.send_frame(b"".join(server.connected()))

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: say_who_is_there}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await stream.receive_frame(32) == client.peer_id


async def test_many_streams_run_beside_each_other(world):
    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: echo}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())

            async def ask(number: int) -> None:
                stream = await client.open_stream(server.peer_id, ECHO)
                await stream.send_frame(b"%d" % number)
                assert await stream.receive_frame(10) == b"%d" % number
                await stream.aclose()

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(ask, number)
