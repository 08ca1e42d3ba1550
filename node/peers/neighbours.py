"""The nodes of one's own network, found without being told of any: an origin among the others.

Those of the same run are peers to dial. Those in no run (bootstrap nodes) are a way into the DHT.
Those of other runs are left alone.
"""

import ipaddress
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from dht.directory import KademliaDirectory
from dht.kademlia.routing import Contact
from dht.reaching.lan import PEERS_MAX, Lan, LanPeer, Told, run_tag
from node.state.config import NodeConfig, PeerAddress
from protocol import limits
from protocol.identity import PeerId

logger = logging.getLogger(__name__)

LAN_S = 2.5
"""For the answers of one's own network, which come within tenths of a second."""


def says_so(config: NodeConfig) -> bool:
    """Whether a node tells its own network that it is there, and asks who else is.

    In a private swarm never: mDNS tells everybody.
    """
    is_alone = ipaddress.ip_address(config.listen_host).is_loopback
    return config.has_mdns and config.psk is None and not is_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """What of a node the neighbours are told, and what theirs is told to."""

    me: PeerId
    addresses: Callable[[], Sequence[str]]
    run: bytes = b""
    """The digest of the node's run; empty if it is in none."""

    know: Callable[[PeerAddress], None] = lambda _: None
    """Hears of the peers of the same run."""


class Neighbours:
    """One node's own network. `run` it in a nursery."""

    def __init__(self, around: Neighbourhood, directory: KademliaDirectory) -> None:
        self._around = around
        self._directory = directory
        self._tag = run_tag(around.run) if around.run else ""
        self._found_in, self._found = trio.open_memory_channel[LanPeer](PEERS_MAX)
        self._met = trio.Event()
        told = Told(me=around.me, tag=self._tag, addresses=around.addresses)
        self._lan = Lan(self._note, told=told)

    async def met(self, within_s: float) -> bool:
        """Whether a node of this network answers by then."""
        with trio.move_on_after(within_s):
            await self._met.wait()
        return self._met.is_set()

    async def run(self) -> None:
        """Tell, listen, and enter the DHT through whom there is, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lan.run)
            async for one in self._found:
                if await self._directory.join([Contact(one.peer, one.addresses)]):
                    self._met.set()

    def _note(self, one: LanPeer) -> None:
        if one.tag not in ("", self._tag):
            return
        if one.tag:
            for address in one.addresses:
                self._around.know(PeerAddress(one.peer, address))
        try:
            self._found_in.send_nowait(one)
        except trio.WouldBlock:
            logger.debug("a neighbour too many")


async def look_around(run: bytes) -> tuple[PeerAddress, ...]:
    """The nodes of a run on this network, for whom no other address leads anywhere.

    Only asks: nothing is told of this machine.
    """
    tag, found = run_tag(run), list[PeerAddress]()
    is_found = trio.Event()

    def note(one: LanPeer) -> None:
        if one.tag == tag and len(found) < limits.ADDRESSES_PER_PEER_MAX:
            found.extend(PeerAddress(one.peer, address) for address in one.addresses)
            is_found.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(Lan(note).run)
        with trio.move_on_after(LAN_S):
            await is_found.wait()
        nursery.cancel_scope.cancel()
    return tuple(found)
