"""The connections to peers, below encryption, and which of them are up.

A `Link` mends a write that is cancelled half-way. It would leave half a record on the wire, after
which the other end can decrypt nothing: one caller's time-out would end every stream of the
connection. Here the rest of such a record is sent in the background. `Links` is what the transport
and its node know of all of them: who is connected, and how it is reached.
"""

import ipaddress
import logging
import os
import sys
import weakref
from collections.abc import Awaitable, Callable
from socket import AF_INET, AF_INET6, SO_RCVLOWAT, SOL_SOCKET

import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, INetwork, INotifee, IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from multiaddr import Multiaddr

from dht.reaching.addresses import Reached, is_public
from dht.reaching.inbound_places import Guest
from protocol import limits
from protocol.identity import PeerId, short_id

logger = logging.getLogger(__name__)

READ_AHEAD_BYTES = 512 * limits.KIB
READ_BYTES_START = 16 * limits.KIB
"""One read of the socket, of which there are two to a cell. More leaves a core's cache before it is
decrypted, and is held per connection."""

WOKEN_LATER_S = 0.005
WOKEN_BYTES_MIN = 64 * limits.KIB
"""What is on its way, and comes within so long, is waited for together. Less is not worth asking
the system for."""

WOKEN_LATEST_S = 0.1
"""What has not come within so long was not on its way: the line is not as fast as it was."""

_IS_WOKEN_LATER = sys.platform == "linux"
"""Whether a socket that waits for more (SO_RCVLOWAT) is not readable before."""

UNYIELDED_BYTES_MAX = 512 * limits.KIB
UNYIELDED_BYTES_A_WRITE = 16 * limits.KIB
"""What the system takes at once goes without a step of the loop, but not for ever: each write
counts for so much beyond its bytes."""

_HAS_VECTORS = hasattr(os, "readv")
"""Whether sockets are files, as everywhere but on Windows. trio's own calls yield each time."""

BACKLOG_BYTES_MAX = 4 * limits.MIB
"""Records of cancelled writes that wait for the socket: 64 full ones, then the peer is gone."""

Task = Callable[[], Awaitable[None]]
Spawn = Callable[[Task], None]
"""Run this in the background until it ends or the transport closes."""


class KnockingStream(TrioTCPStream):
    """The socket of somebody who has connected, and what it has said so far."""

    def __init__(self, stream: trio.SocketStream, guest: Guest) -> None:
        super().__init__(stream)
        self.guest = guest

    async def read(self, n: int | None = None) -> bytes:
        """As the library's."""
        data = await super().read(n)
        self.guest.num_bytes += len(data)
        self.guest.heard_s = trio.current_time()
        return data

    def lose(self, reason: str) -> None:
        """Close it now, whoever reads of it."""
        del reason
        self.stream.socket.close()


