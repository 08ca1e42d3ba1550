"""A port of the home's router: the two ways to ask for one, and keeping it.

NAT-PMP (RFC 6886) is spoken here, and UPnP by a library, in a process of its own.
"""

import ipaddress
import json
import logging
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from dht.reaching.addresses import is_public
from protocol.errors import DecodeError, UnreachableError

logger = logging.getLogger(__name__)

PORT = 5351
_VERSION = 0
_OF_ADDRESS, _OF_TCP = 0, 2
_ANSWER = 128
_HEAD = struct.Struct("!BBH")
_ADDRESS = struct.Struct("!BBHI4s")
_MAPPING = struct.Struct("!BBHIHHI")
REPLY_BYTES_MAX = 64

RETRIES_S = (0.25, 0.5, 1.0)
"""How long each packet is waited for; the specification goes on to a minute, for nobody's good."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The router leads `outer_port` to our `port` for so long."""

    port: int
    outer_port: int
    lease_s: int


def ask_address() -> bytes:
    """Which address do you have outside?"""
    return struct.pack("!BB", _VERSION, _OF_ADDRESS)


def ask_mapping(port: int, outer_port: int, lease_s: int) -> bytes:
    """Lead that outer port, or another, to ours; a lease of 0 s takes it away again."""
    return struct.pack("!BBHHHI", _VERSION, _OF_TCP, 0, port, outer_port, lease_s)


def decode_address(data: bytes) -> str:
    """The router's outer IPv4 address. Raises DecodeError, also where the router says no."""
    _check(data, _OF_ADDRESS, _ADDRESS.size)
    return str(ipaddress.IPv4Address(_ADDRESS.unpack(data)[4]))


def decode_mapping(data: bytes) -> Mapped:
    """What the router did. Raises DecodeError, also where it says no."""
    _check(data, _OF_TCP, _MAPPING.size)
    *_, port, outer_port, lease_s = _MAPPING.unpack(data)
    return Mapped(port, outer_port, lease_s)


def _check(data: bytes, kind: int, num_bytes: int) -> None:
    if len(data) < _HEAD.size:
        raise DecodeError("no answer of NAT-PMP")
    version, said, result = _HEAD.unpack_from(data)
    if version != _VERSION or said != _ANSWER + kind:
        raise DecodeError("an answer to something else")
    if result:
        raise DecodeError(f"the router says no: result {result}")
    if len(data) != num_bytes:
        raise DecodeError(f"{len(data)} bytes instead of {num_bytes}")


# The two ways -----------------------------------------------------------------------------------

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

    def __init__(self, gateways: Callable[[], Sequence[str]], *, gateway_port: int = PORT) -> None:
        """`gateways`: who may be the router."""
        self._gateways = gateways
        self._gateway_port = gateway_port
        self._gateway = ""

    async def map(self, port: int, lease_s: int) -> Mapping:
        """See Router."""
        for gateway in self._gateways():
            try:
                request = ask_mapping(port, port, lease_s)
                mapped = await self._ask(gateway, request, decode_mapping)
                host = await self._ask(gateway, ask_address(), decode_address)
            except UnreachableError as error:
                logger.debug("no NAT-PMP gateway=%s reason=%s", gateway, error)
                continue
            if mapped.port == port and mapped.outer_port and mapped.lease_s:
                self._gateway = gateway
                return Mapping(host, mapped.outer_port, min(mapped.lease_s, lease_s))
        raise UnreachableError("no router answers NAT-PMP")

    async def unmap(self, mapping: Mapping, port: int) -> None:
        """See Router."""
        request = ask_mapping(port, 0, 0)
        await self._ask(self._gateway, request, decode_mapping)

    async def _ask(
        self, gateway: str, request: bytes, decode: Callable[[bytes], _Answer]
    ) -> _Answer:
        try:
            with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                # Connected: the system drops what comes from anybody else.
                await sock.connect((gateway, self._gateway_port))
                for wait_s in RETRIES_S:
                    await sock.send(request)
                    with trio.move_on_after(wait_s):
                        return decode(await sock.recv(REPLY_BYTES_MAX))
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


# Keeping a port ---------------------------------------------------------------------------------

LEASE_S = 3600
"""A router that hears no more from us forgets the port by itself, for example after our crash."""

AGAIN_S = 900.0
"""Where no router does it: the machine may have been carried home."""

LOOK_S = 1.0
GIVE_BACK_S = 1.5
"""At the end of the node, which is not to be held up."""


class PortMapper:
    """An outer port for the one on which we listen. `run` it in a nursery."""

    def __init__(self, routers: Sequence[Router], *, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted`: whether this machine is behind a router, as far as it knows."""
        self._routers = routers
        self._is_wanted = is_wanted
        self._held: tuple[Router, Mapping] | None = None
        self._due_s = 0.0
        self._changed = trio.Event()

    @property
    def change(self) -> trio.Event:
        """Set when there is another outer address, or none; another one from then on."""
        return self._changed

    def address(self) -> str:
        """Where the router says that it leads others to us; nothing where that is no public one."""
        if self._held is None:
            return ""
        mapping = self._held[1]
        address = f"/ip4/{mapping.host}/tcp/{mapping.port}"
        # A router behind another one tells an address that means nothing outside.
        return address if is_public(address) else ""

    def start_over(self) -> None:
        """The machine is in another network, and has another router."""
        self._hold(None)
        self._due_s = 0.0

    async def run(self, port: int) -> None:
        """Keep a mapping to `port` until cancelled, and give it back then. Raises nothing."""
        try:
            while True:
                if trio.current_time() >= self._due_s and self._is_wanted():
                    await self._renew(port)
                await trio.sleep(LOOK_S)
        finally:
            if self._held is not None:
                router, mapping = self._held
                self._hold(None)
                with trio.CancelScope(deadline=trio.current_time() + GIVE_BACK_S, shield=True):
                    await _give_back(router, mapping, port)

    async def _renew(self, port: int) -> None:
        held = (self._held[0],) if self._held is not None else ()
        for router in (*held, *(one for one in self._routers if one not in held)):
            try:
                mapping = await router.map(port, LEASE_S)
            except UnreachableError as error:
                logger.debug("no port reason=%s", error)
                continue
            self._hold((router, mapping))
            self._due_s = trio.current_time() + mapping.lease_s / 2
            return
        self._hold(None)
        self._due_s = trio.current_time() + AGAIN_S

    def _hold(self, held: tuple[Router, Mapping] | None) -> None:
        before, self._held = self.address(), held
        if self.address() != before:
            logger.info("port of the router address=%s", self.address() or "none")
            self._changed.set()
            self._changed = trio.Event()


async def _give_back(router: Router, mapping: Mapping, port: int) -> None:
    try:
        await router.unmap(mapping, port)
    except UnreachableError as error:
        logger.debug("port not given back reason=%s", error)
