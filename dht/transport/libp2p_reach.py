"""How others reach this node: its own addresses, what others find out of them, relays, holes.

Direct connections beside relayed ones are opened by both ends at one moment: a punch.
"""

import ipaddress
import logging

import trio
from libp2p.abc import INetworkService
from libp2p.host.basic_host import BasicHost
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from dht.reaching.addresses import host_and_port, is_public
from dht.reaching.dial_back import GIVE_UP_LEAD, DialBackClient, DialBackServer, told_addresses
from dht.reaching.punching import (
    FIRST_WAIT_S,
    PUNCH_FRAMES,
    PUNCH_PROTOCOL,
    TRIES,
    TRY_S,
    Due,
    Go,
    Offer,
    mapped_addresses,
    targets,
)
from dht.reaching.relay_client import Places
from dht.reaching.routers import NatPmp, PortMapper, Upnp, gateways
from dht.transport.libp2p_host import TransportConfig, library_id, plain_addresses
from dht.transport.libp2p_inbound import BAD_BYTES
from dht.transport.libp2p_link import Links, link_of
from dht.transport.libp2p_stream import root_message
from protocol.errors import DecodeError, NetworkError, PeerError, RefusedError
from protocol.identity import PeerId, short_id
from protocol.transport import Stream, Transport

logger = logging.getLogger(__name__)

PUNCH_LOOK_S = 0.25
SIGNAL_S = 10.0
SERVED_MAX = 16
"""Peers that may have us send packets at one time."""

_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - where this node listens already

_NOWHERE = Multiaddr("/ip4/0.0.0.0/tcp/0")


