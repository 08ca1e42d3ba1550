"""Agreeing on the protocol of a stream; streams that others open, and whose fault ends what.

Ours speaks multistream-select in one round trip. The library waits for each line before it sends
the next, and its answering side lets a line that is not UTF-8 end the whole host: one stream of one
peer, and the node is gone.
"""

import logging
from collections.abc import Callable, Container
from functools import partial
from typing import Protocol

import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.protocol_muxer.multiselect import Multiselect

from dht.transport.libp2p_link import Links, Spawn, link_of
from dht.transport.libp2p_security import BAD_HANDSHAKE
from dht.transport.libp2p_stream import Libp2pStream
from dht.transport.libp2p_yamux import INBOUND_STREAMS_MAX
from protocol.errors import (
    DecodeError,
    NetworkError,
    PeerError,
    StreamClosedError,
    UnreachableError,
)
from protocol.identity import PeerId, short_id
from protocol.transport import StreamHandler

logger = logging.getLogger(__name__)


LINE_BYTES_MAX = 256
"""A protocol id with its line end; ours are under 40 bytes, the library's under 60."""

PROPOSALS_MAX = 8
"""Protocol ids a peer may try on one stream; ours try one."""

_HELLO = "/multistream/1.0.0"
_REFUSAL = "na"


class Lines(Protocol):
    """The part of a stream that negotiation needs; its bytes are not counted as payload."""

    async def send_raw(self, data: bytes) -> None:
        """Send every byte."""
        ...

    async def receive_raw(self, num_bytes: int) -> bytes:
        """Exactly that many bytes."""
        ...

    @property
    def num_buffered(self) -> int:
        """Bytes that have arrived and were not asked for yet."""
        ...


def encode_line(text: str) -> bytes:
    """The line with its length before it and a line end behind."""
    line = text.encode() + b"\n"
    low, high = len(line) & 0x7F, len(line) >> 7
    return (bytes([low | 0x80, high]) if high else bytes([low])) + line


async def request_protocol(stream: Lines, protocol: str) -> None:
    """Ask the other end for `protocol`.

    Raises UnreachableError if it does not serve it, StreamClosedError if it goes away.
    """
    await stream.send_raw(encode_line(_HELLO) + encode_line(protocol))
    try:
        answers = (await _receive_line(stream), await _receive_line(stream))
    except DecodeError as error:
        raise UnreachableError(f"no answer to {protocol}: {error}") from error
    if answers != (_HELLO, protocol):
        raise UnreachableError(f"it does not serve {protocol}")


async def accept_protocol(stream: Lines, served: Container[str]) -> str:
    """The protocol that the other end asked for and we serve.

    Raises DecodeError if it asks for no such or sends nonsense, StreamClosedError if it goes away.
    """
    if await _receive_line(stream) != _HELLO:
        raise DecodeError("no multistream-select")
    answer = encode_line(_HELLO)
    for _ in range(PROPOSALS_MAX):
        if not stream.num_buffered:
            # It waits for our hello before it goes on, as the library does.
            await stream.send_raw(answer)
            answer = b""
        proposal = await _receive_line(stream)
        known = proposal in served
        await stream.send_raw(answer + encode_line(proposal if known else _REFUSAL))
        answer = b""
        if known:
            return proposal
    raise DecodeError(f"asked for {PROPOSALS_MAX} protocols that we do not serve")


async def _receive_line(stream: Lines) -> str:
    num_bytes = (await stream.receive_raw(1))[0]
    if num_bytes & 0x80:
        num_bytes = num_bytes & 0x7F | (await stream.receive_raw(1))[0] << 7
    if not 1 <= num_bytes <= LINE_BYTES_MAX:
        raise DecodeError(f"a line of {num_bytes} bytes")
    line = await stream.receive_raw(num_bytes)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("a line that is not UTF-8") from error
    if not text.endswith("\n"):
        raise DecodeError("a line without an end")
    return text[:-1]


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
            protocol = await accept_protocol(stream, served)
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
