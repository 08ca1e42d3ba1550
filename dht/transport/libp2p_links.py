"""Which peers are connected, known at once and from our own sockets.

The library says that a connection is gone a fifth of a second after it closed it, or never if its
closing was cancelled. So a peer counts as connected from the moment the library has taken its
connection into use until our `Link` below it is lost.
"""

import logging
import weakref
from collections.abc import Callable

import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee, IRawConnection
from multiaddr import Multiaddr

from dht.reaching.circuits import is_public
from dht.reaching.gone import Reached
from dht.transport.libp2p_link import Link, Spawn
from dht.transport.libp2p_security import link_of
from protocol.identity import PeerId, short_id

logger = logging.getLogger(__name__)

EVENTS_MAX = 4096
"""Events that a subscriber may leave unread: ten per connection allowed by default."""

LOOKS_EVERY_S = 0.25
"""How often it is asked whether something waits for bytes that a line has become too slow for."""

REACHED_MAX = 1024
"""Peers of whom it is kept where the last connection led."""

OnGone = Callable[[Link], None]

ConnectionEvent = tuple[PeerId, bool]
"""A peer, and whether it is connected from now on."""


class Links(INotifee):
    """The connections of one transport. Registered with the library as the one to be notified."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._all: weakref.WeakSet[Link] = weakref.WeakSet()
        self._up: dict[PeerId, dict[Link, None]] = {}
        self._reached: dict[PeerId, Reached] = {}
        self._risen = trio.Event()
        self._patient = trio.Event()
        """Set while a reader may wait for more than the next byte."""
        self._subscribers: list[trio.MemorySendChannel[ConnectionEvent]] = []
        self._lost_reasons: dict[PeerId, str] = {}
        self.on_gone: OnGone = lambda _: None
        """Hears of each link that is lost, also in the middle of a handshake."""

    def open(self, raw: IRawConnection) -> Link:
        """Wrap a connection before its handshake."""
        link = Link(raw, spawn=self._spawn, on_lost=self._lose)
        link.on_patient = self._set_patient
        self._all.add(link)
        return link

    def _set_patient(self) -> None:
        self._patient.set()

    def peers(self) -> tuple[PeerId, ...]:
        """The connected peers in ascending order."""
        return tuple(sorted(self._up))

    def is_up(self, peer: PeerId) -> bool:
        """Whether `peer` is connected."""
        return peer in self._up

    def of(self, peer: PeerId) -> tuple[Link, ...]:
        """The links in use to `peer`, the oldest first."""
        return tuple(self._up.get(peer, ()))

    def is_direct(self, peer: PeerId) -> bool:
        """Whether one of the connections to `peer` leads through no relay."""
        return any(link.is_direct for link in self.of(peer))

    async def until_direct(self, peer: PeerId) -> None:
        """Until one of the connections to `peer` leads through no relay."""
        while not self.is_direct(peer):
            await self._risen.wait()

    def dialled(self, peer: PeerId) -> str:
        """The address at which we have dialled a connected peer, directly; or nothing."""
        ours = (one.remote for one in self.of(peer) if one.is_initiator and not one.is_punched)
        return next((_address(*remote) for remote in ours if remote is not None), "")

    def has_dialled(self, peer: PeerId) -> bool | None:
        """Whether we made the connections to `peer`; None if some of them, or there is none."""
        makers = {link.is_initiator for link in self.of(peer)}
        return makers.pop() if len(makers) == 1 else None

    def seen(self, peer: PeerId) -> str:
        """The address that a connected peer comes from, whoever dialled; or nothing."""
        remotes = (one.remote for one in self.of(peer))
        return next((_address(*remote) for remote in remotes if remote is not None), "")

    def path(self, peer: PeerId, *, is_listed: bool) -> str:
        """The word for how a peer is reached; nothing without a connection.

        `is_listed`: whether this machine itself has a public address. Who comes from the internet
        to one that has none came by a port that a router maps to it.
        """
        links = self.of(peer)
        direct = [one for one in links if one.is_direct]
        if not direct:
            return "relayed" if links else ""
        one = direct[0]
        if one.is_punched:
            return "punched"
        if one.remote is not None and not is_public(_address(*one.remote)):
            return "LAN"
        return "direct" if is_listed or one.is_initiator else "mapped"

    def everything(self) -> tuple[Link, ...]:
        """Every link, also those in the middle of a handshake."""
        return tuple(self._all)

    async def keep_awake(self) -> None:
        """Have no reader wait long for the rest of what is due; see `Link.wake_sooner`."""
        while True:
            await self._patient.wait()
            await trio.sleep(LOOKS_EVERY_S)
            self._patient = trio.Event()
            if [link for link in self.everything() if link.wake_sooner()]:
                self._patient.set()

    def mark_up(self, link: Link) -> None:
        """The library uses this link. Called by whoever notices first; again, it does nothing."""
        if link.is_up or link.lost.is_set() or link.peer is None:
            return
        link.is_up = True
        links = self._up.setdefault(link.peer, {})
        links[link] = None
        self._risen.set()
        self._risen = trio.Event()
        if len(links) == 1:
            logger.debug("peer connected peer=%s", short_id(link.peer))
            self._tell(link.peer, up=True)

    def _lose(self, link: Link) -> None:
        self.on_gone(link)
        if link.peer is not None:
            self._lost_reasons.pop(link.peer, None)
            while len(self._lost_reasons) >= REACHED_MAX:
                del self._lost_reasons[next(iter(self._lost_reasons))]
            self._lost_reasons[link.peer] = link.lost_reason
        self.mark_down(link)

    def lost_reason(self, peer: PeerId) -> str:
        """Why the last connection to a peer was lost, if it is remembered."""
        return self._lost_reasons.get(peer, "")

    def mark_down(self, link: Link) -> None:
        """The link is lost, or about to be closed by us."""
        if not link.is_up or link.peer is None:
            return
        link.is_up = False
        links = self._up[link.peer]
        links.pop(link, None)
        self._remember(link, link.peer)
        if not links:
            del self._up[link.peer]
            logger.debug("peer gone peer=%s reason=%s", short_id(link.peer), link.lost_reason)
            self._tell(link.peer, up=False)

    def _remember(self, link: Link, peer: PeerId) -> None:
        self._reached.pop(peer, None)
        while len(self._reached) >= REACHED_MAX:
            del self._reached[next(iter(self._reached))]
        if link.remote is not None:
            self._reached[peer] = Reached(*link.remote, is_ours=link.is_initiator)

    def reached(self, peer: PeerId) -> Reached | None:
        """Where the last connection to a peer led that is lost; None if it is forgotten."""
        return self._reached.get(peer)

    def events(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        """A new subscription. It starts with the peers that are connected already."""
        send, receive = trio.open_memory_channel[ConnectionEvent](EVENTS_MAX)
        for peer in self.peers():
            send.send_nowait((peer, True))
        self._subscribers.append(send)
        return receive

    def _tell(self, peer: PeerId, *, up: bool) -> None:
        for send in tuple(self._subscribers):
            try:
                send.send_nowait((peer, up))
            except trio.WouldBlock:
                logger.warning("subscriber dropped reason=%s events unread", EVENTS_MAX)
                self._drop(send)
            except trio.BrokenResourceError:
                self._drop(send)

    def _drop(self, send: trio.MemorySendChannel[ConnectionEvent]) -> None:
        self._subscribers.remove(send)
        send.close()

    def close_events(self) -> None:
        """End every subscription: its reader gets the remaining events, then the end."""
        for send in tuple(self._subscribers):
            self._drop(send)

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        """The library has a new connection, either way."""
        link = link_of(conn.muxed_conn)
        if link is not None:
            link.muxed = conn.muxed_conn
            self.mark_up(link)

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        """The library has closed a connection; a relayed one may have no other sign."""
        link = link_of(conn.muxed_conn)
        if link is not None:
            link.lose("closed by libp2p")

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        """Not of interest."""

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        """Not of interest."""

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Not of interest."""

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        """Not of interest."""


def _address(host: str, port: int) -> str:
    return f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"
