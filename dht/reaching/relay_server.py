"""A relay: leads peers to those that nobody can dial, and carries what they say to each other.

It is a peer with a public address. Who wants to be reached through it keeps a stream open to it;
who wants to reach somebody opens another. The relay passes on bytes that it cannot read.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from dht.reaching.addresses import (
    CIRCUIT_PROTOCOL,
    REASON_BYTES_MAX,
    RELAY_FRAMES,
    RELAY_PROTOCOL,
    Ask,
    Granted,
    Incoming,
    Join,
    Joined,
    Refused,
    Reserve,
)
from dht.reaching.token_bucket import TokenBucket
from protocol import limits
from protocol.errors import ConfigError, DecodeError, NetworkError, PeerError
from protocol.identity import PeerId, short_id
from protocol.transport import Stream, Transport

logger = logging.getLogger(__name__)

DAY_S = 24 * 3600.0

_SENDERS_MAX = 4096
"""Of whom it is kept what they sent today. Of twice as many, the half that sent least is forgotten.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """What the owner of a relay gives away."""

    places_max: int = 128
    """Peers that others may reach through this relay. Each holds one stream."""

    places_per_host: int = 16
    """Of one network address: the machines of a campus behind one router."""

    circuits_max: int = 512
    """At one time. Each may hold a few MiB on a bad line, and two streams."""

    circuits_per_peer: int = 64
    """To and from one peer: the other seats of a replica group."""

    mbit: float = 0.0
    """Of all circuits together, each byte counted once; 0 sets no limit."""

    day_bytes: int = 2**40
    """Of all circuits together, in a day."""

    peer_day_bytes: int = 2**38
    """That one peer may send, in a day."""

    def __post_init__(self) -> None:
        for name in ("places_max", "places_per_host", "circuits_max", "circuits_per_peer"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise ConfigError(f"{name}: {getattr(self, name)} is outside 1..10000")
        if not 0 <= self.mbit <= 1e6:
            raise ConfigError(f"mbit: {self.mbit:g} is neither 0 (no limit) nor within 0..1e6")
        for name in ("day_bytes", "peer_day_bytes"):
            if not 0 <= getattr(self, name) <= 2**62:
                raise ConfigError(f"{name}: {getattr(self, name)} is outside 0..2^62")


def volunteer_limits(gib_a_day: float, mbit: float) -> RelayLimits:
    """What a node gives that has something else to do: fewer places, a quarter of it to a peer."""
    day_bytes = round(gib_a_day * 2**30)
    return RelayLimits(
        places_max=64,
        circuits_max=64,
        circuits_per_peer=16,
        mbit=mbit,
        day_bytes=day_bytes,
        peer_day_bytes=day_bytes // 4,
    )


class RelayBooks:
    """Who has a place, which circuits there are, and what was sent today."""

    def __init__(self, config: RelayLimits, *, now_s: float) -> None:
        self.config = config
        self._hosts: dict[PeerId, str] = {}
        self._ends: Counter[PeerId] = Counter()
        self._num_circuits = 0
        self._bucket = TokenBucket(config.mbit * 1e6 / 8, now_s=now_s)
        self._day_began_s = now_s
        self._sent: Counter[PeerId] = Counter()
        self._sent_today = 0

    @property
    def num_places(self) -> int:
        """Places that are taken."""
        return len(self._hosts)

    def has_place(self, peer: PeerId) -> bool:
        """Whether others may be led to `peer`."""
        return peer in self._hosts

    def take_place(self, peer: PeerId, host: str) -> str:
        """Give `peer`, which comes from `host`, a place, or move the one that it has; why not, or
        nothing."""
        others = [one for holder, one in self._hosts.items() if holder != peer]
        if len(others) >= self.config.places_max:
            return "no place is left"
        if host and others.count(host) >= self.config.places_per_host:
            return "no place is left for this network address"
        self._hosts[peer] = host
        return ""

    def leave_place(self, peer: PeerId) -> None:
        """The place of `peer` is free."""
        self._hosts.pop(peer, None)

    def open_circuit(self, source: PeerId, target: PeerId, now_s: float) -> str:
        """Note a circuit; why there can be none, or nothing."""
        if source == target:
            return "that is you"
        if target not in self._hosts:
            return "it has no place here"
        if self._num_circuits >= self.config.circuits_max:
            return "no circuit is left"
        if max(self._ends[source], self._ends[target]) >= self.config.circuits_per_peer:
            return "no circuit is left for these peers"
        if not min(self.day_bytes_left(source, now_s), self.day_bytes_left(target, now_s)):
            return "nothing is left of today's bytes"
        self._num_circuits += 1
        self._ends[source] += 1
        self._ends[target] += 1
        return ""

    def close_circuit(self, source: PeerId, target: PeerId) -> None:
        """A circuit that was opened is closed."""
        self._num_circuits -= 1
        self._ends[source] -= 1
        self._ends[target] -= 1
        self._ends += Counter()  # Forgets the zeros: a peer may come under many names.

    def day_bytes_left(self, peer: PeerId, now_s: float) -> int:
        """What `peer` may still send today."""
        self._turn_page(now_s)
        all_left = self.config.day_bytes - self._sent_today
        return max(0, min(all_left, self.config.peer_day_bytes - self._sent[peer]))

    def send(self, peer: PeerId, num_bytes: int, now_s: float) -> float | None:
        """Count bytes that `peer` sends; how long they wait, or None if nothing is left today."""
        if self.day_bytes_left(peer, now_s) < num_bytes:
            return None
        self._sent[peer] += num_bytes
        self._sent_today += num_bytes
        if len(self._sent) > 2 * _SENDERS_MAX:
            self._sent = Counter(dict(self._sent.most_common(_SENDERS_MAX)))
        return self._bucket.delay_s(num_bytes, now_s)

    def _turn_page(self, now_s: float) -> None:
        if now_s - self._day_began_s >= DAY_S:
            self._day_began_s = now_s
            self._sent.clear()
            self._sent_today = 0


# The relay --------------------------------------------------------------------------------------

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
                await RELAY_FRAMES.send(stream, Granted(self._seen(stream.peer), left))
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
                await RELAY_FRAMES.send(source, Joined())
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
                await RELAY_FRAMES.send(far, Incoming(source))
                is_agreed = isinstance(await RELAY_FRAMES.receive(far), Joined)
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
    word = await RELAY_FRAMES.receive(stream)
    if not isinstance(word, Reserve | Join):
        raise DecodeError(f"{type(word).__name__} to a relay")
    return word


async def _refuse(stream: Stream, why: str) -> None:
    with trio.move_on_after(ASK_S):
        await RELAY_FRAMES.send(stream, Refused(why[:REASON_BYTES_MAX]))
