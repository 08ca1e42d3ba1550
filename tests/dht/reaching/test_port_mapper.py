"""Ports of a home's router: the words of NAT-PMP, a router made up here, leases and their end."""

import socket
import struct
import sys
from pathlib import Path

import pytest
import trio

from dht.reaching import routers as nat_pmp
from dht.reaching.routers import (
    AGAIN_S,
    LEASE_S,
    Mapping,
    NatPmp,
    PortMapper,
    Upnp,
    ask_address,
    ask_mapping,
    decode_address,
    decode_mapping,
    gateways,
)
from protocol.errors import DecodeError, UnreachableError

ADDRESS = struct.pack("!BBHI4s", 0, 128, 0, 7, bytes((203, 0, 113, 7)))
MAPPED = struct.pack("!BBHIHHI", 0, 130, 0, 7, 4001, 4002, 3600)
OUTER = "/ip4/203.0.113.7/tcp/4001"


def test_words_of_nat_pmp_are_those_of_the_rfc():
    assert ask_address() == b"\0\0"
    assert ask_mapping(4001, 4002, 3600).hex() == "000200000fa10fa200000e10"
    assert decode_address(ADDRESS) == "203.0.113.7"
    assert decode_mapping(MAPPED) == nat_pmp.Mapped(4001, 4002, 3600)


@pytest.mark.parametrize(
    "data",
    [b"", MAPPED[:-1], MAPPED + b"x", ADDRESS, b"\1" + MAPPED[1:], MAPPED[:3] + b"\2" + MAPPED[4:]],
    ids=["empty", "short", "long", "other", "version", "refused"],
)
def test_other_bytes_are_no_mapping(data):
    with pytest.raises(DecodeError):
        decode_mapping(data)


def test_gateway_is_the_systems_or_the_first_of_the_network(tmp_path):
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert gateways(("10.1.2.3",), routes) == ("192.168.1.1",)
    assert gateways(("10.1.2.3", "10.1.2.4"), tmp_path / "none") == ("10.1.2.1",)


async def serve_nat_pmp(sock, heard):
    """A router that grants what it is asked for, on a socket of loopback."""
    while True:
        data, source = await sock.recvfrom(64)
        heard.append(data)
        if data == ask_address():
            await sock.sendto(ADDRESS, source)
        else:
            port, outer, lease_s = struct.unpack("!HHI", data[4:])
            await sock.sendto(struct.pack("!BBHIHHI", 0, 130, 0, 7, port, outer, lease_s), source)


@pytest.mark.net
async def test_mapping_is_asked_for_and_given_back_by_nat_pmp():
    heard: list[bytes] = []
    with trio.fail_after(10), trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_nat_pmp, sock, heard)
            router = NatPmp(lambda: ("127.0.0.1",), gateway_port=sock.getsockname()[1])
            async with trio.open_nursery() as node:
                mapper = PortMapper([router], is_wanted=lambda: True)
                changed = mapper.change
                node.start_soon(mapper.run, 4001)
                await changed.wait()
                assert mapper.address() == OUTER
                node.cancel_scope.cancel()
            assert heard[-1] == ask_mapping(4001, 0, 0)
            nursery.cancel_scope.cancel()


class MadeUp:
    """A router that does it or does not."""

    def __init__(self, host="203.0.113.7"):
        self.host = host
        self.asked = []
        self.given_back = 0

    async def map(self, port, lease_s):
        self.asked.append(trio.current_time())
        if not self.host:
            raise UnreachableError("no such router")
        return Mapping(self.host, port, lease_s)

    async def unmap(self, mapping, port):
        self.given_back += 1
        await trio.sleep_forever()  # Nobody waits for it for long.


async def test_lease_is_renewed_and_another_router_asked_where_one_fails(autojump_clock):
    without, router = MadeUp(""), MadeUp()
    async with trio.open_nursery() as nursery:
        mapper = PortMapper([without, router], is_wanted=lambda: True)
        nursery.start_soon(mapper.run, 4001)
        await trio.sleep(2 * LEASE_S)
        assert 4 <= len(router.asked) <= 5
        assert len(without.asked) == 1  # Who did it once is asked first.
        router.host = ""
        await trio.sleep(LEASE_S)
        assert mapper.address() == ""
        router.host = "10.0.0.1"  # It is itself behind a router.
        await trio.sleep(AGAIN_S + 2)
        assert mapper.address() == ""
        began_s = trio.current_time()
        nursery.cancel_scope.cancel()
    assert router.given_back == 1
    assert trio.current_time() - began_s < 2.0


async def test_nobody_is_asked_where_no_port_is_wanted(autojump_clock):
    router = MadeUp()
    is_wanted = False
    async with trio.open_nursery() as nursery:
        mapper = PortMapper([router], is_wanted=lambda: is_wanted)
        nursery.start_soon(mapper.run, 4001)
        await trio.sleep(LEASE_S)
        assert router.asked == []
        is_wanted = True
        await trio.sleep(2)
        assert mapper.address() == OUTER
        # Carried to another network: the old mapping says nothing.
        router.host = ""
        mapper.start_over()
        await trio.sleep(2)
        assert mapper.address() == ""
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("code", "host"),
    [
        ('print(\'{"host": "203.0.113.7", "port": 4001}\')', "203.0.113.7"),
        ("raise Exception('no IGD')", ""),
        ("print('x' * 10**6)", ""),
        ('print(\'{"host": 7, "port": 4001}\')', ""),
        ('print(\'{"host": "203.0.113.7", "port": 0}\')', ""),
    ],
    ids=["mapped", "none", "nonsense", "no host", "no port"],
)
async def test_upnp_is_what_its_process_says(code, host):
    router = Upnp((sys.executable, "-S", "-c", code))
    if host:
        assert await router.map(4001, 60) == Mapping(host, 4001, 60)
    else:
        with pytest.raises(UnreachableError):
            await router.map(4001, 60)
    with pytest.raises(UnreachableError):
        await Upnp((str(Path("/nowhere/python")),)).map(4001, 60)
