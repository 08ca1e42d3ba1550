"""Meeting the nodes of one's own network without being told of any: mDNS, by the library zeroconf.

What is told there, and what is believed, is pure. The library has a thread of its own, and parses
what any machine of the network sends. What it keeps of that is looked at: where there is more than
a network of people's machines says, we stop listening.
"""

import contextlib
import ipaddress
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass

import psutil
import trio
import zeroconf
from blake3 import blake3

from dht.reaching.addresses import host_and_port, told_hosts
from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId, parse_peer_id, peer_id_text, short_id

logger = logging.getLogger(__name__)

SERVICE = "_barnraise._tcp.local."

TAG_BYTES = 16
_TAG_DOMAIN = b"barnraise/lan/run/1\x00"
_PEER, _TAG = "peer", "run"

_TEXT_BYTES_MAX = 128
"""Of one property; ours have 52 at most."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class LanPeer:
    """A node of this network, as somebody there says."""

    peer: PeerId
    addresses: tuple[str, ...]
    tag: str
    """Of its run; empty of a node that is in none."""


def run_tag(run: bytes) -> str:
    """The tag of a run's digest. Nobody can tell the run by it who does not know it already."""
    return blake3(_TAG_DOMAIN + run).digest(length=TAG_BYTES).hex()


def properties_of(peer: PeerId, tag: str) -> dict[str, str]:
    """What is told beside addresses and port."""
    return {_PEER: peer_id_text(peer), _TAG: tag}


def networks_of(hosts: Iterable[tuple[str, str | None]]) -> tuple[Network, ...]:
    """The networks that these own addresses lie in; with each goes its mask, if there is one."""
    found: dict[Network, None] = {}
    for host, mask in hosts:
        try:
            if ":" in host:
                # Masks of IPv6 are told in full by some systems and as a number by others: homes
                # have /64.
                found[ipaddress.ip_network((host.partition("%")[0], 64), strict=False)] = None
            elif mask:
                found[ipaddress.ip_network(f"{host}/{mask}", strict=False)] = None
        except ValueError:
            continue
    return tuple(found)


def heard(
    properties: Mapping[bytes, bytes | None],
    hosts: Iterable[str],
    port: int | None,
    *,
    networks: Iterable[Network],
) -> LanPeer | None:
    """The node that an answer names, at those of its addresses that lie in `networks`; else None.

    Anything may be in an answer. Link-local addresses are left out: they mean nothing without an
    interface.
    """
    texts = {name: properties.get(name.encode()) or b"" for name in (_PEER, _TAG)}
    if (
        port is None
        or not 0 < port < 2**16
        or any(len(t) > _TEXT_BYTES_MAX for t in texts.values())
    ):
        return None
    try:
        peer = parse_peer_id(texts[_PEER].decode("ascii"))
        tag = texts[_TAG].decode("ascii")
        if tag and len(bytes.fromhex(tag)) != TAG_BYTES:
            return None
    except (ValueError, DecodeError):
        return None
    addresses = _addresses(hosts, port, tuple(networks))
    return LanPeer(peer, addresses, tag) if addresses else None


