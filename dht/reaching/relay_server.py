"""A relay: leads peers to those that nobody can dial, and carries what they say to each other.

It is a peer with a public address. Who wants to be reached through it keeps a stream open to it;
who wants to reach somebody opens another. The relay passes on bytes that it cannot read.
"""

import logging
from collections.abc import Callable

import trio

from dht.reaching.circuits import (
    CIRCUIT_PROTOCOL,
    FRAME_BYTES_MAX,
    REASON_BYTES_MAX,
    RELAY_PROTOCOL,
    Answer,
    Ask,
    Granted,
    Incoming,
    Join,
    Joined,
    Refused,
    Reserve,
    decode_word,
    encode_word,
)
from dht.reaching.relay_books import RelayBooks, RelayLimits
from protocol import limits
from protocol.errors import DecodeError, NetworkError, PeerError
from protocol.identity import PeerId, short_id
from protocol.transport import Stream, Transport

logger = logging.getLogger(__name__)

ASK_S = 10.0
"""For the first word of a stream, and for the peer that somebody is led to."""

SILENT_S = 20.0
"""A place whose owner says nothing for so long is free. Four signs of life."""

IDLE_S = 300.0
"""A circuit over which nothing goes for so long ends. Linked peers have heartbeats."""

PIECE_BYTES = 256 * limits.KIB
"""Passed on at a time: what the transport encrypts in one go."""

STREAMS_PER_PEER_MAX = 80
"""That one peer may hold here: its circuits, its place, and some that are about to end."""

Seen = Callable[[PeerId], str]
"""The multiaddr that a connected peer comes from; empty where it is not known."""


