"""A hostile peer over libp2p gets itself cut off, and nobody else."""

import contextlib

import pytest
import trio
import trio.testing
from libp2p.exceptions import BaseLibp2pError

from dht.transport import libp2p_stream, libp2p_yamux
from dht.transport.libp2p_inbound import encode_line
from dht.transport.libp2p_yamux import WINDOW_BYTES_START
from protocol.errors import StreamClosedError, UnreachableError
from tests.dht.loopback import (
    DEADLINE_S,
    ECHO,
    MIB,
    SILENCE,
    ask,
    echo,
    only_link,
    open_loopback,
    open_wire,
    silence,
    until,
)

pytestmark = pytest.mark.net


async def test_peer_that_never_closes_its_side_is_cut_off(monkeypatch):
    monkeypatch.setattr(libp2p_stream, "LINGER_S_MAX", 0.05)
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({SILENCE: silence}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, SILENCE)
            await stream.aclose()
            await until(lambda: not only_link(client).muxed.streams)


async def test_inbound_streams_of_a_peer_are_capped(monkeypatch):
    monkeypatch.setattr(libp2p_yamux, "INBOUND_STREAMS_MAX", 3)
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({SILENCE: silence}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            await until(lambda: only_link(server).num_inbound == 0)
            for _ in range(3):
                await client.open_stream(server.peer_id, SILENCE)
            with pytest.raises(UnreachableError):
                await client.open_stream(server.peer_id, SILENCE)


async def test_peer_that_ignores_its_window_is_cut_off():
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({SILENCE: silence}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, SILENCE)
            stream._net.muxed_stream.send_window = 1 << 40
            with pytest.raises(StreamClosedError):
                await stream.send_all(bytes(64 * MIB))
            assert server.connected() == ()


TAKE, TRICKLE = "/test/take/1", "/test/trickle/1"
TAKEN_BYTES = 8 * MIB


async def take(stream):
    """Reads it all, and says so."""
    await stream.receive_exactly(TAKEN_BYTES)
    await stream.send_all(b"!")


async def trickle(stream):
    """Reads one byte, and the next one after the test."""
    await stream.receive_exactly(1)
    await trio.sleep_forever()


async def lie(muxed):
    """Announces more than it may send, on a stream that it opens."""
    stream = await muxed.open_stream()
    muxed.post(libp2p_yamux.DATA, 0, stream.stream_id, 1 << 31)


async def write_garbage(muxed):
    """Bytes that no cipher has seen."""
    await muxed.secured_conn.link.write(bytes(range(256)) * 100)


@pytest.mark.parametrize("wrong", [lie, write_garbage])
async def test_peer_that_lies_or_sends_garbage_costs_only_itself(wrong):
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({TAKE: take}) as server,
            open_loopback() as hostile,
            open_loopback() as honest,
        ):
            for client in (hostile, honest):
                await client.connect(server.peer_id, server.addresses())
            stream = await honest.open_stream(server.peer_id, TAKE)
            await stream.send_all(bytes(TAKEN_BYTES // 2))
            await until(lambda: only_link(hostile).muxed is not None)
            await wrong(only_link(hostile).muxed)
            await until(lambda: server.connected() == (honest.peer_id,))
            await stream.send_all(bytes(TAKEN_BYTES // 2))
            assert await stream.receive_exactly(1) == b"!"


@pytest.mark.parametrize("is_frozen", [False, True], ids=["one byte", "frozen"])
async def test_peer_that_takes_nothing_holds_up_nobody_else(is_frozen):
    """Neither other streams to it nor other peers; and it is sent no more than a window."""
    with trio.fail_after(DEADLINE_S):
        async with (
            open_loopback({TRICKLE: trickle, TAKE: take}) as slow,
            open_loopback({TAKE: take}) as other,
            open_loopback() as client,
            open_wire(slow.addresses()[0]) as (wire, address),
            trio.open_nursery() as nursery,
        ):
            await client.connect(slow.peer_id, [address])
            await client.connect(other.peer_id, other.addresses())
            stuck = await client.open_stream(slow.peer_id, TRICKLE)
            if is_frozen:
                wire.hold()
            nursery.start_soon(stuck.send_all, bytes(64 * MIB))
            await trio.testing.wait_all_tasks_blocked(0.05)
            for peer in (other.peer_id, *(() if is_frozen else (slow.peer_id,))):
                stream = await client.open_stream(peer, TAKE)
                await stream.send_all(bytes(TAKEN_BYTES))
                assert await stream.receive_exactly(1) == b"!"
            unread = sum(
                one.num_buffered
                for link in slow._links.everything()
                for one in (link.muxed.streams.values() if link.muxed else ())
            )
            assert unread <= WINDOW_BYTES_START
            assert client.traffic()[0] < 32 * MIB
            nursery.cancel_scope.cancel()
            wire.release()


HELLO = encode_line("/multistream/1.0.0")
HOSTILE = {
    "not UTF-8": HELLO + b"\x03\xff\xfe\n",
    "no line end": HELLO + b"\x03abc",
    "endless line": HELLO + b"\xff\xff\xff\xff\xff\xff",
    "empty line": HELLO + b"\x00",
    "no hello": encode_line("/http/1.1"),
    "always another": HELLO + encode_line("/x") * 20,
    "too early for the library": HELLO + encode_line("/ipfs/ping/1.0.0") + b"x",
    "junk to identify push": HELLO + encode_line("/ipfs/id/push/1.0.0"),
    "half a ping": HELLO + encode_line("/ipfs/ping/1.0.0"),
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_stream_does_not_stop_the_host(sent):
    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            connection = client._connection(server.peer_id)
            raw = await connection.new_stream()
            await raw.write(sent)
            with contextlib.suppress(BaseLibp2pError):  # it may have been reset by then
                if b"/ipfs/" in sent:
                    await raw.read(len(sent))
                    await raw.write(b"\xff" * 40)
                await raw.close()
            good = await client.open_stream(server.peer_id, ECHO)
            assert await ask(good, b"alive") == b"alive"
            await until(lambda: only_link(server).num_inbound == 1)
            assert server.connected() == (client.peer_id,)


async def test_failing_handler_of_the_library_does_not_stop_the_host():
    async def stumble(_stream):
        raise ValueError("bytes that it did not expect")

    with trio.fail_after(DEADLINE_S):
        async with open_loopback({ECHO: echo}) as server, open_loopback() as client:
            server.host.set_stream_handler("/library/1", stumble)
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, "/library/1")
            with pytest.raises(StreamClosedError):
                await stream.receive_exactly(1)
            good = await client.open_stream(server.peer_id, ECHO)
            assert await ask(good, b"alive") == b"alive"
