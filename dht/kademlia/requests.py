"""Asking one peer one thing, and answering: the streams of the DHT.

A stream carries one request at a time, so a reply needs no number to be told apart. Opening one
costs a negotiation (over libp2p on loopback 3.2 ms a request with new streams, 0.6 ms with a kept
one), so a few idle ones per peer are kept. Who asks too fast waits for its answer.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import trio

from dht.kademlia.messages import (
    PROTOCOL,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_message,
)
from dht.kademlia.routing import Contact
from dht.reaching.dials import UPKEEP, DialMemory, TurnWish
from protocol import limits
from protocol.errors import StreamClosedError, UnreachableError
from protocol.identity import PeerId, short_id
from protocol.transport import Pace, Stream, Transport

RATE_PER_S = 200.0
"""An answer costs 0.3 ms of a processor: one peer gets 6 % of a core."""

BURST = 400
_PEERS_MAX = 4096


class RequestQuotas:
    """When the next request of each peer is to be answered."""

    def __init__(self, *, rate_per_s: float = RATE_PER_S, burst: int = BURST) -> None:
        self._interval_s = 1.0 / rate_per_s
        self._burst_s = burst / rate_per_s
        self._paid_until_s: OrderedDict[PeerId, float] = OrderedDict()

    def wait_s(self, peer: PeerId, now_s: float) -> float:
        """Count a request of `peer`; how long to wait before it is answered."""
        paid_s = max(self._paid_until_s.get(peer, 0.0), now_s) + self._interval_s
        limits.keep_newest(self._paid_until_s, peer, paid_s, _PEERS_MAX)
        return max(0.0, paid_s - self._burst_s - now_s)


TRUSTED_MAX = 256
"""Contacts that are dialled whenever they are asked: first ones, not those that replies name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestConfig:
    """How patient we are with one peer, and what we keep open."""

    reply_time_out_s: float = 5.0
    """For an answer over an open connection; a frozen peer keeps its place in the table for so
    long. No search waits that long: it gives the peer up, and a late answer brings it back."""

    dial_time_out_s: float = 8.0
    """For connecting first: a busy machine needs seconds for a handshake."""

    idle_streams_per_peer: int = 2
    idle_streams: int = 128
    """Each costs some tens of KiB on both sides."""

    idle_s: float = 60.0
    """An idle stream older than that is not used again; the other side keeps it for twice that."""


@dataclass(frozen=True, slots=True)
class _Idle:
    stream: Stream
    since_s: float


@dataclass(slots=True)
class _ContactDial:
    """A dial under way, and those who want to know whether it still waits for its turn."""

    askers: list[Callable[[float], None]]
    is_waiting: bool = False
    ended: trio.Event = field(default_factory=trio.Event)

    def waits(self, since_s: float) -> None:
        self.is_waiting = since_s == float("inf")
        for tell in self.askers:
            tell(since_s)


