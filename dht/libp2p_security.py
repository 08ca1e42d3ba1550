"""Noise as the only secure channel, and the one TCP connection below it.

Three things of the library are mended here, each with a test that fails when it needs no mending:

- A full yamux frame of the library is 17 bytes larger than a Noise record holds, so that each
  travels as two records; and each record costs two reads of the socket. Frames that fit, and a
  read-ahead buffer, halve the processor time of a transfer. The bytes on the wire stay standard.
- A write that is cancelled half-way leaves half a record on the wire, after which the other end
  can decrypt nothing: one caller's time-out would end every stream of the connection. Here the
  rest of such a record is sent in the background.
- A peer may send more than its receive window; the library only logs it. Here it is cut off.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.abc import IMuxedConn, IRawConnection, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.exceptions import HandshakeFailure
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.yamux import yamux
from multiaddr import Multiaddr

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId, parse_peer_id

logger = logging.getLogger(__name__)

READ_AHEAD_BYTES = 256 * limits.KIB
"""One read of the socket: four full records. More gains nothing and is held per connection."""

BACKLOG_BYTES_MAX = 4 * limits.MIB
"""Records of cancelled writes that wait for the socket: 64 full ones, then the peer is gone."""

UNREAD_BYTES_MAX = 64 * limits.MIB
"""Received and not yet read, over all streams of a connection: four streams with the largest
window that yamux grants (16 MiB). Only a peer that ignores its windows gets beyond."""

Task = Callable[[], Awaitable[None]]
Spawn = Callable[[Task], None]
"""Run this in the background until it ends or the transport closes."""


def tune_yamux() -> None:
    """Make yamux send frames that fit one Noise record. It reads the constant per frame."""
    yamux.MAX_MESSAGE_SIZE = MAX_PLAINTEXT_LENGTH


class Link(IRawConnection):
    """One connection to a peer, below Noise. Tells at once when it is lost.

    `on_lost` is called exactly once, synchronously, as soon as either end has closed or the
    network has failed; the library itself takes a fifth of a second to say so.
    """

    peer: PeerId | None = None
    muxed: IMuxedConn | None = None
    is_up = False
    """Whether the library has taken the connection into use; kept by the transport."""

    num_inbound = 0
    """Streams that the peer has open to us; kept by the transport."""

    def __init__(
        self, raw: IRawConnection, *, spawn: Spawn, on_lost: Callable[["Link"], None]
    ) -> None:
        self.is_initiator = raw.is_initiator
        self.remote = raw.get_remote_address()  # A closed socket would not know.
        self.lost = trio.Event()
        self.lost_reason = ""
        self._raw = raw
        self._spawn = spawn
        self._on_lost = on_lost
        self._socket = _socket_of(raw)
        self._ahead = b""
        self._ahead_start = 0
        self._received_bytes = 0
        self._checked_bytes = 0
        self._backlog: list[tuple[memoryview, trio.Event]] = []
        self._backlog_bytes = 0

    async def read(self, n: int | None = None) -> bytes:
        """At most `n` of the bytes that have arrived. Raises ConnectionClosedError at the end."""
        if self._ahead_start == len(self._ahead):
            await self._read_ahead()
        start = self._ahead_start
        stop = len(self._ahead) if n is None else min(len(self._ahead), start + n)
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
        self._received_bytes += len(self._ahead)
        self._check_unread()

    def _check_unread(self) -> None:
        if self._received_bytes - self._checked_bytes < UNREAD_BYTES_MAX // 4:
            return
        self._checked_bytes = self._received_bytes
        buffers: dict[int, bytearray] = getattr(self.muxed, "stream_buffers", {})
        unread_bytes = sum(len(buffer) for buffer in buffers.values())
        if unread_bytes > UNREAD_BYTES_MAX:
            self.lose(f"{unread_bytes} bytes unread: it ignores its receive windows")
            logger.warning("connection cut reason=%s", self.lost_reason)
            self._raise_if_lost()

    async def write(self, data: bytes) -> None:
        """Send one whole record. A cancelled write is finished in the background."""
        self._raise_if_lost()
        rest = memoryview(data)
        if self._socket is None or self._backlog:
            await self._enqueue(rest).wait()
            self._raise_if_lost()
            return
        try:
            while rest:
                # Unlike `send_all`, this either sends and says how much, or is cancelled and
                # has sent nothing.
                rest = rest[await self._socket.send(rest) :]
        except trio.Cancelled:
            self._enqueue(rest)
            raise
        except (OSError, trio.ClosedResourceError) as error:
            self.lose(f"sending failed: {error}")
            self._raise_if_lost()

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
        return self._raw.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The other end as a multiaddr."""
        return self._raw.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        """Direct or relayed."""
        return self._raw.get_connection_type()


class TunedNoise(NoiseTransport):
    """The library's Noise over a `Link`, for peers with an Ed25519 key and no others."""

    def __init__(self, key_pair: KeyPair, open_link: Callable[[IRawConnection], Link]) -> None:
        super().__init__(key_pair, noise_privkey=create_noise_key_pair().private_key)
        self._open_link = open_link

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        """Prove who we are to whoever dialled us, and have them prove it."""
        link = self._open_link(conn)
        return _bind(link, await super().secure_inbound(link))

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        """Prove who we are to `peer_id`; raises HandshakeFailure if somebody else answers."""
        link = self._open_link(conn)
        return _bind(link, await super().secure_outbound(link, peer_id))


def _bind(link: Link, session: ISecureConn) -> ISecureConn:
    try:
        link.peer = parse_peer_id(session.get_remote_peer().to_base58())
    except DecodeError as error:
        raise HandshakeFailure(str(error)) from error
    return session


def link_of(muxed: Any) -> Link | None:  # noqa: ANN401 - the library's interfaces hide the layers
    """The link below a muxed connection; None for one that has no Noise of ours."""
    session = getattr(muxed, "secured_conn", None)
    if not isinstance(session, SecureSession) or not isinstance(session.conn.conn, Link):
        return None
    return session.conn.conn


def _socket_of(raw: IRawConnection) -> trio.socket.SocketType | None:
    """The TCP socket below `raw`; None if it runs through a relay."""
    if isinstance(raw, RawConnection) and isinstance(raw.stream, TrioTCPStream):
        return raw.stream.stream.socket
    return None
