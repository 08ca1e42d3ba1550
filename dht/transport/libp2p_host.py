"""The libp2p host as Barnraise wants it: TCP, Noise and yamux only, on one fixed port.

The host is put together by hand and not with the library's `new_host`, because that one also
offers plaintext, dials peers on its own, and cannot be told otherwise. What is mended here:

- After 250 inbound connections, counted over its life, a stock host accepts no more: the place
  of a closed connection is never given back.
- It binds its port with SO_REUSEPORT (hole punching needs it), so that a second node on the same
  port would start without an error and take half of the first one's connections.
"""

import contextlib
import ipaddress
import logging
import math
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import trio
from libp2p.abc import IMuxedConn, IRawConnection, ISecureConn, ISecureTransport
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer.exceptions import MultiselectClientError, MultiselectError
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL
from libp2p.security.tls.transport import PROTOCOL_ID as TLS_PROTOCOL
from libp2p.transport.exceptions import SecurityUpgradeFailure
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError
from psutil import net_if_addrs

from dht.reaching.addresses import loopback_host, told_hosts
from dht.transport.libp2p_knocking import FULL_PROTOCOL, Door
from dht.transport.libp2p_link import OpenLink, link_of
from dht.transport.libp2p_security import (
    NOT_PRIVATE,
    PRIVATE,
    PSK_BYTES,
    PSK_PROTOCOL,
    PskNoise,
    TunedNoise,
    TunedTls,
)
from dht.transport.libp2p_stream import root_message
from dht.transport.libp2p_yamux import FULL_CODE, Muxers, Yamux
from protocol import limits
from protocol.errors import FULL, ConfigError
from protocol.identity import PeerId, peer_id_text

logger = logging.getLogger(__name__)

NO_WORD = "it closed the connection, or said nothing: it may have no place at the moment"

UPGRADE_TIMEOUT_S = 5.0
"""For the handshakes of a connection, each way: five round trips over a bad satellite link."""

CONNECTIONS_PER_PEER_MAX = 5
"""Two that crossed each other while both ends dialled, one for bulk beside each, and one punched
hole."""

SECURITIES = ("tls", "noise")
"""What `TransportConfig.security` may say."""