class Requester:
    """Sends requests over a Transport. All its state is idle streams, and who is being dialled."""

    def __init__(
        self, transport: Transport, config: RequestConfig, memory: DialMemory | None = None
    ) -> None:
        """`memory` is of the addresses that were dialled; replies may name anybody's."""
        self._transport = transport
        self._config = config
        self._memory = DialMemory() if memory is None else memory
        self._trusted: dict[Contact, None] = {}
        self._dials: dict[Contact, _ContactDial] = {}
        self._idle: OrderedDict[PeerId, deque[_Idle]] = OrderedDict()

    async def ask(
        self,
        contact: Contact,
        request: Request,
        turn: TurnWish = UPKEEP,
    ) -> Reply:
        """The reply of `contact.peer`, whose id the transport has proved.

        Raises NetworkError if it does not answer in time, PeerError if what it sends is no reply.
        No time passes while its dial waits for a turn.
        """
        if contact.peer not in self._transport.connected():
            await self._connect(contact, turn)
        with trio.move_on_after(self._config.reply_time_out_s):
            return await self._ask(contact.peer, request)
        raise UnreachableError(f"{short_id(contact.peer)} did not answer in time")

    def trust(self, contacts: Iterable[Contact]) -> None:
        """Dial these whenever they are asked: no reply names them, but the user or a last start."""
        self._trusted.update(dict.fromkeys(contacts))
        while len(self._trusted) > TRUSTED_MAX:
            del self._trusted[next(iter(self._trusted))]

    async def aclose(self) -> None:
        """Close the idle streams."""
        idle, self._idle = self._idle, OrderedDict()
        for streams in idle.values():
            for kept in streams:
                await kept.stream.aclose()

    async def _ask(self, peer: PeerId, request: Request) -> Reply:
        kept = await self._take(peer)
        if kept is not None:
            try:
                return await self._exchange(kept, request)
            except StreamClosedError:
                # The peer closes idle streams too, or has restarted: only a fresh one tells.
                pass
        stream = await self._transport.open_stream(peer, PROTOCOL)
        return await self._exchange(stream, request)

    async def _connect(self, contact: Contact, turn: TurnWish) -> None:
        """One dial at a time per contact, or each search would start another to a dead one."""
        dial = self._dials.get(contact)
        if dial is not None:
            await self._await(dial, contact, turn)
            if contact.peer not in self._transport.connected():
                raise UnreachableError(f"{short_id(contact.peer)}: another dial has just failed")
            return
        dial = self._dials[contact] = _ContactDial([turn.waits])
        try:
            with trio.move_on_after(self._config.dial_time_out_s) as patience:
                wish = replace(turn, waits=dial.waits)
                await self._dial(contact, self._memory.pace(patience, wish))
        finally:
            del self._dials[contact]
            dial.ended.set()
        if patience.cancelled_caught:
            raise UnreachableError(f"{short_id(contact.peer)} could not be dialled in time")

    async def _await(self, dial: _ContactDial, contact: Contact, turn: TurnWish) -> None:
        """The end of another's dial; who has to have a turn by `until_s` waits no longer for it."""
        dial.askers.append(turn.waits)
        if dial.is_waiting:
            turn.waits(float("inf"))
        try:
            with trio.move_on_at(turn.until_s):
                await dial.ended.wait()
            if not dial.is_waiting:  # It has begun, and is given its time.
                with trio.move_on_after(self._config.dial_time_out_s):
                    await dial.ended.wait()
        finally:
            dial.askers.remove(turn.waits)
        if not dial.ended.is_set():
            raise UnreachableError(f"{short_id(contact.peer)}: another dial of it is still waiting")

    async def _dial(self, contact: Contact, pace: Pace) -> None:
        now_s, memory = trio.current_time(), self._memory
        is_trusted = contact in self._trusted
        due = tuple(one for one in contact.addresses if is_trusted or memory.is_due(one, now_s))
        if contact.addresses and not due:
            raise UnreachableError(f"{short_id(contact.peer)}: was dialled there a moment ago")
        for address in due:
            memory.note_tried(address, now_s, is_trusted=is_trusted)
        try:
            await self._transport.connect(contact.peer, due, pace)
        finally:
            at, connected = self._transport.dialled(contact.peer), self._transport.connected()
            memory.note_outcome(due, at, connected, trio.current_time())

    async def _exchange(self, stream: Stream, request: Request) -> Reply:
        is_clean = False
        try:
            await stream.send_frame(encode_message(request))
            frame = await stream.receive_frame(limits.DHT_FRAME_BYTES_MAX)
            reply = decode_reply(frame, request)
            is_clean = True
        finally:
            # After an error or a cancellation the next reply would answer this request.
            if not is_clean:
                await _close(stream)
        await self._put(stream)
        return reply

    async def _take(self, peer: PeerId) -> Stream | None:
        streams = self._idle.get(peer)
        while streams:
            kept = streams.pop()
            if not streams:
                self._idle.pop(peer, None)
            if trio.current_time() - kept.since_s < self._config.idle_s:
                return kept.stream
            await _close(kept.stream)
        return None

    async def _put(self, stream: Stream) -> None:
        streams = self._idle.setdefault(stream.peer, deque())
        streams.append(_Idle(stream, trio.current_time()))
        self._idle.move_to_end(stream.peer)
        if len(streams) > self._config.idle_streams_per_peer:
            await _close(streams.popleft().stream)
        elif sum(map(len, self._idle.values())) > self._config.idle_streams:
            _, oldest = self._idle.popitem(last=False)
            for kept in oldest:
                await _close(kept.stream)


class RequestServer:
    """Answers the requests of inbound streams, and bounds streams and requests of each peer."""

    def __init__(self, answer: Callable[[PeerId, Request], Reply], config: RequestConfig) -> None:
        self._answer = answer
        self._config = config
        self._num_streams: Counter[PeerId] = Counter()
        self._quotas = RequestQuotas()

    async def serve(self, stream: Stream) -> None:
        """Answer one request after the other until the stream ends or has been idle for long.

        Raises PeerError for what is no request, NetworkError when the stream ends.
        """
        peer = stream.peer
        is_over_quota = self._num_streams[peer] >= limits.DHT_STREAMS_PER_PEER_MAX
        if is_over_quota or self._num_streams.total() >= limits.DHT_STREAMS_MAX:
            return
        self._num_streams[peer] += 1
        try:
            is_open = True
            while is_open:
                is_open = await self._serve_one(stream)
        finally:
            self._num_streams[peer] -= 1
            if not self._num_streams[peer]:
                del self._num_streams[peer]

    async def _serve_one(self, stream: Stream) -> bool:
        """Whether the stream lives on: False once it is idle, or its peer does not read."""
        with trio.move_on_after(2 * self._config.idle_s) as idle:
            frame = await stream.receive_frame(limits.DHT_FRAME_BYTES_MAX)
        if idle.cancelled_caught:
            return False
        request = decode_request(frame)
        wait_s = self._quotas.wait_s(stream.peer, trio.current_time())
        if wait_s:
            await trio.sleep(wait_s)
        reply = self._answer(stream.peer, request)
        with trio.move_on_after(self._config.reply_time_out_s) as unread:
            await stream.send_frame(encode_message(reply))
        return not unread.cancelled_caught


async def _close(stream: Stream) -> None:
    # aclose never blocks on the peer; the shield lets it finish when we are being cancelled.
    with trio.CancelScope(shield=True):
        await stream.aclose()
