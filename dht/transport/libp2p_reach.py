"""How others reach this node: its own addresses, what others find out of them, relays, holes."""

import ipaddress
import logging

import trio
from libp2p.host.basic_host import BasicHost
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.swarm import Swarm
from libp2p.transport.tcp.tcp import TCP
from multiaddr import Multiaddr

from dht.reaching.circuits import is_public
from dht.reaching.dial_back import GIVE_UP_LEAD, told_addresses
from dht.reaching.dial_back_client import DialBackClient
from dht.reaching.dial_back_server import DialBackServer
from dht.reaching.gone import host_and_port
from dht.reaching.port_mapper import PortMapper
from dht.reaching.relay_client import Places
from dht.reaching.routers import NatPmp, Upnp, gateways
from dht.transport.libp2p_host import TransportConfig, library_id, plain_addresses
from dht.transport.libp2p_inbound import BAD_BYTES
from dht.transport.libp2p_links import Links
from dht.transport.libp2p_punching import Puncher
from dht.transport.libp2p_stream import root_message
from protocol.identity import PeerId, short_id
from protocol.transport import Transport

logger = logging.getLogger(__name__)

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
