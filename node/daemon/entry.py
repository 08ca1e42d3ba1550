"""How a node enters its run: the peers that the user named, and those of earlier starts."""

import logging
from collections.abc import Sequence

import trio

from dht.directory import KademliaDirectory
from dht.kademlia.routing import Contact
from dht.reaching.dials import DialFor, TurnWish
from node.daemon.assembly import Node
from node.peers.links import Links
from node.peers.listening import full_addresses
from node.peers.neighbours import LAN_S, Neighbours
from node.state.config import parse_peer_address
from node.state.folder import KNOWN_PEERS_FILE
from node.state.known_peers import read_known_peers, read_table
from protocol import limits
from protocol.errors import NetworkError, UnreachableError
from protocol.identity import PeerId
from protocol.transport import Transport

logger = logging.getLogger(__name__)

DIAL_S = 8.0
"""For all addresses of one peer that is asked first."""


TABLE_MAX = 8
"""Of the last start's table, how many are asked besides the peers of this run."""

ALONE_S = 30.0
"""Without a link to a peer of the run, a newcomer is told that it has been told the wrong ones."""

KNOWN_AT_ONCE_MAX = 16
"""Of the peers of earlier starts, how many are asked at once; the others are dialled in turn."""

GRACE_S = 1.0
"""For the others once one peer is reached."""


class FirstPeers:
    """The first peers of a start: those that the user named, and those of earlier starts."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        directory: KademliaDirectory,
        links: Links,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._neighbours = neighbours
        self._me = node.signer.peer_id
        self._log = node.log
        self._waits = node.waits_for_peers
        self._founder = node.signed.manifest.founder
        self._transport = transport
        self._directory = directory
        self._links = links
        self._named = [parse_peer_address(text) for text in node.config.bootstrap]
        known = read_known_peers(node.config.state / KNOWN_PEERS_FILE)
        self._known = known.addresses(node.signed.manifest.digest)
        # Peers of whatever run: a way into the DHT where those of this one are gone.
        self._table = read_table(node.config.state)[:TABLE_MAX]

    async def enter(self) -> None:
        """Ask them. Raises UnreachableError, with every address, if named ones and none answers,
        where nobody is there who would rather wait for them."""
        tried = await self.knock()
        if tried and self._named:
            if self._neighbours is not None and await self._neighbours.met(LAN_S):
                return
            lines = "\n".join(tried)
            if self._waits:
                text = f"no peer answers yet; they are tried until Ctrl+C:\n{lines}"
                self._log.emit("warning", key="entry", text=text)
                return
            raise UnreachableError(
                f"no bootstrap peer answered:\n{lines}\nare they running, and in reach from here?"
            )

    async def knock(self) -> list[str]:
        """Ask them; if none answered, a line for each that says why, else nothing."""
        peers: dict[PeerId, list[str]] = {}
        named = {one.peer for one in self._named}
        for one in (*self._named, *self._known):
            if one.peer != self._me:
                # Whoever was linked once has said itself where it listens, and may say anything.
                self._links.know(one, is_chosen=one.peer in named)
                if one.peer not in peers and len(peers) - len(named) >= KNOWN_AT_ONCE_MAX:
                    continue
                addresses = peers.setdefault(one.peer, [])
                if one.address not in addresses:
                    addresses.append(one.address)
        if not peers:
            if self._me != self._founder:
                logger.warning("no address of a peer is known: waiting for peers to find this node")
            return []
        failures: dict[PeerId, str] = {}
        async with trio.open_nursery() as nursery:
            for peer, addresses in peers.items():
                nursery.start_soon(self._dial, peer, addresses, failures, nursery.cancel_scope)
        contacts = [
            Contact(peer, tuple(addresses[: limits.DHT_ADDRESSES_PER_CONTACT_MAX]))
            for peer, addresses in peers.items()
        ]
        others = [contact for contact in self._table if contact.peer not in peers]
        if await self._directory.join([*contacts, *others]):
            return []
        reasons = {peer: failures.get(peer, "it does not answer") for peer in peers}
        tried = [
            f"  {', '.join(full_addresses(peer, addresses))}: {reasons[peer]}"
            for peer, addresses in peers.items()
        ]
        logger.warning("no first peer answers; they are tried again and again")
        return tried

    async def _dial(
        self,
        peer: PeerId,
        addresses: Sequence[str],
        failures: dict[PeerId, str],
        all_dials: trio.CancelScope,
    ) -> None:
        failures[peer] = f"no answer within {DIAL_S:.0f} s"
        memory = self._links.memory
        try:
            with trio.move_on_after(DIAL_S) as patience:
                pace = memory.pace(patience, TurnWish(DialFor.RUN))
                await self._transport.connect(peer, addresses, pace)
                del failures[peer]
                # The others are tried again by the directory: nobody waits long for the dead.
                all_dials.deadline = min(all_dials.deadline, trio.current_time() + GRACE_S)
        except NetworkError as error:
            failures[peer] = str(error)
        finally:
            at, connected = self._transport.dialled(peer), self._transport.connected()
            memory.note_outcome(addresses, at, connected, trio.current_time())

    async def watch_company(self) -> None:
        """Tell a newcomer that all whom it was told of are others than it was told."""
        with trio.move_on_after(ALONE_S) as patience:
            await self._links.met.wait()
        if not patience.cancelled_caught:
            return
        named = {one.peer for one in (*self._named, *self._known)} - {self._me}
        connected = named.intersection(self._transport.connected())
        num, num_there = len(named), len(connected)
        who = "the peer" if num == 1 else f"none of the {num} peers"
        verb = "is not" if num == 1 else "is"
        text = (
            f"{who} that this node was told of {verb} of this run ({num_there} of {num} answer): "
            "ask whoever invited you for another link. It trains nothing until it meets a peer "
            "of the run, and goes on looking for one"
        )
        logger.warning("no peer of this run named=%d there=%d", num, num_there)
        self._log.emit("warning", key="company", text=text)
        await self._links.met.wait()
        self._log.emit("warning", key="company", text="")

    async def watch_refusals(self) -> None:
        """Raise why, once all peers that we can ask have refused us, and nobody is linked.

        A node that was told nobody waits for its known peers, whatever they train now.
        """
        changes = 0
        while self._named:
            changes = await self._links.links_changed(changes)
            asked = dict.fromkeys(one.peer for one in (*self._named, *self._known))
            refusals = [self._links.refusal(peer) for peer in asked if peer != self._me]
            if self._links.linked() or not all(refusals):
                continue
            for refusal in filter(None, refusals):
                raise refusal