class Link(IRawConnection):
    """One connection to a peer, below Noise. Tells at once when it is lost.

    `on_lost` is called exactly once, synchronously, as soon as either end has closed or the
    network has failed; the library itself takes a fifth of a second to say so.
    """

    peer: PeerId | None = None
    muxed: IMuxedConn | None = None
    is_up = False
    """Whether the library has taken the connection into use; kept by the transport."""

    has_no_second = False
    """Whether the other end did not take one more connection for bulk; kept by the transport."""

    is_punched = False
    """Whether both ends opened it together: nobody else can dial that address."""

    num_inbound = 0
    """Streams of the peer's that are served; kept by the transport."""

    guest: Guest | None = None
    """Whose place it holds, if the listener took it."""

    on_patient: Callable[[], None] = staticmethod(lambda: None)
    """Called where this end waits for more than the next byte: `wake_sooner` is due a little later;
    set by the transport."""

    def __init__(
        self, raw: IRawConnection, *, spawn: Spawn, on_lost: Callable[["Link"], None]
    ) -> None:
        self.is_initiator = raw.is_initiator
        if isinstance(raw, RawConnection) and isinstance(raw.stream, KnockingStream):
            self.guest = raw.stream.guest
        self.remote = _remote_of(raw)  # A closed socket would not know.
        self.lost = trio.Event()
        self.lost_reason = ""
        self._raw = raw
        self._spawn = spawn
        self._on_lost = on_lost
        self._socket = _socket_of(raw)
        self._ahead = b""
        self._ahead_start = 0
        self._place = bytearray(0)
        """Where `arrived` reads to. Most links never need a large one."""
        self._is_full = True
        self._woken_bytes = 1
        self._is_woken_later = _IS_WOKEN_LATER
        self._read_s = trio.current_time()
        self._soon_bytes = 0
        """As many as come within `WOKEN_LATER_S`, by the last read that says it."""
        self._unyielded_bytes = 0
        self._backlog: list[tuple[memoryview, trio.Event]] = []
        self._backlog_bytes = 0

    async def read(self, n: int | None = None) -> bytes:
        """At most `n` of the bytes that have arrived. Raises ConnectionClosedError at the end."""
        if self._ahead_start == len(self._ahead):
            await self._read_ahead()
        start = self._ahead_start
        stop = len(self._ahead) if n is None else min(len(self._ahead), start + n)
        if stop == len(self._ahead):
            data = self._ahead[start:] if start else self._ahead
            self._ahead, self._ahead_start = b"", 0
            return data
        self._ahead_start = stop
        return self._ahead[start:stop]

    async def _read_ahead(self) -> None:
        self._raise_if_lost()
        try:
            self._ahead = await self._raw.read(READ_AHEAD_BYTES)
        except (ConnectionClosedError, OSError, trio.ClosedResourceError) as error:
            self.lose(f"receiving failed: {error}")
        self._raise_if_lost()
        if not self._ahead:
            self.lose("closed by the other end")
            self._raise_if_lost()
        self._ahead_start = 0

    async def arrived(self, due: int = 0) -> memoryview:
        """What has arrived, in memory that the next call writes to. Raises as `read` does.

        `due` bytes are on their way at least: on a fast line it waits for all of them. A step of
        the loop for each handful would be several for what the other end sent at once.
        """
        if self._socket is None or self._ahead_start < len(self._ahead):
            return memoryview(await self.read())
        self._raise_if_lost()
        num_bytes = 0
        try:
            self._wake_for(self._socket, due)
            num_bytes = await _receive_into(self._socket, self._roomy_place())
        except (OSError, trio.ClosedResourceError) as error:
            self.lose(f"receiving failed: {error}")
        self._raise_if_lost()
        if not num_bytes:
            self.lose("closed by the other end")
            self._raise_if_lost()
        self._time(num_bytes)
        self._is_full = num_bytes == len(self._place)
        return memoryview(self._place)[:num_bytes]

    def _time(self, num_bytes: int) -> None:
        """So many have come. A few right behind others, such as a header, say nothing."""
        now_s = trio.current_time()
        took_s, self._read_s = now_s - self._read_s, now_s
        if num_bytes >= READ_BYTES_START or took_s > WOKEN_LATER_S:
            self._soon_bytes = int(num_bytes * WOKEN_LATER_S / max(took_s, 1e-6))

    def _wake_for(self, socket: trio.socket.SocketType, due: int) -> None:
        """Have the system wake this end when so many bytes are here."""
        num_bytes = min(due, self._soon_bytes, READ_AHEAD_BYTES)
        if num_bytes < WOKEN_BYTES_MIN or not self._is_woken_later:
            num_bytes = 1
        if num_bytes != self._woken_bytes:
            self._woken_bytes = num_bytes
            try:
                socket.setsockopt(SOL_SOCKET, SO_RCVLOWAT, num_bytes)
            except OSError:
                # Some sandboxes have no such option; a socket that is gone is told of by reading.
                self._woken_bytes, self._is_woken_later = 1, False
        if self._woken_bytes > 1:
            self.on_patient()

    def wake_sooner(self) -> bool:
        """Read what is here, where what was due has not come; whether that is to be asked again. A
        timer for each read would cost more than it is worth."""
        is_late = trio.current_time() - self._read_s > WOKEN_LATEST_S
        if is_late and self._woken_bytes > 1 and self._socket is not None:
            self._soon_bytes = 0
            self._wake_for(self._socket, 0)
        return self._woken_bytes > 1 and not self.lost.is_set()

    def _roomy_place(self) -> bytearray:
        """Larger than the last time if that was filled. A new one: the old one may be in use."""
        if self._is_full and len(self._place) < READ_AHEAD_BYTES:
            size = min(max(4 * len(self._place), READ_BYTES_START), READ_AHEAD_BYTES)
            self._place = bytearray(size)
        return self._place

    async def write(self, data: bytes | memoryview) -> None:
        """Send one whole record. A cancelled write is finished in the background."""
        self._raise_if_lost()
        rest = memoryview(data)
        if self._socket is None or self._backlog:
            await self._enqueue(rest).wait()
            self._raise_if_lost()
            return
        self._unyielded_bytes += UNYIELDED_BYTES_A_WRITE + len(rest)
        try:
            while rest:
                # Unlike `send_all`, this either sends and says how much, or is cancelled and
                # has sent nothing.
                rest = rest[await self._send_some(rest) :]
            if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
                self._unyielded_bytes = 0
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if rest:
                self._enqueue(rest)
            raise
        except (OSError, trio.ClosedResourceError) as error:
            self.lose(f"sending failed: {error}")
            self._raise_if_lost()

    async def _send_some(self, rest: memoryview) -> int:
        """Send at least a byte of it; how many. Yields only while the system takes none."""
        assert self._socket is not None
        if not _HAS_VECTORS:
            return await self._socket.send(rest)
        while True:
            try:
                return os.write(self._socket.fileno(), rest)
            except BlockingIOError:
                self._unyielded_bytes = 0
                await trio.lowlevel.wait_writable(self._socket.fileno())

    def _enqueue(self, rest: memoryview) -> trio.Event:
        sent = trio.Event()
        self._backlog.append((rest, sent))
        self._backlog_bytes += len(rest)
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            self.lose("it takes no more bytes")
        elif len(self._backlog) == 1:
            self._spawn(self._send_backlog)
        return sent

    async def _send_backlog(self) -> None:
        try:
            while self._backlog:
                rest, sent = self._backlog[0]
                while rest and self._socket is not None:
                    rest = rest[await self._socket.send(rest) :]
                if rest:
                    await self._raw.write(bytes(rest))
                if self._backlog:  # else the connection was lost meanwhile
                    self._backlog_bytes -= len(self._backlog.pop(0)[0])
                sent.set()
        except (ConnectionClosedError, OSError, trio.ClosedResourceError) as error:
            self.lose(f"sending failed: {error}")
        finally:
            if self._backlog:  # cancelled with the transport
                self.lose("closed here")

    def lose(self, reason: str) -> None:
        """Cut the connection now, without a word to the other end. Safe to call twice."""
        if self.lost.is_set():
            return
        self.lost_reason = reason
        self.lost.set()
        for _, sent in self._backlog:
            sent.set()
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._socket is not None:
            self._socket.close()
        else:
            self._spawn(self._raw.close)
        self._on_lost(self)

    def _raise_if_lost(self) -> None:
        if self.lost.is_set():
            raise ConnectionClosedError(self.lost_reason, transport="tcp")

    async def close(self) -> None:
        """Close the connection; the other end sees the end of the bytes already sent."""
        self.lose("closed here")
        await trio.lowlevel.checkpoint()

    def get_remote_address(self) -> tuple[str, int] | None:
        """IP address and port of the other end."""
        return self.remote

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The other end as a multiaddr."""
        return self._raw.get_transport_addresses()

    @property
    def is_direct(self) -> bool:
        """Whether it leads through no relay."""
        return self.get_connection_type() is ConnectionType.DIRECT

    def get_connection_type(self) -> ConnectionType:
        """Direct or relayed."""
        return self._raw.get_connection_type()


async def _receive_into(socket: trio.socket.SocketType, place: bytearray) -> int:
    """Wait for bytes; how many came, 0 at the end. One step of the loop, always."""
    if not _HAS_VECTORS:
        return await socket.recv_into(place)
    while True:
        # Nearly always the last read has left nothing.
        await trio.lowlevel.wait_readable(socket.fileno())
        try:
            return os.readv(socket.fileno(), [place])
        except BlockingIOError:
            continue


def link_of(muxed: object) -> Link | None:
    """The link below a muxed connection; None for one whose session is not ours."""
    link = getattr(getattr(muxed, "secured_conn", None), "link", None)
    return link if isinstance(link, Link) else None


OpenLink = Callable[[IRawConnection], Link]
"""Wraps a connection before its handshake."""


def _remote_of(raw: IRawConnection) -> tuple[str, int] | None:
    """The other end of `raw`. The library knows none over IPv6, where four things name it."""
    socket = _socket_of(raw)
    return raw.get_remote_address() if socket is None else remote_of(socket)


def remote_of(socket: trio.socket.SocketType) -> tuple[str, int] | None:
    """The other end of a socket; None once it is gone, and of what is no TCP over IP."""
    if socket.family not in (AF_INET, AF_INET6):
        return None
    try:
        host, port, *_ = socket.getpeername()
    except OSError:
        return None  # It is gone already.
    ip = ipaddress.ip_address(host.partition("%")[0])
    # Who listens for both versions sees IPv4 under names of IPv6.
    return str(getattr(ip, "ipv4_mapped", None) or ip), port


def _socket_of(raw: IRawConnection) -> trio.socket.SocketType | None:
    """The TCP socket below `raw`; None if it runs through a relay."""
    if isinstance(raw, RawConnection) and isinstance(raw.stream, TrioTCPStream):
        return raw.stream.stream.socket
    return None


# All links of a transport -----------------------------------------------------------------------

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
            limits.keep_newest(self._lost_reasons, link.peer, link.lost_reason, REACHED_MAX)
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
        self._reached.pop(link.peer, None)
        if link.remote is not None:
            reached = Reached(*link.remote, is_ours=link.is_initiator)
            limits.keep_newest(self._reached, link.peer, reached, REACHED_MAX)
        if not links:
            del self._up[link.peer]
            logger.debug("peer gone peer=%s reason=%s", short_id(link.peer), link.lost_reason)
            self._tell(link.peer, up=False)

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
