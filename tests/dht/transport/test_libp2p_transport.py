"""The libp2p transport where it can fail: frozen, killed and silent peers, cancelled callers."""

import contextlib
import signal
import socket

import pytest
import trio
import trio.testing

from protocol.errors import StreamClosedError, UnreachableError
from tests.dht.loopback import (
    DEADLINE_S,
    ECHO,
    MIB,
    SILENCE,
    ask,
    child_peer,
    echo,
    only_link,
    open_loopback,
    open_wire,
    silence,
    until,
)

pytestmark = pytest.mark.net


async def test_vanished_connection_is_told_at_once_and_ends_its_streams():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            await ask(stream, b"here")
            events = client.connection_events()
            assert await events.receive() == (server.peer_id, True)
            only_link(server).lose("pulled")
            with trio.fail_after(0.5):
                assert await events.receive() == (server.peer_id, False)
                with pytest.raises(StreamClosedError):
                    await stream.receive_exactly(1)
            with pytest.raises(StreamClosedError):
                await stream.send_all(bytes(MIB))
            with pytest.raises(UnreachableError, match="not connected"):
                await client.open_stream(server.peer_id, ECHO)


async def test_cancelled_send_leaves_the_other_streams_alive():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo, SILENCE: silence}) as server,
            open_loopback() as client,
            open_wire(server.addresses()[0]) as (wire, address),
        ):
            await client.connect(server.peer_id, [address])
            good = await client.open_stream(server.peer_id, ECHO)
            bulk = [await client.open_stream(server.peer_id, SILENCE) for _ in range(40)]
            await ask(good, b"before")
            wire.hold()
            # More than the sockets on the way can hold, and less than the windows allow.
            with trio.move_on_after(0.5) as scope:
                async with trio.open_nursery() as nursery:
                    for stream in bulk:
                        nursery.start_soon(stream.send_all, bytes(250_000))
            assert scope.cancelled_caught
            assert only_link(client)._backlog
            for stream in bulk:
                await stream.aclose()
            wire.release()
            assert await ask(good, b"after") == b"after"


async def test_frozen_peer_delays_neither_streams_nor_goodbyes():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo, SILENCE: silence}) as server,
            open_loopback(stream_timeout_s=1.0) as client,
            open_wire(server.addresses()[0]) as (wire, address),
            trio.open_nursery() as nursery,
        ):
            await client.connect(server.peer_id, [address])
            bulk = [await client.open_stream(server.peer_id, SILENCE) for _ in range(40)]
            wire.hold()

            async def send_in_vain(stream):
                with contextlib.suppress(StreamClosedError):
                    await stream.send_all(bytes(250_000))
                with pytest.raises(StreamClosedError):
                    await stream.receive_exactly(1)

            for stream in bulk:
                nursery.start_soon(send_in_vain, stream)
            with pytest.raises(UnreachableError, match="no answer in time"):
                await client.open_stream(server.peer_id, ECHO)
            assert client.connected() == (server.peer_id,)
            with trio.fail_after(1):
                await bulk[0].aclose()
                await client.disconnect(server.peer_id)
            assert client.connected() == ()
            wire.release()


async def test_transport_with_a_frozen_peer_closes_within_a_second():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({SILENCE: silence}) as server,
            open_wire(server.addresses()[0]) as (wire, address),
        ):
            async with open_loopback() as client:
                await client.connect(server.peer_id, [address])
                stream = await client.open_stream(server.peer_id, SILENCE)
                wire.hold()
                with trio.move_on_after(0.2):
                    await stream.send_all(bytes(16 * MIB))
                started_s = trio.current_time()
            assert trio.current_time() - started_s < 1
            wire.release()


async def test_end_of_a_transport_leaves_no_task_and_no_socket_behind():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server:
            before = trio.lowlevel.current_statistics()
            for _ in range(2):
                async with open_loopback() as client:
                    await client.connect(server.peer_id, server.addresses())
                    await ask(await client.open_stream(server.peer_id, ECHO), b"hello")
                    await client.open_stream(server.peer_id, ECHO)
                await until(lambda: not server.host.get_network().get_connections())
            await until(
                lambda: trio.lowlevel.current_statistics().tasks_living <= before.tasks_living
            )
            after = trio.lowlevel.current_statistics()
            assert after.io_statistics.tasks_waiting_read == before.io_statistics.tasks_waiting_read


