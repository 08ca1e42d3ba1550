"""The two ways to ask a home's router for a port: NAT-PMP, spoken here, and UPnP by a library."""

import ipaddress
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from dht.reaching import nat_pmp
from protocol.errors import DecodeError, UnreachableError

logger = logging.getLogger(__name__)

UPNP = (sys.executable, "-P", str(Path(__file__).with_name("upnp_main.py")))
UPNP_S = 12.0
SAID_BYTES_MAX = 256

ROUTES = Path("/proc/net/route")
"""Where Linux tells of its default gateway."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Mapping:
    """An address outside that a router leads to us, for so long."""

    host: str
    port: int
    lease_s: int


class Router(Protocol):
    """SEAM: a way to ask for a port. The port mapper calls it, one call at a time."""

    async def map(self, port: int, lease_s: int) -> Mapping:
        """Lead an outer port to ours, or renew that.

        Raises UnreachableError where there is no such router, or it does not do it.
        """
        ...

    async def unmap(self, mapping: Mapping, port: int) -> None:
        """Take it away again. Raises UnreachableError where that fails."""
        ...


class NatPmp:
    """NAT-PMP with the default gateway."""

    def __init__(
        self, gateways: Callable[[], Sequence[str]], *, gateway_port: int = nat_pmp.PORT
    ) -> None:
        """`gateways`: who may be the router."""
        self._gateways = gateways
        self._gateway_port = gateway_port
        self._gateway = ""

    async def map(self, port: int, lease_s: int) -> Mapping:
        """See Router."""
        for gateway in self._gateways():
            try:
                request = nat_pmp.ask_mapping(port, port, lease_s)
                mapped = await self._ask(gateway, request, nat_pmp.decode_mapping)
                host = await self._ask(gateway, nat_pmp.ask_address(), nat_pmp.decode_address)
            except UnreachableError as error:
                logger.debug("no NAT-PMP gateway=%s reason=%s", gateway, error)
                continue
            if mapped.port == port and mapped.outer_port and mapped.lease_s:
                self._gateway = gateway
                return Mapping(host, mapped.outer_port, min(mapped.lease_s, lease_s))
        raise UnreachableError("no router answers NAT-PMP")

    async def unmap(self, mapping: Mapping, port: int) -> None:
        """See Router."""
        request = nat_pmp.ask_mapping(port, 0, 0)
        await self._ask(self._gateway, request, nat_pmp.decode_mapping)

    async def _ask(
        self, gateway: str, request: bytes, decode: Callable[[bytes], _Answer]
    ) -> _Answer:
        try:
            with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                # Connected: the system drops what comes from anybody else.
                await sock.connect((gateway, self._gateway_port))
                for wait_s in nat_pmp.RETRIES_S:
                    await sock.send(request)
                    with trio.move_on_after(wait_s):
                        return decode(await sock.recv(nat_pmp.REPLY_BYTES_MAX))
        except (OSError, DecodeError) as error:
            raise UnreachableError(str(error)) from error
        raise UnreachableError("no answer")


class Upnp:
    """UPnP with whatever router of the home answers, by `upnp_main.py`."""

    def __init__(self, command: Sequence[str] = UPNP) -> None:
        self._command = tuple(command)

    async def map(self, port: int, lease_s: int) -> Mapping:
        """See Router."""
        said = await self._run("map", str(port), str(lease_s))
        host, outer = said.get("host"), said.get("port")
        if not isinstance(host, str) or not isinstance(outer, int) or not 0 < outer < 65536:
            raise UnreachableError("no answer that makes sense")
        return Mapping(host, outer, lease_s)

    async def unmap(self, mapping: Mapping, port: int) -> None:
        """See Router."""
        await self._run("unmap", str(mapping.port))

    async def _run(self, *words: str) -> dict[str, object]:
        with trio.move_on_after(UPNP_S) as patience:
            try:
                done = await trio.run_process(
                    [*self._command, *words],
                    capture_stdout=True,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
            except OSError as error:
                raise UnreachableError(f"no UPnP: {error}") from error
        if patience.cancelled_caught or done.returncode:
            raise UnreachableError("no router answers UPnP, or it does not do it")
        try:
            said = json.loads(done.stdout[:SAID_BYTES_MAX])
        except ValueError as error:
            raise UnreachableError(f"no answer that makes sense: {error}") from error
        return said if isinstance(said, dict) else {}


def gateways(hosts: Sequence[str], routes: Path = ROUTES) -> tuple[str, ...]:
    """Who may be the router: the default gateway where the system tells it, else the first address
    of each private network of `hosts`, which homes' routers nearly always have."""
    told = tuple(_default_gateways(routes))
    if told:
        return told
    networks = (ipaddress.ip_network(f"{host}/24", strict=False) for host in hosts)
    return tuple(dict.fromkeys(str(network[1]) for network in networks))


def _default_gateways(routes: Path) -> Iterator[str]:
    try:
        lines = routes.read_text("ascii").splitlines()[1:]
    except (OSError, UnicodeDecodeError):
        return
    for fields in map(str.split, lines):
        # Destination and mask 0; the address is little-endian, and a flag says "gateway".
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and int(fields[3], 16) & 2:
            yield str(ipaddress.IPv4Address(bytes.fromhex(fields[2])[::-1]))
