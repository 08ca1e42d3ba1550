"""Connections at the door: what is counted before a handshake, and how one is told that it is full.

Whoever is turned away without a word cannot tell a full node from one of a private swarm, and gives
up where it should come again. So it is told, in the words of the negotiation that it has begun.
"""

import logging
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import trio
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.protocol_muxer.multiselect import MULTISELECT_PROTOCOL_ID
from libp2p.utils import encode_delim

from dht.reaching.inbound_places import Guest, InboundPlaces
from dht.transport.libp2p_link import KnockingStream, Link, Links, remote_of
from dht.transport.libp2p_yamux import Yamux

logger = logging.getLogger(__name__)


FULL_PROTOCOL = "/barnraise/full/1"
"""Answered to the first protocol that is asked for, whichever it is."""

SWEEP_S, TURN_S = 1.0, 0.25
"""How often it is looked who has to go, at most and while somebody waits."""

WAIT_S = 3.5
"""For one's turn to begin a handshake; the other end's patience is hardly longer."""

FAREWELL_S = 1.0
FAREWELLS_MAX = 16
"""So many at a time are told, and for so long: who floods is cut off without a word."""

_READ_BYTES = 4096


class Door:
    """The places of one transport: counts who comes, and cuts off who has to go."""

    def __init__(self, connections_max: int, links: Links) -> None:
        self.places = InboundPlaces(connections_max, has_stream=self._has_stream)
        self.connections_max = connections_max
        self._links = links
        self._cutters: dict[Guest, KnockingStream | Link] = {}
        self._guests: WeakKeyDictionary[Link, Guest] = WeakKeyDictionary()
        self._turns: dict[Guest, trio.Event] = {}
        self._num_farewells = 0
        links.on_gone = self._gone

    async def keep_clear(self) -> None:
        """Where places are scarce, have those go that do nothing with theirs."""
        while True:
            # No timer while nobody waits: the next that comes looks at once.
            await trio.sleep(TURN_S if self._turns else SWEEP_S)
            self._take_turns()
            self._cut(self.places.sweep(trio.current_time()))

    async def come_in(self, stream: ReadWriteCloser) -> KnockingStream | None:
        """One that the listener took; None if it was told that we are full, and is closed."""
        if not isinstance(stream, TrioTCPStream):
            await stream.close()
            return None
        remote = remote_of(stream.stream.socket)
        guest = self.places.knock(remote[0] if remote else "", trio.current_time())
        if guest is None:
            await self._say_full(stream.stream)
            return None
        knocking = KnockingStream(stream.stream, guest)
        self._cutters[guest], self._turns[guest] = knocking, trio.Event()
        self._take_turns()
        is_let_in = False
        try:
            with trio.move_on_after(WAIT_S):
                await self._turns[guest].wait()
                is_let_in = True
        finally:
            del self._turns[guest]
            if not is_let_in:
                self.leave(guest)
        if is_let_in:
            return knocking
        await self._say_full(stream.stream)
        return None

    def _take_turns(self) -> None:
        admitted, gone = self.places.turn(trio.current_time())
        self._cut(gone)
        for guest in admitted:
            self._turns[guest].set()

    def leave(self, guest: Guest) -> None:
        """Its connection is over, or never came up."""
        self.places.leave(guest)
        self._cutters.pop(guest, None)
        self._take_turns()

    def let_in(self, link: Link) -> bool:
        """The handshake of a connection that others opened is over; whether there is a place."""
        assert link.peer is not None
        now_s, guest = trio.current_time(), link.guest
        if guest is None:  # By a relay, or through a punched hole.
            guest = Guest("", "", now_s)
        self._guests[link], self._cutters[guest] = guest, link
        is_in, gone = self.places.prove(guest, link.peer, now_s)
        self._cut(gone)
        self._take_turns()
        return is_in

    def _gone(self, link: Link) -> None:
        guest = self._guests.pop(link, None)
        if guest is not None:
            self.leave(guest)

    def _cut(self, guests: Iterable[Guest]) -> None:
        for guest in guests:
            cutter = self._cutters.pop(guest, None)
            if cutter is not None:
                logger.debug("connection cut host=%s reason=its place is needed", guest.host)
                cutter.lose("its place is needed")

    def _has_stream(self, guest: Guest) -> bool:
        """Whether the peer does anything on one of its connections."""
        if guest.peer is None:
            return False
        muxed = (link.muxed for link in self._links.of(guest.peer))
        return any(isinstance(one, Yamux) and one.streams for one in muxed)

    async def _say_full(self, stream: trio.SocketStream) -> None:
        if self._num_farewells < FAREWELLS_MAX:
            self._num_farewells += 1
            try:
                with trio.move_on_after(FAREWELL_S):
                    await _say_full(stream)
            finally:
                self._num_farewells -= 1
        await trio.aclose_forcefully(stream)


async def _say_full(stream: trio.SocketStream) -> None:
    words = (MULTISELECT_PROTOCOL_ID, FULL_PROTOCOL)
    try:
        await stream.send_all(b"".join(encode_delim(word.encode()) for word in words))
        await stream.send_eof()
        # Until it has read them: a socket that is closed with something unread takes back what it
        # has sent.
        while await stream.receive_some(_READ_BYTES):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return
