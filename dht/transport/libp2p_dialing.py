"""Dialling a peer: its addresses one beside the other, through a relay where none answers.

A name in an address is looked up by the system, which also knows a home's own names. A circuit is,
to the library, one more connection below its own handshake.
"""

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio
from libp2p.abc import INetworkService, IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from multiaddr import Multiaddr

from dht.reaching.addresses import (
    Circuit,
    dial_order,
    first_hop,
    may_be_dialled,
    parse_circuit,
)
from dht.reaching.relay_client import join_circuit
from dht.transport.libp2p_host import TransportConfig, dialable, library_id
from dht.transport.libp2p_inbound import BAD_BYTES
from dht.transport.libp2p_link import Links
from dht.transport.libp2p_security import WRONG_KEY
from dht.transport.libp2p_stream import Libp2pStream, root_message
from protocol.errors import (
    FULL,
    NetworkError,
    PeerError,
    PeerFullError,
    SwarmKeyError,
    UnreachableError,
)
from protocol.identity import PeerId, short_id
from protocol.transport import Pace, Stream, Transport, at_once

logger = logging.getLogger(__name__)

LOOKUPS_MAX = 4
"""At a time: each holds a thread that nobody can end, and strangers choose the names."""

LOCATIONS_MAX = 4

_FAMILIES = {
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}
_PROTOCOLS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}


