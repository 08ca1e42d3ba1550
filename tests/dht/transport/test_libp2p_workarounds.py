"""What the library still gets wrong. A test that fails here says that a workaround can go.

Each names the workaround in its docstring.
"""

import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import IncompleteReadError
from libp2p.io.trio import TrioTCPStream
from libp2p.io.utils import read_exactly
from libp2p.network.config import ConnectionConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import Yamux, YamuxStream
from libp2p.transport.tcp.tcp import _open_reuseport_listeners
from multiaddr import Multiaddr

from dht.transport import libp2p_host
from dht.transport.libp2p_host import library_id
from dht.transport.libp2p_inbound import encode_line
from dht.transport.libp2p_link import Link
from tests.dht.loopback import DEADLINE_S, MIB, open_loopback, until


class Recorder(ReadWriteCloser):
    """A connection that keeps what is written, and reads what it was given byte by byte."""

    is_initiator = True

    def __init__(self, readable=b""):
        self.written = []
        self.readable = readable

    async def write(self, data):
        self.written.append(bytes(data))

    async def read(self, _num_bytes=None):
        byte, self.readable = self.readable[:1], self.readable[1:]
        return byte

    async def close(self):
        pass

    def get_remote_address(self):
        return None


class Blocks(Recorder):
    """The same, but reads whole blocks."""

    async def read(self, num_bytes=None):
        data, self.readable = self.readable[:num_bytes], self.readable[num_bytes:]
        return data


async def test_library_sends_a_full_frame_as_two_records():
    """`NoiseSession.send`, and the reason for a muxer of our own."""
    recorder: Any = Recorder()
    stream = YamuxStream(1, Yamux(recorder, ID(b"peer")), True)
    stream.send_window = MIB
    await stream.write(bytes(MIB))
    assert max(len(frame) for frame in recorder.written) > MAX_PLAINTEXT_LENGTH


async def test_library_gives_a_stream_up_whose_window_stays_shut(autojump_clock):
    """`MuxedStream.write`, which leaves the time to its caller."""
    recorder: Any = Recorder()
    stream = YamuxStream(1, Yamux(recorder, ID(b"peer")), True)
    stream.send_window = 0
    with pytest.raises(MuxedStreamError, match="5 seconds"):
        await stream.write(b"x")


async def test_library_takes_what_is_beyond_the_window():
    """`MuxedStream.take_window`."""
    sent = struct.pack("!BBHII", 0, 1, 1, 2, 0)
    sent += struct.pack("!BBHII", 0, 0, 0, 2, 300_000) + bytes(300_000)
    recorder: Any = Blocks(sent)
    connection = Yamux(recorder, ID(b"peer"), is_initiator=True)
    await connection.handle_incoming()
    stream: Any = await connection.accept_stream()
    assert stream.recv_window == 0


async def received_after_a_cancelled_write(wrap):
    """What arrives of a large write that was cancelled, and of a small one after it."""
    near, far = socket.socketpair()
    async with (
        trio.SocketStream(trio.socket.from_stdlib_socket(near)) as near_stream,
        trio.SocketStream(trio.socket.from_stdlib_socket(far)) as far_stream,
        trio.open_nursery() as nursery,
    ):
        connection = wrap(RawConnection(TrioTCPStream(near_stream), True), nursery)
        with trio.move_on_after(0.05):
            await connection.write(b"a" * 2 * MIB)
        received = bytearray()

        async def receive():
            async for data in far_stream:
                received.extend(data)

        nursery.start_soon(receive)
        await connection.write(b"b")
        await until(lambda: received.endswith(b"b"))
        nursery.cancel_scope.cancel()
    return bytes(received)


async def test_cancelled_write_leaves_half_of_it_on_the_wire():
    """The backlog of `Link`."""
    with trio.fail_after(DEADLINE_S):
        assert len(await received_after_a_cancelled_write(lambda raw, _: raw)) < 2 * MIB


async def test_cancelled_write_of_a_link_is_finished_in_order():
    def wrap(raw, nursery):
        return Link(raw, spawn=nursery.start_soon, on_lost=lambda _: None)

    with trio.fail_after(DEADLINE_S):
        assert await received_after_a_cancelled_write(wrap) == b"a" * 2 * MIB + b"b"


async def test_line_that_is_no_utf8_is_no_negotiation_error():
    """`accept_protocol`: this error would reach the task manager and stop the host."""
    with pytest.raises(UnicodeDecodeError):
        await MultiselectCommunicator(Recorder(b"\x03\xff\xfe\n")).read()


async def test_client_of_the_library_waits_for_each_line():
    """`request_protocol`."""
    recorder = Recorder()
    communicator = MultiselectCommunicator(recorder)
    with pytest.raises(BaseLibp2pError):
        await MultiselectClient().select_one_of([TProtocol("/x/1")], communicator, 1)
    assert recorder.written == [encode_line("/multistream/1.0.0")]


async def test_hundred_short_reads_are_taken_for_the_end():
    """The loop of `Libp2pStream.receive_raw`."""
    with pytest.raises(IncompleteReadError):
        await read_exactly(Recorder(bytes(200)), 200)


def test_library_dials_peers_of_its_own_choice():
    """`_NoAutoConnector`."""
    assert ConnectionConfig().low_watermark > 0


def test_library_offers_plaintext():
    """`build_host` instead of `new_host`."""
    network = new_host().get_network()
    assert isinstance(network, Swarm)
    offered = network.upgrader.security_multistream.transports
    assert "/plaintext/2.0.0" in offered


@pytest.mark.net
async def test_two_listeners_can_have_the_same_port():
    """`reserved_port`."""
    (first,) = await _open_reuseport_listeners("127.0.0.1", 0)
    async with first:
        port = first.socket.getsockname()[1]
        (second,) = await _open_reuseport_listeners("127.0.0.1", port)
        await second.aclose()


@pytest.mark.net
async def test_place_of_a_closed_inbound_connection_is_kept(monkeypatch):
    """`_Swarm.upgrade_inbound_raw_conn`."""
    monkeypatch.setattr(
        libp2p_host._Swarm, "upgrade_inbound_raw_conn", Swarm.upgrade_inbound_raw_conn
    )
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback() as client:
            await client.connect(server.peer_id, server.addresses())
            network = server.host.get_network()
            await client.disconnect(server.peer_id)
            await until(lambda: not network.get_connections())
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert network._inbound_limiter.borrowed_tokens == 1


@pytest.mark.net
async def test_connect_of_the_library_gives_up_before_the_good_address():
    """`Libp2pTransport.connect` over `dial_addr`."""
    with trio.fail_after(DEADLINE_S):
        async with open_loopback() as server, open_loopback() as client:
            bad = [Multiaddr("/ip4/127.0.0.1/tcp/1"), Multiaddr("/ip4/127.0.0.1/tcp/2")]
            good = [Multiaddr(address) for address in server.addresses()]
            with pytest.raises(BaseLibp2pError):
                await client.host.connect(PeerInfo(library_id(server.peer_id), bad + good))


def test_library_knows_no_other_end_over_ip6():
    """If it does one day, `libp2p_link` need not ask the socket."""
    named = SimpleNamespace(getpeername=lambda: ("2001:db8::1", 4001, 0, 0))
    stream = TrioTCPStream(cast("Any", SimpleNamespace(socket=named)))
    assert stream.get_remote_address() is None
    plain = SimpleNamespace(getpeername=lambda: ("192.0.2.1", 4001))
    assert TrioTCPStream(cast("Any", SimpleNamespace(socket=plain))).get_remote_address() == (
        "192.0.2.1",
        4001,
    )