async def test_addresses_that_swallow_packets_do_not_hold_up_the_good_one():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback() as server,
            open_loopback() as client,
            open_wire(server.addresses()[0]) as (wire, address),
        ):
            wire.hold()
            with trio.fail_after(3):
                await client.connect(server.peer_id, [address, *server.addresses()])
            wire.release()


async def test_silent_address_is_given_up_after_its_time():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback() as server,
            open_loopback(dial_timeout_s=0.1) as client,
            open_wire(server.addresses()[0]) as (wire, address),
        ):
            wire.hold()
            with pytest.raises(UnreachableError, match=f"{address}': no answer within 0.1 s"):
                await client.connect(server.peer_id, [address])
            wire.release()


async def test_place_of_a_closed_inbound_connection_is_given_back():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback(connections_max=2) as server, open_loopback() as client:
            for _ in range(4):
                await client.connect(server.peer_id, server.addresses())
                await client.disconnect(server.peer_id)
            limiter = server.host.get_network()._inbound_limiter
            await until(lambda: limiter.borrowed_tokens == 0)


async def test_streams_closed_by_both_ends_leave_nothing_behind():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            await until(lambda: only_link(client).muxed is not None)
            for _ in range(10):
                stream = await client.open_stream(server.peer_id, ECHO)
                await stream.send_frame(b"unread")
                await stream.aclose()
            for end in (client, server):
                await until(lambda end=end: not only_link(end).muxed.streams)
                assert only_link(end).num_inbound == 0


async def test_cancelled_opening_gives_its_place_back():
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo, SILENCE: silence}) as server,
            open_loopback() as client,
            open_wire(server.addresses()[0]) as (wire, address),
        ):
            await client.connect(server.peer_id, [address])
            bulk = [await client.open_stream(server.peer_id, SILENCE) for _ in range(40)]
            wire.hold()
            async with trio.open_nursery() as nursery:
                for stream in bulk:
                    nursery.start_soon(stream.send_all, bytes(250_000))
                await trio.testing.wait_all_tasks_blocked(0.1)
                for _ in range(10):
                    with trio.move_on_after(0.01):
                        await client.open_stream(server.peer_id, ECHO)
                nursery.cancel_scope.cancel()
            for stream in bulk:
                await stream.aclose()
            wire.release()
            # The silent ones stay until they linger no more; all others are gone.
            await until(lambda: len(only_link(client).muxed.streams) <= len(bulk))
            only_link(server).lose("so that the silent ones need not be waited for")


async def test_callers_that_connect_at_once_share_one_connection():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback() as client:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(client.connect, server.peer_id, server.addresses())
            assert len(client._links.of(server.peer_id)) == 1