async def located(address: Multiaddr, limiter: trio.CapacityLimiter) -> list[Multiaddr]:
    """Where to dial a dialable address: at itself, or at what its name stands for, best first.

    Raises ValueError, saying why, for a name that the system does not know. Cancelled, it leaves a
    thread behind that holds its place in `limiter` until the system answers.
    """
    kind, name = str(address).split("/")[1:3]
    if kind not in _FAMILIES:
        return [address]
    port = int(address.value_for_protocol("tcp"))
    ask = partial(socket.getaddrinfo, name, port, _FAMILIES[kind], socket.SOCK_STREAM)
    try:
        # The stubs that libp2p's dependencies bring predate this argument's name.
        found = await trio.to_thread.run_sync(
            ask,
            abandon_on_cancel=True,  # type: ignore[call-arg]
            limiter=limiter,
        )
    except (OSError, UnicodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ValueError(f"the name {name} does not resolve: {why}") from error
    hosts = dict.fromkeys(
        (_PROTOCOLS[family], str(where[0]).partition("%")[0])
        for family, _, _, _, where in found
        if family in _PROTOCOLS
    )
    return [Multiaddr(f"/{kind}/{host}/tcp/{port}") for kind, host in hosts][:LOCATIONS_MAX]


class CircuitConnection(IRawConnection):
    """Bytes to and from the other end of a circuit, over a stream to the relay.

    They are payload of the streams within, and counted there: for the peer at the other end.
    """

    def __init__(self, stream: Stream, *, is_initiator: bool) -> None:
        assert isinstance(stream, Libp2pStream), "circuits are of this library's streams"
        self.is_initiator = is_initiator
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        """What has arrived, at most `n` bytes; raises ConnectionClosedError at the end."""
        stream = self._stream
        try:
            if stream.num_buffered:
                return await stream.receive_raw(min(stream.num_buffered, n or 1 << 20))
            first = await stream.receive_raw(1)
            rest = min(stream.num_buffered, (n or 1 << 20) - 1)
            return first + await stream.receive_raw(rest) if rest else first
        except NetworkError as error:
            raise ConnectionClosedError(f"the circuit ended: {error}") from error

    async def write(self, data: bytes | memoryview) -> None:
        """Send every byte; raises ConnectionClosedError."""
        try:
            await self._stream.send_raw(data)
        except NetworkError as error:
            raise ConnectionClosedError(f"the circuit ended: {error}") from error

    async def close(self) -> None:
        """End the circuit."""
        with trio.CancelScope(shield=True):
            await self._stream.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Unknown: the relay's says nothing about the other end."""
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        """None: the other end may be anywhere."""
        return []

    def get_connection_type(self) -> ConnectionType:
        """Relayed."""
        return ConnectionType.RELAYED


NO_TURN = "too much else is being dialled"

DIAL_STAGGER_S = 1.0
"""How long an address has for itself before the next is tried beside it. An address of somebody
else's home network swallows packets, and sixteen of those in a row would take over a minute."""


class Dialer:
    """Opens the connections of one transport."""

    def __init__(
        self, transport: Transport, config: TransportConfig, links: Links, network: INetworkService
    ) -> None:
        self._transport = transport
        self._config = config
        self._links = links
        self._network = network
        self._locks: dict[PeerId, trio.Lock] = {}
        self._seconds: dict[PeerId, trio.CancelScope] = {}
        self._named = {*config.named, *map(first_hop, config.named)}
        self._lookups = trio.CapacityLimiter(LOOKUPS_MAX)

    async def connect(self, peer: PeerId, addresses: Sequence[str], pace: Pace = at_once) -> None:
        """See `Libp2pTransport.connect`."""
        if self._links.is_up(peer):
            return
        if peer == self._transport.peer_id:
            raise UnreachableError("that is this node itself")
        async with self._dialling(peer):
            if not self._links.is_up(peer):
                await self._dial_first(peer, addresses, pace)

    async def second(self, peer: PeerId) -> None:
        """One more connection to a peer that we have dialled, for bulk; without it, all share."""
        async with self._dialling(peer):
            links = self._links.of(peer)
            if len(links) != 1 or links[0].has_no_second or not links[0].is_initiator:
                return
            link = links[0]
            link.has_no_second = True
            if link.remote is None or link.is_punched or not link.is_direct:
                return
            host, port = link.remote
            target = Multiaddr(f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}")
            with trio.move_on_after(self._config.dial_timeout_s) as scope:
                self._seconds[peer] = scope
                try:
                    link.has_no_second = await self._dial_target(peer, target) is not None
                finally:
                    del self._seconds[peer]

    def leave(self, peer: PeerId) -> None:
        """Dial no second connection to a peer that is left: it would be connected again."""
        scope = self._seconds.get(peer)
        if scope is not None:
            scope.cancel()

    @asynccontextmanager
    async def _dialling(self, peer: PeerId) -> AsyncIterator[None]:
        """Two callers with the same peer in mind share one connection."""
        lock = self._locks.setdefault(peer, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(peer, None)

    async def _dial_first(self, peer: PeerId, addresses: Sequence[str], pace: Pace) -> None:
        failures: dict[str, str] = {}
        async with trio.open_nursery() as nursery:

            async def attempt(address: str, finished: trio.Event) -> None:
                why = await self._dial(peer, address, pace)
                if why is None:
                    nursery.cancel_scope.cancel()
                    # It may be lost again before anybody looks.
                    why = self._links.lost_reason(peer)
                failures[address] = why
                finished.set()

            for address in dial_order(addresses):
                if not await pace(address):
                    failures[address] = NO_TURN
                    continue
                finished = trio.Event()
                nursery.start_soon(attempt, address, finished)
                with trio.move_on_after(DIAL_STAGGER_S):
                    await finished.wait()
        if not self._links.is_up(peer):
            tried = "; ".join(f"{address!r}: {why}" for address, why in failures.items())
            is_keyless = not WRONG_KEY.isdisjoint(failures.values())
            kind = SwarmKeyError if is_keyless else UnreachableError
            if FULL in failures.values():
                kind = PeerFullError
            raise kind(f"{short_id(peer)}: {tried or 'no address known'}")

    async def _dial(self, peer: PeerId, address: str, pace: Pace) -> str | None:
        """Why it failed, or None. Its turn is there; a name may lead to more addresses."""
        why: str | None = None
        try:
            with trio.fail_after(self._config.dial_timeout_s):
                circuit = parse_circuit(address)
                if circuit is not None:
                    return await self._dial_circuit(peer, circuit)
                for number, target in enumerate(await located(dialable(address), self._lookups)):
                    if number and not await pace(address):
                        return NO_TURN
                    # Behind the name: that may lead anywhere.
                    why = self._why_barred(address, target) or await self._dial_target(peer, target)
                    if why is None:
                        break
        except (ValueError, PeerError, NetworkError) as error:
            return str(error)
        except trio.TooSlowError:
            return f"no answer within {self._config.dial_timeout_s} s"
        return why

    def _why_barred(self, address: str, target: Multiaddr) -> str | None:
        """Strangers do not have us knock at services of this machine, or of those beside it."""
        said = (str(target),)
        if address in self._named or may_be_dialled(said, self._transport.addresses()):
            return None
        return (
            f"{target} is not dialled because others say so: a service of this machine or network"
        )

    async def _dial_target(self, peer: PeerId, target: Multiaddr) -> str | None:
        try:
            # Not `host.connect`: that one tries a single address, waits a quarter of a second
            # first, and after a failure refuses the peer for a minute.
            await self._network.dial_addr(target, library_id(peer))
        except BaseLibp2pError as error:
            return root_message(error)
        return None

    async def _dial_circuit(self, peer: PeerId, circuit: Circuit) -> str | None:
        await self.connect(circuit.relay, (circuit.address,))
        stream = await join_circuit(self._transport, circuit.relay, peer)
        raw = CircuitConnection(stream, is_initiator=True)
        is_up = False
        try:
            await self._network.upgrade_outbound_raw_conn(raw, library_id(peer))
            is_up = True
        except BAD_BYTES as error:
            return root_message(error)
        finally:
            if not is_up:
                await raw.close()
        return None