_DIALABLE = (
    {"ip4", "tcp"},
    {"ip6", "tcp"},
    {"dns", "tcp"},
    {"dns4", "tcp"},
    {"dns6", "tcp"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Where a node listens, and how long it waits for others."""

    listen_host: str = "0.0.0.0"  # noqa: S104 - a peer-to-peer node is there to be reached
    """IP address to listen on; 0.0.0.0 or :: for all, of both families."""

    listen_port: int = 0
    """TCP port; 0 picks a free one at the start. Routers remember a port, so better name one."""

    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead of our own guess, e.g. those of a forwarded port."""

    named: tuple[str, ...] = ()
    """Multiaddrs of peers that a user named: they are dialled wherever they lead. Others' words
    lead into this machine only where all peers are on it."""

    interface: str = ""
    """Where all addresses are listened on, others are told those of this interface alone."""

    has_port_mapping: bool = False
    """Whether the home's router is asked for a port, by NAT-PMP and UPnP; given back at the end."""

    connections_max: int = 300
    """Open at one time, in and out. Each costs about 0.1 MB, while busy also its unread bytes."""

    dial_timeout_s: float = 5.0
    """Per address. Higher reaches slower peers, and waits longer for those that left."""

    stream_timeout_s: float = 10.0
    """To open a stream. A frozen peer never refuses: only this number ends the waiting."""

    security: str = "tls"
    """`tls`: where both ends take it, and else Noise; `noise`: nothing else. TLS takes less
    processor time on machines with instructions for AES."""

    bulk_protocols: frozenset[str] = frozenset()
    """Their streams travel on a second connection to the peer, as soon as there is one: what is
    written on the first, such as a vote, never waits behind them."""

    psk: bytes | None = field(default=None, repr=False)
    """Of a private swarm: connections are only with those who know it, by Noise and never TLS."""

    def __post_init__(self) -> None:
        if self.psk is not None and len(self.psk) != PSK_BYTES:
            raise ConfigError(f"psk: {len(self.psk)} bytes instead of {PSK_BYTES}")
        try:
            ipaddress.ip_address(self.listen_host)
        except ValueError as error:
            raise ConfigError(f"listen_host: {error}") from error
        if self.interface and self.interface not in _interfaces():
            here = ", ".join(_interfaces())
            raise ConfigError(f"interface: there is no {self.interface}; there are {here}")
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listen_port: {self.listen_port} is outside 0..65535")
        if self.security not in SECURITIES:
            raise ConfigError(f"security: {self.security!r} is none of {', '.join(SECURITIES)}")
        if not 1 <= self.connections_max <= 10_000:
            raise ConfigError(f"connections_max: {self.connections_max} is outside 1..10000")
        for address in self.announce:
            try:
                dialable(address)
            except ValueError as error:
                raise ConfigError(f"announce: {error}") from error


class _NoAutoConnector(AutoConnector):
    """The library would dial peers of its own choice until it has 200; the node decides that."""

    async def maybe_connect(self) -> None:
        """Connect to nobody."""


class _Swarm(Swarm):
    """The library's network, which gives back the place of a closed inbound connection."""

    def __init__(
        self, peer_id: ID, peerstore: PeerStore, upgrader: TransportUpgrader, door: Door
    ) -> None:
        # The library turns away whoever comes last, whoever that is. Its numbers leave room for all
        # whom the door lets in.
        num_max = door.connections_max + door.places.num_knocking_max
        super().__init__(
            peer_id,
            peerstore,
            upgrader,
            [TCP()],
            retry_config=RetryConfig(max_retries=0),
            connection_config=ConnectionConfig(
                max_connections=num_max,
                min_connections=0,
                low_watermark=0,
                high_watermark=num_max,
                max_connections_per_peer=CONNECTIONS_PER_PEER_MAX,
                inbound_upgrade_timeout=UPGRADE_TIMEOUT_S,
                outbound_upgrade_timeout=UPGRADE_TIMEOUT_S,
            ),
        )
        self.auto_connector = _NoAutoConnector(self)
        self._door = door
        # The door counts; whom it has just cut off still holds a place of the library's.
        self._inbound_limiter = trio.CapacityLimiter(math.inf)

    async def _handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr
    ) -> None:
        """As the library does, with whom the door lets to its handshake."""
        knocking = await self._door.come_in(read_write_closer)
        if knocking is None:
            return
        try:
            await super()._handle_inbound_connection(knocking, maddr)
        finally:
            self._door.leave(knocking.guest)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> SwarmConn:
        """As the library does, where there is a place. Raises SwarmException."""
        link = link_of(muxed_conn)
        assert isinstance(muxed_conn, Yamux)
        assert link is not None
        if not link.is_initiator:
            has_place = self._door.let_in(link)
        else:
            has_place = len(self.get_connections()) < self._door.connections_max
        if not has_place:
            await muxed_conn.close(FULL_CODE)
            raise SwarmException("no place for one more connection")
        return await super().add_conn(muxed_conn, direction)

    async def upgrade_inbound_raw_conn(
        self, raw_conn: IRawConnection, maddr: Multiaddr
    ) -> IMuxedConn:
        """Secure an inbound connection; for one of the listener, also wait until it is gone.

        The listener's task holds the connection's place and would wait for the end of the whole
        network. The exception makes it leave. Relayed connections come from elsewhere.
        """
        muxed = await super().upgrade_inbound_raw_conn(raw_conn, maddr)
        link = link_of(muxed)
        if link is not None and _from_listener(raw_conn):
            await link.lost.wait()
            raise SwarmException(link.lost_reason)
        return muxed


class _Upgrader(TransportUpgrader):
    """The library's, which says why two ends have no security in common: mostly the PSK."""

    def __init__(
        self, secured: dict[TProtocol, ISecureTransport], *, negotiate_timeout: int
    ) -> None:
        super().__init__(secured, {}, negotiate_timeout=negotiate_timeout)
        self._is_private = PSK_PROTOCOL in secured

    async def upgrade_security(
        self, raw_conn: IRawConnection, is_initiator: bool, peer_id: ID | None = None
    ) -> ISecureConn:
        """As the library does. Raises SecurityUpgradeFailure."""
        try:
            return await super().upgrade_security(raw_conn, is_initiator, peer_id)
        except SecurityUpgradeFailure as error:
            if isinstance(error.__cause__, MultiselectError | MultiselectClientError):
                why = self._why(root_message(error))
                raise SecurityUpgradeFailure(why) from None
            raise

    def _why(self, said: str) -> str:
        """What the library's words mean. Only who answers that it has none of ours is private."""
        if FULL_PROTOCOL in said:
            return FULL
        if "not supported" in said:
            return NOT_PRIVATE if self._is_private else PRIVATE
        return NO_WORD


class _QuietHost(BasicHost):
    """The library's host, which asks nobody to identify itself.

    What peers say there, addresses and protocols, our own messages say too. It would be a stream
    each way on every connection. Others who ask us are answered.
    """

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        """Ask nobody."""


def _from_listener(raw: IRawConnection) -> bool:
    return isinstance(raw, RawConnection) and isinstance(raw.stream, TrioTCPStream)


def build_host(
    config: TransportConfig, signer_seed: bytes, open_link: OpenLink, door: Door
) -> BasicHost:
    """A host that does not run yet. `open_link` wraps each connection before its handshake; `door`
    says who has a place."""
    # The library reports every failed dial and every disconnect as an error, some with a traceback.
    # The same facts reach our callers as exceptions.
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    # It writes four lines at DEBUG for each part of each address that it parses.
    logging.getLogger("multiaddr").setLevel(logging.WARNING)
    key_pair = create_new_key_pair(signer_seed)
    peer_id = ID.from_pubkey(key_pair.public_key)
    peerstore = PeerStore()
    peerstore.add_key_pair(peer_id, key_pair)
    upgrader = _Upgrader(
        _secure_transports(config, key_pair, open_link),
        negotiate_timeout=int(UPGRADE_TIMEOUT_S),
    )
    upgrader.muxer_multistream = Muxers(int(UPGRADE_TIMEOUT_S))
    announce = [Multiaddr(address) for address in config.announce]
    return _QuietHost(
        _Swarm(peer_id, peerstore, upgrader, door),
        addrs_factory=lambda found: (
            announce or list(reachable(found, _interfaces(), config.interface))
        ),
    )


def securities(config: TransportConfig) -> tuple[str, ...]:
    """What a node offers and takes, the preferred first."""
    if config.psk is not None:
        return ("noise-psk",)
    return SECURITIES[SECURITIES.index(config.security) :]


def _secure_transports(
    config: TransportConfig, key_pair: KeyPair, open_link: OpenLink
) -> dict[TProtocol, ISecureTransport]:
    if config.psk is not None:
        return {PSK_PROTOCOL: PskNoise(key_pair, open_link, config.psk)}
    found: dict[TProtocol, ISecureTransport] = {}
    if "tls" in securities(config):
        found[TLS_PROTOCOL] = TunedTls(key_pair, open_link)
    found[NOISE_PROTOCOL] = TunedNoise(key_pair, open_link)
    return found


def library_id(peer: PeerId) -> ID:
    """The library's form of a peer id."""
    return ID.from_base58(peer_id_text(peer))


def dialable(address: str) -> Multiaddr:
    """Parse an address of TCP over IP or a name, without `/p2p/`. Raises ValueError, saying why."""
    if len(address) > limits.ADDRESS_BYTES_MAX:
        raise ValueError(f"longer than {limits.ADDRESS_BYTES_MAX} characters")
    try:
        parsed = Multiaddr(address)
        names = [part.name for part in parsed.protocols()]
    except (MultiaddrError, ValueError) as error:
        raise ValueError(f"no multiaddr: {error}") from error
    if len(names) != 2 or set(names) not in _DIALABLE:
        raise ValueError("not /ip4, /ip6 or /dns with /tcp and nothing else")
    return parsed


def reachable(
    listening: Sequence[Multiaddr], interfaces: Mapping[str, list[str]], interface: str = ""
) -> Iterator[Multiaddr]:
    """Where a node is that listens there: instead of "all addresses" each of this machine's, or of
    one of its interfaces; with none of these its loopback's. Only addresses that are there."""
    all_of = {}
    for address in listening:
        host, version = _host_of(address)
        if host.is_unspecified:
            all_of[version] = str(address)
        else:
            yield address
    chosen = {interface: interfaces.get(interface, [])} if interface else interfaces
    alone = loopback_host(interfaces, *sorted(all_of))
    for one in told_hosts(chosen, *all_of) or filter(None, [alone]):
        version = ipaddress.ip_address(one).version
        port = all_of[version].rpartition("/")[2]
        yield Multiaddr(f"/ip{version}/{one}/tcp/{port}")


def _host_of(address: Multiaddr) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """The IP address of one that is listened on, and its family."""
    host = ipaddress.ip_address(str(address).split("/")[2])
    return host, host.version


def visiting_host() -> str:
    """Where to listen for who is not to be dialled."""
    return loopback_host(_interfaces(), 4, 6) or "127.0.0.1"


def _interfaces() -> dict[str, list[str]]:
    """The addresses of each interface of this machine, as the library's dependencies find them."""
    return {name: [one.address for one in found] for name, found in net_if_addrs().items()}


@contextlib.contextmanager
def reserved_port(config: TransportConfig) -> Iterator[tuple[Multiaddr, ...]]:
    """Where to listen, the port kept from others until the context ends. Raises ConfigError.

    A port of 0 is resolved here, because the library must know the port before it listens:
    DCUtR dials from it. Who listens on all addresses does so on those of the other family as well,
    where the system has it: many a home has no other.
    """
    ip = ipaddress.ip_address(config.listen_host)
    with contextlib.ExitStack() as stack:
        try:
            port = _hold_port(stack, config.listen_host, config.listen_port)
        except OSError as error:
            where = f"{config.listen_host} port {config.listen_port}"
            raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
        found = [Multiaddr(f"/ip{ip.version}/{config.listen_host}/tcp/{port}")]
        if ip.is_unspecified:
            other = "::" if ip.version == 4 else "0.0.0.0"  # noqa: S104 - as above
            try:
                _hold_port(stack, other, port)
                found.append(Multiaddr(f"/ip{10 - ip.version}/{other}/tcp/{port}"))
            except OSError as error:
                logger.info("not listening host=%s port=%d reason=%s", other, port, error)
        yield tuple(found)


def _hold_port(stack: contextlib.ExitStack, host: str, port: int) -> int:
    """Keep a port, or a free one for 0, until the stack ends; which it is. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if port:
        _refuse_shared_port(family, host, port)
    holder = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, port))
    return int(holder.getsockname()[1])


def _refuse_shared_port(family: socket.AddressFamily, host: str, port: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without it, connections of an earlier run in TIME_WAIT would hold the port for a minute.
        # On Windows the option means to take a port from whoever has it.
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        probe.setsockopt(socket.SOL_SOCKET, exclusive or socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Or ours of the other family would be in its way.
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind((host, port))


def plain_addresses(addresses: Sequence[Multiaddr]) -> tuple[str, ...]:
    """Their text without `/p2p/`, each once, in order."""
    return tuple(dict.fromkeys(str(address).partition("/p2p/")[0] for address in addresses))