class Puncher:
    """Tries to reach directly whoever is connected through a relay. `run` it in a nursery.

    Of two peers the one with the lower id begins; it is also the client of the handshake, for in a
    connection that both have opened somebody has to be.
    """

    def __init__(
        self, transport: Transport, links: Links, places: Places, network: INetworkService
    ) -> None:
        self._transport = transport
        self._links = links
        self._places = places
        self._network = network
        self._source: tuple[str, int] | None = None
        self._due: dict[PeerId, Due] = {}
        self._served: set[PeerId] = set()
        self._nursery: trio.Nursery | None = None
        transport.serve(PUNCH_PROTOCOL, self.accept)

    async def run(self, host: str, port: int) -> None:
        """Punch from where this node listens, until cancelled."""
        self._source = (host, port)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                self._look(nursery)
                await trio.sleep(PUNCH_LOOK_S)

    def _look(self, nursery: trio.Nursery) -> None:
        now_s = trio.current_time()
        relayed = {peer for peer in self._links.peers() if self._is_relayed(peer)}
        ours = {peer for peer in relayed if self._transport.peer_id < peer}
        self._due = {peer: due for peer, due in self._due.items() if peer in ours}
        for peer in ours:
            due = self._due.setdefault(peer, Due(now_s + FIRST_WAIT_S))
            # Who has no relay of its own is not known to come from anywhere.
            if now_s >= due.at_s and self._places.seen():
                due.postpone(now_s)
                nursery.start_soon(self._begin, peer)

    def _is_relayed(self, peer: PeerId) -> bool:
        return self._links.is_up(peer) and not self._links.is_direct(peer)

    def _offer(self) -> Offer:
        port = self._source[1] if self._source else 0
        return Offer(mapped_addresses(self._places.seen(), port))

    # Who begins ----------------------------------------------------------------------------------

    async def _begin(self, peer: PeerId) -> None:
        try:
            stream = await self._transport.open_stream(peer, PUNCH_PROTOCOL)
        except NetworkError as error:
            logger.debug("no punch peer=%s reason=%s", short_id(peer), error)
            return
        try:
            for number in range(TRIES):
                if not self._is_relayed(peer):
                    break
                await self._try(stream, number)
        except (PeerError, NetworkError, trio.TooSlowError) as error:
            logger.debug("no punch peer=%s reason=%r", short_id(peer), error)
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
        logger.info("punch peer=%s direct=%s", short_id(peer), self._links.is_direct(peer))

    async def _try(self, stream: Stream, number: int) -> None:
        with trio.fail_after(SIGNAL_S):
            asked_s = trio.current_time()
            await PUNCH_FRAMES.send(stream, self._offer())
            theirs = await _hear_offer(stream)
            there_and_back_s = trio.current_time() - asked_s
            await PUNCH_FRAMES.send(stream, Go())
            # The client's packet is to be first: where the other's meets an open door instead of
            # a packet, a listener answers it, and both ends are servers. But some routers answer
            # a packet out of the blue with a refusal, so in between both go at the same moment.
            await trio.sleep(there_and_back_s / 2 * (number % 2))
        await self._punch(stream.peer, theirs, is_client=True)

    # Who answers ---------------------------------------------------------------------------------

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound streams. Raises PeerError, NetworkError."""
        peer = stream.peer
        if peer in self._served or len(self._served) >= SERVED_MAX:
            return
        if not peer < self._transport.peer_id:
            raise RefusedError("the peer with the lower id begins a punch")
        self._served.add(peer)
        try:
            for _ in range(TRIES):
                if not self._is_relayed(peer):
                    return
                with trio.fail_after(SIGNAL_S):
                    theirs = await _hear_offer(stream)
                    await PUNCH_FRAMES.send(stream, self._offer())
                    if not isinstance(await PUNCH_FRAMES.receive(stream), Go):
                        raise DecodeError("an offer where the start belongs")
                await self._punch(peer, theirs, is_client=False)
        except trio.TooSlowError:
            logger.debug("punch given up peer=%s", short_id(peer))
        finally:
            self._served.discard(peer)

    # Both ----------------------------------------------------------------------------------------

    async def _punch(self, peer: PeerId, theirs: Offer, *, is_client: bool) -> None:
        """Send packets until there is a direct connection, or the time of this try is over."""
        with trio.move_on_after(TRY_S):
            async with trio.open_nursery() as nursery:
                for address in targets(theirs):
                    nursery.start_soon(self._dial, peer, address, is_client)
                await self._links.until_direct(peer)
                nursery.cancel_scope.cancel()

    async def _dial(self, peer: PeerId, address: str, is_client: bool) -> None:
        try:
            dialled = await TCP().dial_with_source(Multiaddr(address), self._from(address))
        except BAD_BYTES as error:
            logger.debug("punch failed peer=%s reason=%s", short_id(peer), root_message(error))
            return
        assert isinstance(dialled, RawConnection)
        raw = RawConnection(dialled.stream, is_client)
        if self._nursery is not None:
            # Not in the try's own nursery, which ends as soon as there is a connection.
            self._nursery.start_soon(self._shake_hands, peer, raw)

    def _from(self, address: str) -> tuple[str, int]:
        """Where this node listens, in the family of the address."""
        host, port = self._source or ("", 0)
        if host not in _ANYWHERE:
            return host, port
        return _ANYWHERE[address.startswith("/ip6/")], port

    async def _shake_hands(self, peer: PeerId, raw: RawConnection) -> None:
        try:
            if raw.is_initiator:
                conn = await self._network.upgrade_outbound_raw_conn(raw, library_id(peer))
                link = link_of(getattr(conn, "muxed_conn", None))
                if link is not None:
                    link.is_punched = True
            else:
                # Returns when the connection is gone.
                await self._network.upgrade_inbound_raw_conn(raw, _NOWHERE)
        except BAD_BYTES as error:
            logger.debug("punch failed peer=%s reason=%s", short_id(peer), root_message(error))


async def _hear_offer(stream: Stream) -> Offer:
    signal = await PUNCH_FRAMES.receive(stream)
    if not isinstance(signal, Offer):
        raise DecodeError("a start without an offer")
    return signal


# The ways to one node ---------------------------------------------------------------------------

LOOK_S = 2.0
"""How old the list of this machine's addresses may be: making it takes some of the time of a
message, and each message has it. So soon is a change of the network seen."""

OWN_ADDRESSES_MAX = 6
"""That are told. Records have room for eight, and those that lead through relays come last."""


class Reach:
    """The ways to one node. `run` it in a nursery."""

    def __init__(
        self, transport: Transport, config: TransportConfig, links: Links, host: BasicHost
    ) -> None:
        self._config = config
        self._links = links
        self._host = host
        self._own: tuple[str, ...] = ()
        self._looked_s = float("-inf")
        self._changed = trio.Event()
        self.places = Places(transport, listens=self._listens, is_wanted=self.needs_relay)
        network = host.get_network()
        self._puncher = Puncher(transport, links, self.places, network)
        self.dial_back = DialBackClient(transport, observers=self._observers, ports=self._ports)
        routers = (NatPmp(lambda: gateways(self._home_hosts())), Upnp())
        self.port_mapper = PortMapper(routers, is_wanted=self._is_behind_router)
        DialBackServer(transport, seen=self._seen_directly, knock=self._knock)

    # What others are told ------------------------------------------------------------------------

    def addresses(self) -> tuple[str, ...]:
        """Where others may dial us; those that lead through relays last."""
        return (*self._told(), *self.places.addresses())

    def is_listed(self) -> bool:
        """Whether this machine itself has a public address."""
        return any(map(is_public, self._own_addresses()))

    def is_proved(self) -> bool:
        """Whether others have found us at a public address that we tell."""
        return not set(self._told()).isdisjoint(self.dial_back.proved())

    def needs_relay(self) -> bool:
        """Whether nobody elsewhere can dial us, as far as is known."""
        if self._config.announce or not self._own_addresses():
            return False
        return not any(map(is_public, set(self._told()).difference(self.dial_back.refuted())))

    async def changed(self) -> None:
        """Until others may be told other addresses."""
        async with trio.open_nursery() as nursery:

            async def wait(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait, self._changed)
            nursery.start_soon(wait, self.places.change)
            nursery.start_soon(wait, self.dial_back.change)
            nursery.start_soon(wait, self.port_mapper.change)

    def _own_addresses(self) -> tuple[str, ...]:
        now_s = trio.current_time()
        if now_s - self._looked_s >= LOOK_S or not self._own:
            before, self._own = self._own, plain_addresses(self._host.get_addrs())
            self._looked_s = now_s
            if before and before != self._own:
                logger.info("network changed addresses=%s", ",".join(self._own))
                self.dial_back.start_over()
                self.places.start_over()
                self.port_mapper.start_over()
                self._changed.set()
                self._changed = trio.Event()
        return self._own

    def _told(self) -> tuple[str, ...]:
        own = self._own_addresses()
        if self._config.announce:
            return own[:OWN_ADDRESSES_MAX]
        # What the router says counts until others say something else.
        mapped = self.port_mapper.address()
        proved = (*self.dial_back.proved(), *([mapped] if mapped else []))
        refuted = self.dial_back.refuted(lead=GIVE_UP_LEAD)
        return told_addresses(own, proved=proved, refuted=refuted, num_max=OWN_ADDRESSES_MAX)

    # What is done for it -------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep places at relays where this node needs some, make relayed connections direct, have
        ourselves dialled back, and look for changes of the network. Runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.places.run)
            nursery.start_soon(self._puncher.run, self._config.listen_host, self._port())
            nursery.start_soon(self.dial_back.run)
            if self._config.has_port_mapping:
                nursery.start_soon(self.port_mapper.run, self._port())
            while True:
                await trio.sleep(LOOK_S)
                self._own_addresses()

    def _port(self) -> int:
        return int(self._host.get_transport_addrs()[0].value_for_protocol("tcp"))

    def _ports(self) -> tuple[int, ...]:
        """Where others may reach us from outside: the port on which we listen, unless the user
        names another."""
        named = (host_and_port(one) for one in self._config.announce)
        ports = [place[1] for place in named if place is not None]
        mapped = host_and_port(self.port_mapper.address())
        if mapped is not None:
            ports.append(mapped[1])
        return tuple(dict.fromkeys(ports))[:2] or (self._port(),)

    def _is_behind_router(self) -> bool:
        return not self._config.announce and not self.is_listed() and bool(self._home_hosts())

    def _home_hosts(self) -> tuple[str, ...]:
        """This machine's IPv4 addresses in a home's network."""
        places = (host_and_port(one) for one in self._own_addresses())
        hosts = (place[0] for place in places if place is not None and ":" not in place[0])
        return tuple(host for host in hosts if not ipaddress.ip_address(host).is_loopback)

    def _listens(self, peer: PeerId) -> str:
        address = self._links.dialled(peer)
        return address if is_public(address) else ""

    def _observers(self) -> dict[PeerId, str]:
        seen = {peer: self._seen_directly(peer) for peer in self._links.peers()}
        return {peer: address for peer, address in seen.items() if is_public(address)}

    def _seen_directly(self, peer: PeerId) -> str:
        return self._links.seen(peer) if self._links.is_direct(peer) else ""

    async def _knock(self, peer: PeerId, address: str) -> bool:
        """See `dial_back_server.Knock`. Ends with the security handshake: no connection is made."""
        network = self._host.get_network()
        assert isinstance(network, Swarm)
        raw: RawConnection | None = None
        try:
            dialled = await TCP().dial(Multiaddr(address))
            assert isinstance(dialled, RawConnection)
            raw = dialled
            await network.upgrader.upgrade_security(raw, True, library_id(peer))
        except BAD_BYTES as error:
            logger.debug("no answer peer=%s reason=%s", short_id(peer), root_message(error))
            return False
        finally:
            if raw is not None:
                with trio.CancelScope(shield=True):
                    await raw.close()
        return True
