"""mDNS over real multicast on loopback: nodes find each other; what a listener hears of them."""

import os
import socket
import struct
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from zeroconf._protocol.incoming import DNSIncoming

from dht.reaching import lan
from dht.reaching.lan import Lan, LanPeer, Told, run_tag
from protocol.identity import Ed25519Signer, peer_id_text

pytestmark = [pytest.mark.slow, pytest.mark.net]

GROUP, PORT = "224.0.0.251", 5353
WITHIN_S = 20.0
LOOPBACK = "127.0.0.1"


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Another machine of the network, so to speak: hears what is told to all."""
    # Loopback stands for the network, which is left out otherwise.
    monkeypatch.setattr(lan, "here", lambda: (LOOPBACK,))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            one.bind(("", PORT))
            group = struct.pack("4s4s", socket.inet_aton(GROUP), socket.inet_aton(LOOPBACK))
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
            one.sendto(b"probe", (GROUP, PORT))
            one.settimeout(2.0)
            while one.recv(9000) != b"probe":
                pass
        except OSError as error:
            pytest.skip(f"no multicast on loopback here: {error}")
        one.setblocking(False)
        yield one


class Member:
    """One node that tells and hears."""

    def __init__(self, run: bytes, port: int) -> None:
        self.peer = Ed25519Signer(os.urandom(32)).peer_id
        self.address = f"/ip4/{LOOPBACK}/tcp/{port}"
        self.heard: dict[bytes, LanPeer] = {}
        self.met = trio.Event()
        self.wanted = b""
        told = Told(me=self.peer, tag=run_tag(run), addresses=self._listening)
        self.lan = Lan(self._hear, told=told)

    def _listening(self) -> list[str]:
        trio.lowlevel.current_task()  # A transport may be asked from its own thread only.
        return [self.address]

    def _hear(self, one: LanPeer) -> None:
        self.heard[one.peer] = one
        if one.peer == self.wanted:
            self.met.set()


async def test_two_nodes_find_each_other_and_tell_no_name(ear: socket.socket) -> None:
    run = os.urandom(32)
    one, other = Member(run, 4001), Member(run, 4002)
    one.wanted, other.wanted = other.peer, one.peer
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.lan.run)
            nursery.start_soon(other.lan.run)
            await one.met.wait()
            await other.met.wait()
            nursery.cancel_scope.cancel()
    assert one.heard[other.peer] == LanPeer(other.peer, (other.address,), run_tag(run))
    ours = [data for data in _packets(ear) if b"_barnraise" in data]
    records = [record for data in ours for record in DNSIncoming(data).answers()]
    assert any(peer_id_text(one.peer).encode() in data for data in ours)
    names = {record.name for record in records} | {getattr(r, "server", "") for r in records}
    told = "".join(names).encode() + b"".join(ours)
    for secret in (run, run.hex().encode(), socket.gethostname().encode()):
        assert secret not in told


async def test_node_that_only_looks_tells_nothing(ear: socket.socket) -> None:
    run = os.urandom(32)
    there, found = Member(run, 4003), trio.Event()
    looker = Lan(lambda one: found.set() if one.peer == there.peer else None)
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(there.lan.run)
            nursery.start_soon(looker.run)
            await found.wait()
            nursery.cancel_scope.cancel()
    names = {
        record.name
        for data in _packets(ear)
        if b"_barnraise" in data
        for record in DNSIncoming(data).answers()
        if record.name.endswith("._barnraise._tcp.local.") and record.ttl
    }
    assert len(names) <= 1
    assert not set(there.heard) - {there.peer}


async def test_flood_of_made_up_nodes_is_cut_off(
    ear: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lan, "RECORDS_MAX", 300)
    monkeypatch.setattr(lan, "LOOK_S", 0.2)
    heard: list[LanPeer] = []
    quiet = Lan(heard.append)
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(quiet.run)
            number = 0
            while "floods" not in caplog.text:
                ear.sendto(_made_up(number), (GROUP, PORT))
                number += 1
                await trio.testing.wait_all_tasks_blocked(0.001)
            nursery.cancel_scope.cancel()
    assert len(heard) <= lan.PEERS_MAX


def _packets(ear: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield ear.recv(9000)
        except BlockingIOError:
            return


def _made_up(number: int) -> bytes:
    """An answer with ten services nobody has heard of."""
    name = b"\x0a_barnraise\x04_tcp\x05local\x00"
    records = b""
    for one in range(10):
        label = b"%08d%02d" % (number, one)
        target = bytes((len(label),)) + label + name
        records += name + struct.pack(">HHIH", 12, 1, 4500, len(target)) + target
    return struct.pack(">HHHHHH", 0, 0x8400, 0, 10, 0, 0) + records