def _addresses(hosts: Iterable[str], port: int, networks: tuple[Network, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in hosts:
        try:
            host = ipaddress.ip_address(text)
        except ValueError:
            continue
        near = (one for one in networks if one.version == host.version)
        if not host.is_link_local and any(host in one for one in near):
            found[f"/ip{host.version}/{host}/tcp/{port}"] = None
    return tuple(found)[: limits.DHT_ADDRESSES_PER_CONTACT_MAX]


# The edge: zeroconf -----------------------------------------------------------------------------

LOOK_S = 2.0
"""How often we look for a changed network, and at what was heard."""

RECORDS_MAX = 4096
"""That the library may hold for us; a network of a hundred machines says some hundreds."""

PAUSE_S = 600.0
"""Without mDNS, once somebody has said more than that, or where the system has none."""

ANSWERS_MAX, ANSWERS_WITHIN_S = 64, 60.0
"""Answers that are taken apart in a minute; each may cost a question to the network."""

PEERS_MAX = 64
"""That are told on. Whoever makes up more of them is heard no more."""

ASK_MS = 1000
CLOSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a node says of itself."""

    me: PeerId
    tag: str
    """Of its run; empty if it is in none."""

    addresses: Callable[[], Sequence[str]]
    """At which it listens now."""


class Lan:
    """One node on its own network. `run` it in a nursery."""

    def __init__(
        self,
        found: Callable[[LanPeer], None],
        *,
        told: Told | None = None,
    ) -> None:
        """`found` hears of each node once per set of addresses, in trio's thread; it may not wait.

        Without anything `told` one only asks who is there.
        """
        self._found = found
        self._told = told
        self._peers: OrderedDict[PeerId, LanPeer] = OrderedDict()

    async def run(self) -> None:
        """Tell and listen until cancelled; where that is not allowed, try again now and then."""
        while True:
            hosts = self._hosts()
            pause_s = LOOK_S
            if hosts:
                try:
                    pause_s = await self._meet(hosts)
                except (OSError, zeroconf.Error) as error:
                    logger.info("no mdns reason=%s", error)
                    # An address that went while it was opened says nothing of the next.
                    pause_s = PAUSE_S if self._hosts() == hosts else LOOK_S
            await trio.sleep(pause_s)

    def _hosts(self) -> tuple[str, ...]:
        """Our addresses on which we tell and ask."""
        return here() if self._told is None else own_hosts(self._told.addresses())

    async def _meet(self, hosts: tuple[str, ...]) -> float:
        """On these addresses of ours, until they change; how long to wait before the next."""
        info = self._info(hosts)
        if self._told is not None and info is None:
            return 0.0  # They have changed already.
        listener = _Listener(trio.lowlevel.current_trio_token(), self._heard, networks_here(hosts))
        with trio.CancelScope(shield=True):
            # Cancelled in the middle, it would leave its thread behind.
            opened = await trio.to_thread.run_sync(_zeroconf, hosts)
        try:
            await trio.to_thread.run_sync(_open, opened, listener, info)
            logger.info("mdns on=%s", ",".join(hosts))
            while self._hosts() == hosts:
                await trio.sleep(LOOK_S)
                # Under one name there may be any number of them.
                if sum(map(len, list(opened.cache.cache.values()))) > RECORDS_MAX:
                    logger.warning("mdns paused pause_s=%.0f: somebody floods it", PAUSE_S)
                    return PAUSE_S
            return 0.0
        finally:
            listener.is_closed = True
            # With a goodbye, so that nobody dials us for an hour.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await trio.to_thread.run_sync(opened.close, abandon_on_cancel=True)  # type: ignore[call-arg] # the stubs that libp2p brings predate it

    def _info(self, hosts: tuple[str, ...]) -> zeroconf.ServiceInfo | None:
        told = self._told
        port = None if told is None else _port(told.addresses(), hosts)
        if told is None or port is None:
            return None
        # Made-up names: that of the machine is nobody's business, and is not told.
        name = os.urandom(8).hex()
        return zeroconf.ServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            addresses=[ipaddress.ip_address(host).packed for host in hosts],
            port=port,
            properties=properties_of(told.me, told.tag),
            server=f"{name}.local.",
        )

    def _heard(self, peer: LanPeer) -> None:
        before = self._peers.get(peer.peer)
        is_full = before is None and len(self._peers) >= PEERS_MAX
        is_own = self._told is not None and peer.peer == self._told.me
        if is_own or peer == before or is_full:
            return
        self._peers[peer.peer] = peer
        logger.info("on this network peer=%s at=%s", short_id(peer.peer), ",".join(peer.addresses))
        self._found(peer)


_ENDED = (RuntimeError, CancelledError, AssertionError)
"""What a question raises whose library has been closed under it; it asserts that it has not."""


class _Listener(zeroconf.ServiceListener):
    """Called by the library, in a thread of its own."""

    def __init__(
        self,
        token: trio.lowlevel.TrioToken,
        tell: Callable[[LanPeer], None],
        networks: tuple[Network, ...],
    ) -> None:
        self._token = token
        self._tell = tell
        self._networks = networks
        self._since_s, self._num_answers = 0.0, 0
        self.is_closed = False
        """What waits in the library's thread then is thrown away."""

    def add_service(self, zc: zeroconf.Zeroconf, type_: str, name: str) -> None:
        """Somebody says that a node is there."""
        if self.is_closed:
            return
        now_s = time.monotonic()
        if now_s - self._since_s > ANSWERS_WITHIN_S:
            self._since_s, self._num_answers = now_s, 0
        self._num_answers += 1
        if self._num_answers > ANSWERS_MAX:
            return
        try:
            info = zeroconf.ServiceInfo(type_, name)
            if not info.load_from_cache(zc):
                info.request(zc, ASK_MS)
            hosts = info.parsed_addresses()
            peer = heard(info.properties, hosts, info.port, networks=self._networks)
        except (zeroconf.Error, ValueError, OSError, *_ENDED) as error:
            logger.debug("mdns answer ignored reason=%s", error)
            return
        if peer is not None:
            # The node may have ended meanwhile.
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._tell, peer)

    def update_service(self, zc: zeroconf.Zeroconf, type_: str, name: str) -> None:
        """It has moved."""
        self.add_service(zc, type_, name)

    def remove_service(self, zc: zeroconf.Zeroconf, type_: str, name: str) -> None:
        """It has gone; whoever is linked to it notices that itself."""


def _zeroconf(hosts: Sequence[str]) -> zeroconf.Zeroconf:
    """In a worker thread. Raises OSError where the system has no such address, or no mDNS."""
    try:
        return zeroconf.Zeroconf(interfaces=list(hosts))
    except RuntimeError as error:
        # Of an IPv6 address that has gone since it was looked up.
        raise OSError(str(error)) from error


def _open(
    opened: zeroconf.Zeroconf, listener: _Listener, info: zeroconf.ServiceInfo | None
) -> None:
    """In a worker thread: both calls wait for the library's own."""
    if info is not None:
        # Nobody else can have drawn this name, so it is not asked for first.
        opened.register_service(info, cooperating_responders=True)
    zeroconf.ServiceBrowser(opened, SERVICE, listener=listener)


def here() -> tuple[str, ...]:
    """This machine's addresses on its networks; not those of containers, nor link-local ones."""
    found = psutil.net_if_addrs().items()
    interfaces = {name: [one.address for one in addresses] for name, addresses in found}
    return told_hosts(interfaces, 4, 6)


def own_hosts(addresses: Iterable[str]) -> tuple[str, ...]:
    """Of the addresses at which a node listens, those of this machine on its networks."""
    known = here()
    places = (host_and_port(address) for address in addresses)
    return tuple(dict.fromkeys(place[0] for place in places if place and place[0] in known))


def networks_here(hosts: Iterable[str]) -> tuple[Network, ...]:
    """The networks on which these addresses of ours are."""
    wanted = set(hosts)
    own = (one for found in psutil.net_if_addrs().values() for one in found)
    return networks_of((one.address, one.netmask) for one in own if one.address in wanted)


def _port(addresses: Iterable[str], hosts: Sequence[str]) -> int | None:
    """Where we listen on those; None if we do not any more."""
    places = (host_and_port(address) for address in addresses)
    return next((place[1] for place in places if place and place[0] in hosts), None)