async def test_peers_that_dial_each_other_at_once_stay_connected_when_one_dial_ends():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as one, open_loopback() as two:
            for _ in range(3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(one.connect, two.peer_id, two.addresses())
                    nursery.start_soon(two.connect, one.peer_id, one.addresses())
                events = two.connection_events()
                assert await events.receive() == (one.peer_id, True)
                stream = await two.open_stream(one.peer_id, ECHO)
                assert await ask(stream, b"hello") == b"hello"
                links = two._links.of(one.peer_id)
                for number, link in enumerate(links):
                    with pytest.raises(trio.WouldBlock):
                        events.receive_nowait()
                    link.lose("pulled")
                    assert (one.peer_id in two.connected()) == (number + 1 < len(links))
                assert await events.receive() == (one.peer_id, False)
                await until(lambda: not one.connected())


BULK = "/test/bulk/1"


def lanes(transport, peer):
    """How many streams each connection to a peer carries, the oldest connection first."""
    return [len(link.muxed.streams) for link in transport._links.of(peer)]


@pytest.mark.parametrize("opener", ["client", "server"])
async def test_bulk_streams_have_a_connection_of_their_own_whoever_opens_them(opener):
    protocols = frozenset({BULK})
    handlers = {BULK: silence, ECHO: echo}
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback(handlers, bulk_protocols=protocols) as server,
            open_loopback(handlers, bulk_protocols=protocols) as client,
        ):
            await client.connect(server.peer_id, server.addresses())
            await until(lambda: client.peer_id in server.connected())
            one, other = (client, server) if opener == "client" else (server, client)
            control = await one.open_stream(other.peer_id, ECHO)
            first = await one.open_stream(other.peer_id, BULK)
            await until(lambda: len(one._links.of(other.peer_id)) == 2)
            await until(lambda: len(other._links.of(one.peer_id)) == 2)
            await first.aclose()
            await one.open_stream(other.peer_id, BULK)
            before = lanes(one, other.peer_id)[0]
            await other.open_stream(one.peer_id, BULK)
            assert lanes(one, other.peer_id)[0] == before
            assert lanes(one, other.peer_id)[1] >= 2
            events = one.connection_events()
            assert await events.receive() == (other.peer_id, True)
            one._links.of(other.peer_id)[1].lose("pulled")
            assert await ask(control, b"alive") == b"alive"
            with pytest.raises(trio.WouldBlock):
                events.receive_nowait()
            await one.disconnect(other.peer_id)
            assert one.connected() == ()


async def test_peer_that_is_left_while_a_second_connection_is_dialled_stays_left():
    async def open_it(client, peer):
        with contextlib.suppress(UnreachableError):
            await client.open_stream(peer, ECHO)

    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({ECHO: echo}) as server,
            open_loopback(bulk_protocols=frozenset({ECHO})) as client,
            open_wire(server.addresses()[0]) as (wire, address),
            trio.open_nursery() as nursery,
        ):
            await client.connect(server.peer_id, [address])
            wire.hold()
            nursery.start_soon(open_it, client, server.peer_id)
            await until(lambda: client._dialer._seconds)
            await client.disconnect(server.peer_id)
            wire.release()
            await until(lambda: not client._dialer._seconds)
            assert client.connected() == ()


async def test_peer_that_takes_no_second_connection_gets_bulk_on_the_first():
    with trio.fail_after(DEADLINE_S), socket.create_server(("127.0.0.1", 0)) as deaf:
        async with (
            open_loopback({ECHO: echo}) as server,
            open_loopback(bulk_protocols=frozenset({ECHO}), dial_timeout_s=0.5) as client,
            open_wire(server.addresses()[0]) as (wire, address),
        ):
            await client.connect(server.peer_id, [address])
            wire.port = deaf.getsockname()[1]
            for _ in range(2):
                stream = await client.open_stream(server.peer_id, ECHO)
                assert await ask(stream, b"hello") == b"hello"
            assert only_link(client).has_no_second


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
async def test_killed_process_is_told_within_half_a_second():
    with trio.fail_after(DEADLINE_S), child_peer() as (process, peer, addresses):
        async with open_loopback() as client:
            await client.connect(peer, addresses)
            stream = await client.open_stream(peer, ECHO)
            await ask(stream, b"here")
            events = client.connection_events()
            assert await events.receive() == (peer, True)
            process.kill()
            with trio.fail_after(0.5):
                assert await events.receive() == (peer, False)
                with pytest.raises(StreamClosedError):
                    await stream.receive_exactly(1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs POSIX signals")
async def test_transport_leaves_a_stopped_process_within_a_second():
    with trio.fail_after(DEADLINE_S), child_peer() as (process, peer, addresses):
        async with open_loopback() as client:
            await client.connect(peer, addresses)
            stream = await client.open_stream(peer, SILENCE)
            process.send_signal(signal.SIGSTOP)
            with trio.move_on_after(0.2):
                await stream.send_all(bytes(64 * MIB))
            assert client.connected() == (peer,)
            started_s = trio.current_time()
        assert trio.current_time() - started_s < 1
