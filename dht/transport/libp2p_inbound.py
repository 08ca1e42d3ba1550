"""Streams that others open to us: who may, for which protocol, and whose fault ends what."""

import logging
from collections.abc import Callable
from functools import partial

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.protocol_muxer.multiselect import Multiselect

from dht.transport import libp2p_negotiate
from dht.transport.libp2p_link import Spawn
from dht.transport.libp2p_links import Links
from dht.transport.libp2p_security import BAD_HANDSHAKE, link_of
from dht.transport.libp2p_stream import Libp2pStream
from dht.transport.libp2p_yamux import INBOUND_STREAMS_MAX
from protocol.errors import DecodeError, NetworkError, PeerError, StreamClosedError
from protocol.identity import PeerId, short_id
from protocol.transport import StreamHandler

logger = logging.getLogger(__name__)

REASON_CHARACTERS_MAX = 200

BAD_SHOWN_MAX, BAD_SHOWN_S = 20, 10.0
"""So many bad streams per so long are warnings: one peer can make hundreds a second."""

BAD_BYTES = (*BAD_HANDSHAKE, trio.BrokenResourceError, trio.TooSlowError)
"""What a handler of the library's own (identify, ping, relay) raises on bytes it did not expect.
One of them reaching the library's task manager stops the host, and the peer chooses the bytes."""


class Inbound:
    """The handlers of a transport, ours and the library's."""

    def __init__(
        self,
        library: Multiselect,
        *,
        links: Links,
        wrap: Callable[[INetStream, PeerId], Libp2pStream],
        spawn: Spawn,
        timeout_s: float,
    ) -> None:
        self._library = library
        self._links = links
        self._wrap = wrap
        self._spawn = spawn
        self._timeout_s = timeout_s
        self._handlers: dict[str, StreamHandler] = {}
        self._bad_since_s, self._num_bad = float("-inf"), 0

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Run `handler` for each later stream of `protocol`."""
        assert protocol not in self._handlers, f"{protocol} is served already"
        self._handlers[protocol] = handler

    async def accept(self, net_stream: INetStream) -> None:
        """Serve one stream. Called by the library in a task of its own; raises only bugs."""
        link = link_of(net_stream.muxed_conn)
        if link is None or link.peer is None or link.num_inbound >= INBOUND_STREAMS_MAX:
            # Those count, too, that the peer has ended and a handler has not noticed yet.
            await net_stream.reset()
            return
        # A stream can come before the library says that the connection is there.
        self._links.mark_up(link)
        link.num_inbound += 1
        try:
            await self._serve_stream(net_stream, link.peer)
        except (trio.TooSlowError, DecodeError, StreamClosedError) as error:
            logger.debug("stream refused peer=%s reason=%s", short_id(link.peer), _reason(error))
            await net_stream.reset()
        finally:
            link.num_inbound -= 1

    async def _serve_stream(self, net_stream: INetStream, peer: PeerId) -> None:
        stream = self._wrap(net_stream, peer)
        served = {*self._handlers, *map(str, self._library.handlers)}
        with trio.fail_after(self._timeout_s):
            protocol = await libp2p_negotiate.accept(stream, served)
        handler = self._handlers.get(protocol)
        if handler is not None:
            # In a nursery of ours: a bug in a handler then ends the node with its own traceback,
            # and not the library's task manager with one of that.
            self._spawn(partial(self._handle, handler, stream, protocol))
            await stream.gone.wait()
        else:
            await self._handle_in_library(net_stream, protocol, peer)

    async def _handle(self, handler: StreamHandler, stream: Libp2pStream, protocol: str) -> None:
        try:
            await handler(stream)
        except* PeerError as group:
            peer = short_id(stream.peer)
            level = logging.WARNING if self._is_to_be_shown() else logging.DEBUG
            logger.log(level, "bad stream peer=%s protocol=%s %s", peer, protocol, _reason(group))
        except* NetworkError as group:
            peer = short_id(stream.peer)
            logger.debug("stream ended peer=%s protocol=%s %s", peer, protocol, _reason(group))
        finally:
            await stream.aclose()

    def _is_to_be_shown(self) -> bool:
        now_s = trio.current_time()
        if now_s - self._bad_since_s >= BAD_SHOWN_S:
            self._bad_since_s, self._num_bad = now_s, 0
        self._num_bad += 1
        return self._num_bad <= BAD_SHOWN_MAX

    async def _handle_in_library(self, net_stream: INetStream, protocol: str, peer: PeerId) -> None:
        handler = self._library.handlers.get(TProtocol(protocol))
        if handler is None:
            await net_stream.reset()
            return
        net_stream.set_protocol(TProtocol(protocol))
        try:
            await handler(net_stream)
        except BAD_BYTES as error:
            logger.debug("%s failed peer=%s %s", protocol, short_id(peer), _reason(error))
            await net_stream.reset()


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return repr(error)[:REASON_CHARACTERS_MAX]