class RelayServer:
    """Serves `RELAY_PROTOCOL` on a transport; `serve` is its handler."""

    def __init__(
        self,
        transport: Transport,
        config: RelayLimits,
        *,
        seen: Seen,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_open`: whether new places are given and new circuits opened."""
        self.books = RelayBooks(config, now_s=trio.current_time())
        self._transport = transport
        self._seen = seen
        self._is_open = is_open
        self._num_streams: dict[PeerId, int] = {}
        self._places: dict[PeerId, trio.CancelScope] = {}
        transport.serve(RELAY_PROTOCOL, self.serve)

    async def serve(self, stream: Stream) -> None:
        """One stream of a peer, to its end. Raises PeerError, NetworkError."""
        peer = stream.peer
        if self._num_streams.get(peer, 0) >= STREAMS_PER_PEER_MAX:
            return
        self._num_streams[peer] = self._num_streams.get(peer, 0) + 1
        try:
            with trio.fail_after(ASK_S):
                ask = await _receive_ask(stream)
            if not self._is_open():
                await _refuse(stream, "it is no relay: nobody has found it from outside so far")
            elif isinstance(ask, Reserve):
                await self._keep_place(stream)
            else:
                await self._lead(stream, ask.target)
        except trio.TooSlowError:
            logger.debug("relay stream ended peer=%s reason=silent", short_id(peer))
        finally:
            self._num_streams[peer] -= 1
            if not self._num_streams[peer]:
                del self._num_streams[peer]

    # Places --------------------------------------------------------------------------------------

    async def _keep_place(self, stream: Stream) -> None:
        peer, seen = stream.peer, self._seen(stream.peer)
        why = self.books.take_place(peer, seen.rpartition("/tcp/")[0])
        if why:
            await _refuse(stream, why)
            return
        logger.info("place taken peer=%s places=%d", short_id(peer), self.books.num_places)
        if peer in self._places:
            # Whose connection died without a word is back before the old stream counts as silent.
            self._places[peer].cancel()
        with trio.CancelScope() as scope:
            self._places[peer] = scope
            try:
                await self._hear_signs(stream)
            finally:
                if self._places.get(peer) is scope:
                    del self._places[peer]
                    self.books.leave_place(peer)
                    left = self.books.num_places
                    logger.info("place left peer=%s places=%d", short_id(peer), left)

    async def _hear_signs(self, stream: Stream) -> None:
        """Answer signs of life. Raises what ends them, trio.TooSlowError for silence."""
        while True:
            left = self.books.day_bytes_left(stream.peer, trio.current_time())
            with trio.fail_after(SILENT_S):
                await _say(stream, Granted(self._seen(stream.peer), left))
                if not isinstance(await _receive_ask(stream), Reserve):
                    raise DecodeError("a place's stream asks for something else")

    # Circuits ------------------------------------------------------------------------------------

    async def _lead(self, source: Stream, target: PeerId) -> None:
        why = self.books.open_circuit(source.peer, target, trio.current_time())
        if why:
            await _refuse(source, why)
            return
        try:
            far = await self._reach(source.peer, target)
            if far is None:
                await _refuse(source, "it does not answer")
                return
            try:
                await _say(source, Joined())
                await self._carry(source, far)
            finally:
                with trio.CancelScope(shield=True):
                    await far.aclose()
        finally:
            self.books.close_circuit(source.peer, target)

    async def _reach(self, source: PeerId, target: PeerId) -> Stream | None:
        """A stream to the target that has agreed to it."""
        far: Stream | None = None
        is_agreed = False
        try:
            with trio.move_on_after(ASK_S):
                far = await self._transport.open_stream(target, CIRCUIT_PROTOCOL)
                await _say(far, Incoming(source))
                is_agreed = isinstance(
                    decode_word(await far.receive_frame(FRAME_BYTES_MAX)), Joined
                )
        except (PeerError, NetworkError) as error:
            # The target's fault, and not that of whoever asks for it.
            logger.debug("no circuit to=%s reason=%s", short_id(target), error)
        finally:
            if far is not None and not is_agreed:
                with trio.CancelScope(shield=True):
                    await far.aclose()
        return far if is_agreed else None

    async def _carry(self, source: Stream, far: Stream) -> None:
        """Pass bytes on in both directions until one end closes, or nothing is left of the day."""
        names = short_id(source.peer), short_id(far.peer)
        logger.info("circuit opened from=%s to=%s", *names)
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            scope.deadline = trio.current_time() + IDLE_S
            nursery.start_soon(self._pump, source, far, scope)
            nursery.start_soon(self._pump, far, source, scope)
        logger.info("circuit closed from=%s to=%s", *names)

    async def _pump(self, near: Stream, far: Stream, scope: trio.CancelScope) -> None:
        try:
            while True:
                piece = await _some(near)
                now_s = trio.current_time()
                delay_s = self.books.send(near.peer, len(piece), now_s)
                if delay_s is None:
                    logger.warning("circuit cut peer=%s reason=day's bytes", short_id(near.peer))
                    break
                scope.deadline = now_s + delay_s + IDLE_S
                if delay_s:
                    await trio.sleep(delay_s)
                await far.send_all(piece)
        except NetworkError:
            pass  # One end has closed, and so ends the other.
        scope.cancel()


async def _some(stream: Stream) -> bytes:
    """What has arrived, at least a byte, at most a piece; waits for it."""
    num_bytes = stream.num_buffered
    if num_bytes:
        return await stream.receive_exactly(min(num_bytes, PIECE_BYTES))
    first = await stream.receive_exactly(1)
    rest = min(stream.num_buffered, PIECE_BYTES - 1)
    return first + await stream.receive_exactly(rest) if rest else first


async def _receive_ask(stream: Stream) -> Ask:
    word = decode_word(await stream.receive_frame(FRAME_BYTES_MAX))
    if not isinstance(word, Reserve | Join):
        raise DecodeError(f"{type(word).__name__} to a relay")
    return word


async def _refuse(stream: Stream, why: str) -> None:
    with trio.move_on_after(ASK_S):
        await _say(stream, Refused(why[:REASON_BYTES_MAX]))


async def _say(stream: Stream, answer: Answer | Incoming) -> None:
    await stream.send_frame(encode_word(answer))
