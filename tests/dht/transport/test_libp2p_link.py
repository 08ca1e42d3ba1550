"""A link takes few steps of the loop for many bytes, and never keeps the loop for itself."""

import errno
import socket
import sys

import pytest
import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from trio.testing import wait_all_tasks_blocked

from dht.transport.libp2p_link import UNYIELDED_BYTES_MAX, Link, Links
from protocol.limits import KIB, MIB
from tests.dht.loopback import DEADLINE_S, until

pytestmark = pytest.mark.net


class Ends:
    """A link over TCP on this machine, and the socket at its other end."""

    def __init__(self, nursery):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            self.far, _ = listener.accept()
        self.near = trio.SocketStream(trio.socket.from_stdlib_socket(near))
        raw = RawConnection(TrioTCPStream(self.near), True)
        self.link = Link(raw, spawn=nursery.start_soon, on_lost=lambda _: None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.link.lose("the test is over")
        self.far.close()


async def test_writer_of_many_records_lets_others_go_on_while_the_system_takes_them():
    steps = 0

    async def count():
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                nursery.start_soon(count)
                for _ in range(1000):
                    await ends.link.write(b"record")
                nursery.cancel_scope.cancel()
    assert 1000 * 16 * KIB // UNYIELDED_BYTES_MAX - 2 <= steps < 500


async def test_end_of_a_peer_is_told_behind_its_last_bytes():
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                ends.far.sendall(b"of much")
                ends.far.shutdown(socket.SHUT_WR)
                assert bytes(await ends.link.arrived()) == b"of much"
                with pytest.raises(ConnectionClosedError, match="closed by the other end"):
                    await ends.link.arrived()


async def test_link_that_is_lost_wakes_its_reader_and_its_writer():
    async def read(link):
        with pytest.raises(ConnectionClosedError, match="pulled"):
            await link.arrived()

    async def write(link):
        with pytest.raises(ConnectionClosedError, match="pulled"):
            await link.write(bytes(64 * MIB))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                nursery.start_soon(read, ends.link)
                nursery.start_soon(write, ends.link)
                await wait_all_tasks_blocked(0.05)
                ends.link.lose("pulled")


async def hurry(ends):
    """Have the link see a fast line, and not where this process had to wait for its turn."""
    num_reads = 0
    while num_reads < 20 or ends.link._soon_bytes < 256 * KIB:
        ends.far.sendall(bytes(64 * KIB))
        left = 64 * KIB
        while left:
            left -= len(await ends.link.arrived())
            num_reads += 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every byte wakes the reader")
async def test_reader_is_woken_once_for_what_is_due_on_a_fast_line():
    found: list[int] = []

    async def read(link):
        found.append(len(await link.arrived(256 * KIB)))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                await hurry(ends)
                nursery.start_soon(read, ends.link)
                for _ in range(3):
                    ends.far.sendall(bytes(64 * KIB))
                    await wait_all_tasks_blocked(0.02)
                assert not found
                ends.far.sendall(bytes(64 * KIB))
                await wait_all_tasks_blocked(0.02)
                assert found == [256 * KIB]
                # Of which nothing is due wakes it at the first byte, as ever.
                ends.far.sendall(b"x")
                assert bytes(await ends.link.arrived()) == b"x"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every byte wakes the reader")
async def test_reader_of_a_line_that_has_become_slow_is_woken_for_what_is_here():
    found: list[int] = []

    async def read(link):
        while True:
            found.append(len(await link.arrived(256 * KIB)))

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                links = Links(nursery.start_soon)
                link = links.open(ends.link._raw)
                ends.link = link
                await hurry(ends)
                nursery.start_soon(links.keep_awake)
                await wait_all_tasks_blocked(0.02)
                ends.far.sendall(bytes(16 * KIB))
                nursery.start_soon(read, link)
                await wait_all_tasks_blocked(0.02)
                assert not found
                await until(lambda: bool(found))
                assert found == [16 * KIB]
                # Nobody waits for more any longer: nothing looks.
                await until(lambda: not links._patient.is_set())
                # And from now on for every byte.
                ends.far.sendall(b"x")
                await wait_all_tasks_blocked(0.02)
                assert found == [16 * KIB, 1]
                nursery.cancel_scope.cancel()


async def test_system_that_cannot_wake_later_is_asked_no_more(monkeypatch):
    def refuse(_socket, *_):
        raise OSError(errno.ENOPROTOOPT, "Protocol not available")

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                await hurry(ends)
                monkeypatch.setattr(type(ends.near.socket), "setsockopt", refuse)
                for _ in range(2):
                    ends.far.sendall(b"here")
                    assert bytes(await ends.link.arrived(256 * KIB)) == b"here"


async def test_reader_on_a_slow_line_is_woken_for_each_byte():
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                await hurry(ends)
                # 16 KiB in a tenth of a second: of which 64 KiB take longer than it waits.
                await wait_all_tasks_blocked(0.1)
                ends.far.sendall(bytes(16 * KIB))
                assert len(await ends.link.arrived()) == 16 * KIB
                ends.far.sendall(b"c")
                assert bytes(await ends.link.arrived(256 * KIB)) == b"c"


async def test_reader_who_waits_for_more_is_told_of_the_end():
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            with Ends(nursery) as ends:
                await hurry(ends)
                ends.far.sendall(b"of much")
                ends.far.close()
                assert bytes(await ends.link.arrived(256 * KIB)) == b"of much"
                with pytest.raises(ConnectionClosedError, match="closed by the other end"):
                    await ends.link.arrived(256 * KIB)
