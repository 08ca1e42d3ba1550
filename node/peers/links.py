"""Control streams: one per linked peer, opened by the peer with the lower id if both know it.

A peer is known if the user named it or the directory found it under our run's topic. Peers that
only the DHT's own searches met are no business of the run's.

Owns hello, reading, writing and the search for peers. What arrives goes to the driver as events;
what the driver sends is queued per peer, and a peer that does not drain its queue is unlinked.
"""

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import trio

from dht.directory import Directory
from dht.kademlia.records import SignedRecord
from dht.reaching.addresses import (
    PrivateAddresses,
    may_be_dialled,
    told_in_records,
    told_to_members,
)
from dht.reaching.dials import DialFor, DialMemory, TurnWish
from node.peers.access import Access
from node.peers.dialling import (
    KNOWN_MAX,
    AddressBook,
    Dial,
    DialContext,
    DialDecider,
    KnownProgress,
    Worth,
    pause_s,
)
from node.peers.handshake import shake_hands
from node.state.config import PeerAddress
from protocol import events as ev
from protocol import limits
from protocol.core.budgets import Budgets, Strikes, cost_s
from protocol.errors import (
    BarnraiseError,
    DecodeError,
    ManifestMismatch,
    NetworkError,
    PeerError,
    RefusedError,
    WireVersionError,
)
from protocol.frames import Frame, Refusal, decode_frame, encode_frame
from protocol.identity import PeerId, Signer, short_id
from protocol.join_puzzle import is_solved
from protocol.manifest import SignedManifest
from protocol.transport import Address, Stream, Transport
from protocol.wire import Size, decode, encode

# Announcement -------------------------------------------------------------------------------------
#
# What a node says in the directory under its run's topic.


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says under its run's topic: where it listens, and the work that it has done."""

    addresses: Annotated[tuple[Address, ...], Size(0, limits.ADDRESSES_PER_PEER_MAX)]
    work: Annotated[bytes, Size(0, limits.JOIN_WORK_BYTES)] = b""
    """A member's solution of the run's join puzzle, if the run has one: what shows that the writer
    has to do with the run. Empty for others."""


# Twins --------------------------------------------------------------------------------------------
#
# One identity on two machines: noticed by the peers that both link to, told to the later one.
#
# Each start of a node says in its hello when it was. A start that comes back after another one was
# heard shows that both run: whoever starts anew never says an earlier time again. Two that run
# under one key fill the same slots twice, which looks like a lie; so the later one stops. Its peers
# say so, and their word is taken where more than half of those that it can ask say the same.

TWIN = (
    "another node runs with this one's identity, and was there before: one of the two must stop. "
    "Was the state folder copied? Give this machine a folder of its own with --state, or stop the "
    "other node"
)
"""What the later one is told, and what its peers send it."""

TOLD_S = 120.0
"""For so long the later one is refused, and a peer's word is remembered."""

PEERS_MAX = 4096
"""Of which starts are remembered; the one heard longest ago is forgotten."""


@dataclass(slots=True)
class _Heard:
    last: int
    before: set[int] = field(default_factory=set)
    later: int = -1
    until_s: float = 0.0


class Twins:
    """Starts that peers speak of. Times are monotonic seconds, starts others' milliseconds."""

    def __init__(self) -> None:
        self._heard: dict[PeerId, _Heard] = {}
        self._told_s: dict[PeerId, float] = {}

    def hear(self, peer: PeerId, start: int, now_s: float) -> bool:
        """A hello of that start is here: whether it is the later of two that both run."""
        heard = self._heard.pop(peer, None) or _Heard(start)
        limits.keep_newest(self._heard, peer, heard, PEERS_MAX)
        if start != heard.last:
            if start in heard.before:
                heard.later, heard.until_s = max(start, heard.last), now_s + TOLD_S
            heard.before = {heard.last} | (heard.before & {start, heard.later})
            heard.last = start
        return start == heard.later and now_s < heard.until_s

    def told_by(self, peer: PeerId, others: Collection[PeerId], now_s: float) -> bool:
        """That peer says that we are the later one: whether to believe it, `others` being whom
        else we are linked to."""
        self._told_s[peer] = now_s
        self._told_s = {one: at for one, at in self._told_s.items() if now_s - at < TOLD_S}
        return 2 * len(self._told_s) > len({*others, *self._told_s})


logger = logging.getLogger(__name__)

# Links --------------------------------------------------------------------------------------------

CONTROL_PROTOCOL = "/barnraise/control/1"

QUEUE_FRAMES = 1024
"""Frames waiting for one peer; a healthy one drains dozens per second."""

DIAL_S = 8.0

SEARCH_FIRST_S, SEARCH_S = 1.0, 10.0
"""The directory is asked often while the swarm forms, then now and then."""

SEARCHES_AT_FIRST = 20
OPEN_AGAIN_S = 1.0
REFUSED_AGAIN_S = 30.0
YIELD_S = 1.5
"""Whoever was dialled leaves the dialler so long to open the control stream, and where each dialled
the other, the lower id; it may not have found us yet."""

WRITE_S = 30.0
"""A peer that takes no frame for so long is unlinked. Its queue alone would hold up to a minute of
a busy swarm, and the end of a full queue wakes no writer that waits in the middle of a frame."""

NEW_A_SEARCH_MAX = 32
"""Writers that come into a full book by one search, for others that were out of reach."""

ANNOUNCE_TTL_S = 600.0

HELLOS_MAX = 2
"""Conversations with one peer that are at their hello: ours and its own, opened at one time."""
BRIEF_S = 1.0
"""A link that a peer opens and that ends sooner is a strike: each costs a hello."""
Tell = Callable[[ev.CoreEvent | ev.Fault], Awaitable[None]]


@dataclass(slots=True)
class Links:
    """The control streams of one node. `run` owns all tasks."""

    transport: Transport
    directory: Directory
    signed: SignedManifest
    signer: Signer
    tell: Tell
    finds_nobody: bool = False
    access: Access | None = None
    private_addresses: PrivateAddresses = "auto"
    started_ms: int = 0
    """Of this process, by the wall clock."""

    _twins: Twins = field(default_factory=Twins)
    _is_twin: trio.Event = field(default_factory=trio.Event)
    standing: Callable[[], KnownProgress] = KnownProgress
    """The roster and the last seal: members are dialled first, and nobody new while rounds seal."""

    work: Callable[[], Awaitable[bytes]] | None = None
    """Solves this run's join puzzle for this node; None where the run has none."""

    memory: DialMemory = field(default_factory=DialMemory)
    """What became of the addresses that were dialled; shared with the directory's dials."""

    met: trio.Event = field(default_factory=trio.Event)
    """Set once a peer of the run has been linked, or is not needed to begin."""

    _strikes: Strikes = field(default_factory=Strikes)
    _budgets: Budgets = field(default_factory=Budgets)
    _hellos: Counter[PeerId] = field(default_factory=Counter)
    _queues: dict[PeerId, trio.MemorySendChannel[bytes]] = field(default_factory=dict)
    _scopes: dict[PeerId, trio.CancelScope] = field(default_factory=dict)
    _known: AddressBook = field(default_factory=AddressBook)
    _starts: dict[PeerId, int] = field(default_factory=dict)
    """Of linked peers, what their hello said."""

    _dials: DialDecider = field(init=False)
    _work: bytes = b""
    _rng: random.Random = field(default_factory=random.SystemRandom)
    _said: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    _refusals: dict[PeerId, ManifestMismatch | RefusedError] = field(default_factory=dict)
    _num_changes: int = 0
    _changed: trio.Event = field(default_factory=trio.Event)
    _wanted: trio.Event = field(default_factory=trio.Event)
    _stranger_came: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._dials = DialDecider(
            me=self.transport.peer_id,
            founder=self.signed.manifest.founder,
            book=self._known,
            memory=self.memory,
        )

    def linked(self) -> tuple[PeerId, ...]:
        """Peers with a control stream, ascending."""
        return tuple(sorted(self._queues))

    def acquaintances(self) -> dict[PeerId, tuple[str, ...]]:
        """Linked peers, and where they may be dialled: what they said, and where we found them."""
        return {peer: self.addresses(peer) for peer in self.linked()}

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer may be dialled: what it said while it was linked, and where we found it."""
        return tuple(dict.fromkeys((*self._said.get(peer, ()), *self._known.of(peer))))

    def refusal(self, peer: PeerId) -> ManifestMismatch | RefusedError | None:
        """Why the last hello with a peer failed: it trains another run, or refuses us."""
        return self._refusals.get(peer)

    async def links_changed(self, since: int) -> int:
        """Until more than `since` links and refusals came or went; how many have by now."""
        while self._num_changes <= since:
            await self._changed.wait()
        return self._num_changes

    def _note_change(self) -> None:
        self._num_changes += 1
        self._changed.set()
        self._changed = trio.Event()

    def know(self, address: PeerAddress, *, is_chosen: bool = True) -> None:
        """Remember where a peer may be dialled; the search dials it.

        `is_chosen` of what the user named; what others say is dialled as rarely as theirs.
        """
        if self._has_room(address.peer, is_chosen=is_chosen):
            self._known.name(address.peer, address.address, is_chosen=is_chosen)

    def send(self, peer: PeerId, frame: Frame) -> None:
        """Queue a frame; silently nothing if the peer is gone: its end is under way as an event."""
        self.send_all((peer,), frame)

    def send_all(self, peers: tuple[PeerId, ...], frame: Frame) -> None:
        """The same to several peers; the frame is encoded once."""
        data = encode_frame(frame)
        for peer in (peer for peer in peers if peer in self._queues):
            try:
                self._queues[peer].send_nowait(data)
            except trio.WouldBlock:
                logger.warning("link dropped peer=%s reason=queue full", short_id(peer))
                self._queues.pop(peer).close()
            except trio.BrokenResourceError:
                logger.debug("link is closing peer=%s", short_id(peer))

    def strike(self, peer: PeerId) -> None:
        """Note a fault of a peer. One with too many has no link for a while, and gets none."""
        pause_s = self._strikes.strike(peer, trio.current_time())
        if pause_s:
            logger.warning("peer paused peer=%s pause_s=%.0f", short_id(peer), pause_s)
            self._cut(peer)

    def ban(self, banned: Collection[PeerId]) -> None:
        """Those whom the last seal bans have no link, and get none."""
        for peer in self._strikes.ban(banned):
            self._cut(peer)

    def _cut(self, peer: PeerId) -> None:
        # Not by its queue: a writer that waits for the peer to read would not see it close.
        if peer in self._scopes:
            self._scopes[peer].cancel()
        elif peer in self._queues:
            self._queues.pop(peer).close()

    def _is_paused(self, peer: PeerId) -> bool:
        return self._strikes.is_paused(peer, trio.current_time())

    async def run(self) -> None:
        """Search, link and keep linked until cancelled.

        Raises RefusedError where peers say that another node with this identity was there before.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._announce_and_search, nursery)
            nursery.start_soon(self._open_links, nursery)
            await self._is_twin.wait()
            raise RefusedError(TWIN)

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound control streams. Raises what ended the conversation."""
        began_s = trio.current_time()
        if self._is_paused(stream.peer):
            return
        try:
            await self._converse(stream, is_inbound=True)
        finally:
            if trio.current_time() - began_s < BRIEF_S:
                self.strike(stream.peer)

    # Search -------------------------------------------------------------------------------------

    async def _announce_and_search(self, nursery: trio.Nursery) -> None:
        topic = b"run/" + self.signed.manifest.digest
        announced: Announcement | None = None
        work, searches = self.work, 0
        while True:
            if work is not None and self.transport.peer_id in self.standing().members:
                nursery.start_soon(self._show_work, work)
                work = None
            # A node behind a router gets its address when it has found a relay.
            told = told_in_records(self.transport.addresses(), self.private_addresses)
            said = Announcement(told[: limits.ADDRESSES_PER_PEER_MAX], self._work)
            if said != announced:
                announced = said
                await self.directory.announce(topic, encode(said), ttl_s=ANNOUNCE_TTL_S)
            searches, began_s = searches + 1, trio.current_time()
            if not self.finds_nobody:
                self._note_records(await self.directory.find(topic))
            await trio.sleep(pause_s(SEARCH_FIRST_S, trio.current_time() - began_s))
            if searches >= SEARCHES_AT_FIRST:
                with trio.move_on_after(SEARCH_S - SEARCH_FIRST_S):
                    await self._stranger_came.wait()
            self._stranger_came = trio.Event()

    async def _show_work(self, work: Callable[[], Awaitable[bytes]]) -> None:
        """Say in this member's record what shows that it is of this run; the next search says it.

        A joiner has done it for its seat by then: it is not computed twice.
        """
        self._work = await work()

    def _note_records(self, records: Iterable[SignedRecord]) -> None:
        """Take what a search found, members first; most of it may be made up."""
        found = [(record.writer, self._read_record(record)) for record in records]
        self._rng.shuffle(found)
        num_new = 0
        for writer, said in sorted(found, key=lambda one: self._merit(one[0])):
            if said is None:
                continue
            # Each that is to push another out costs a look at all of them.
            num_new += writer not in self._known
            if writer in self._known or len(self._known) < KNOWN_MAX or num_new <= NEW_A_SEARCH_MAX:
                self._note_record(writer, said)

    def _read_record(self, record: SignedRecord) -> Announcement | None:
        """What a record says, and whether its writer has done the work of this run."""
        writer = record.writer
        try:
            said = decode(Announcement, record.value)
        except DecodeError as error:
            logger.debug("announcement ignored peer=%s reason=%s", short_id(writer), error)
            return None
        run = self.signed.manifest
        bits = run.admission.puzzle_bits
        if bits and said.work and is_solved(run.digest, writer, bits, said.work):
            self._dials.note_proven(writer)
        return said

    def _note_record(self, writer: PeerId, said: Announcement) -> None:
        if self._has_room(writer):
            # Those that a user named come another way, and are dialled wherever they lead.
            here = self.transport.addresses()
            self._known.announce(writer, may_be_dialled(said.addresses, here))

    def _has_room(self, newcomer: PeerId, *, is_chosen: bool = False) -> bool:
        merit = (Worth.NAMED, 1.0) if is_chosen else self._merit(newcomer)
        return self._known.make_room(newcomer, merit, self.transport.connected(), self._merit)

    def _merit(self, peer: PeerId) -> tuple[int, float]:
        return self._dials.merit(peer, self.standing().members)

    def _dial_known(self, nursery: trio.Nursery) -> None:
        around = DialContext(
            connected=frozenset(self.transport.connected()),
            linked=frozenset(self._queues),
            standing=self.standing(),
            is_paused=self._is_paused,
        )
        for dial in self._dials.choose(around, trio.current_time()):
            nursery.start_soon(self._dial, dial)

    async def _dial(self, dial: Dial) -> None:
        try:
            with trio.move_on_after(DIAL_S) as patience:
                pace = self.memory.pace(patience, TurnWish(DialFor.RUN))
                await self.transport.connect(dial.peer, dial.addresses, pace)
        except NetworkError as error:
            logger.info("unreachable peer=%s reason=%s", short_id(dial.peer), error)
        finally:
            at, connected = self.transport.dialled(dial.peer), self.transport.connected()
            self._dials.ended(dial, at, connected, trio.current_time())
        self._wanted.set()

    # Links --------------------------------------------------------------------------------------

    async def _open_links(self, nursery: trio.Nursery) -> None:
        """Open a control stream to every known, connected peer that has none."""
        due_s: dict[PeerId, float] = {}
        while True:
            # Here and not with each search: whose connection broke is in the middle of something.
            self._dial_known(nursery)
            now_s = trio.current_time()
            connected = self.transport.connected()
            due_s = {peer: due_s[peer] for peer in connected if peer in due_s}
            for peer in connected:
                if peer in self._queues or peer not in self._known or self._is_paused(peer):
                    continue
                dialled = self.transport.has_dialled(peer)
                opens = self.transport.peer_id < peer if dialled is None else dialled
                yield_s = 0.0 if opens else YIELD_S
                if now_s >= due_s.setdefault(peer, now_s + yield_s):
                    again_s = REFUSED_AGAIN_S if peer in self._refusals else OPEN_AGAIN_S
                    due_s[peer] = now_s + again_s + yield_s
                    nursery.start_soon(self._open, peer)
            with trio.move_on_after(0.25):
                await self._wanted.wait()
            self._wanted = trio.Event()

    def connection_changed(self) -> None:
        """A connection came or went: look at once; a stranger may be in the directory by now."""
        self._wanted.set()
        if any(peer not in self._known for peer in self.transport.connected()):
            self._stranger_came.set()

    async def _open(self, peer: PeerId) -> None:
        try:
            stream = await self.transport.open_stream(peer, CONTROL_PROTOCOL)
        except NetworkError as error:
            logger.debug("no control stream peer=%s reason=%s", short_id(peer), error)
            return
        try:
            await self._converse(stream)
        except (PeerError, NetworkError) as error:
            logger.info("link ended peer=%s reason=%s", short_id(peer), error)
        finally:
            await stream.aclose()

    async def _converse(self, stream: Stream, *, is_inbound: bool = False) -> None:
        """Hello, then frames in both directions until the stream ends."""
        peer = stream.peer
        # Who comes while it is linked may be another start of it, or another node with its key.
        if (peer in self._queues and not is_inbound) or self._hellos[peer] >= HELLOS_MAX:
            return
        self._hellos[peer] += 1
        try:
            here = told_to_members(
                self.transport.addresses(), self.signed.manifest.trust, self.private_addresses
            )
            hello = await shake_hands(
                stream, self.signed, here, self.signer, self.access, self.started_ms
            )
        except trio.TooSlowError:
            logger.info("no hello peer=%s", short_id(peer))
            return
        except ManifestMismatch as mismatch:
            if self._note_refusal(peer, mismatch):
                logger.warning("another run peer=%s reason=%s", short_id(peer), mismatch)
                await self.tell(ev.Fault(peer, str(mismatch)))
            return
        except RefusedError as refusal:
            is_news = self._note_refusal(peer, refusal)
            if is_news and isinstance(refusal, WireVersionError):
                await self.tell(ev.Fault(peer, str(refusal)))
            raise
        except PeerError as error:
            await self.tell(ev.Fault(peer, f"hello: {error}"))
            raise
        finally:
            self._hellos[peer] -= 1
            self._hellos += Counter()  # Forgets the zeros: a peer may come under many names.
        if await self._is_in_the_way(stream, hello.started_ms):
            return
        self._starts[peer] = hello.started_ms
        self._said[peer] = hello.addresses
        failure: PeerError | NetworkError | None = None
        async with self._linked(peer) as queue, trio.open_nursery() as nursery:
            self._scopes[peer] = nursery.cancel_scope
            nursery.start_soon(self._write, stream, queue, nursery.cancel_scope)
            # Kept and raised behind the nursery, which would wrap it in a group.
            try:
                await self._read(stream)
            except (PeerError, NetworkError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        if isinstance(failure, RefusedError):
            self._note_refusal(peer, failure)
            if self._twins.told_by(peer, self.linked(), trio.current_time()):
                self._is_twin.set()
        elif isinstance(failure, PeerError):
            await self.tell(ev.Fault(peer, f"control stream: {failure}"))
        if failure is not None:
            raise failure

    async def _is_in_the_way(self, stream: Stream, started_ms: int) -> bool:
        """Whether a peer's new stream is not to be its link: there is one, or this start of it is
        the later of two that both run. A link of an earlier start ends for it."""
        peer = stream.peer
        if self._twins.hear(peer, started_ms, trio.current_time()):
            logger.warning("two nodes with one identity peer=%s", short_id(peer))
            await stream.send_frame(encode_frame(Refusal(reason=TWIN, manifest=b"")))
            # A shorter link would be a strike, and the other node has the same name.
            await trio.sleep(BRIEF_S)
            return True
        if peer in self._queues and self._starts.get(peer) != started_ms:
            self._cut(peer)
            with trio.move_on_after(BRIEF_S):
                while peer in self._queues:
                    await self._changed.wait()
        return peer in self._queues  # Or both sides opened one at the same time.

    def _note_refusal(self, peer: PeerId, refusal: ManifestMismatch | RefusedError) -> bool:
        """Whether it is news: who trains another run asks again and again."""
        before = self._refusals.get(peer)
        # Bounded: strangers without end could come and be refused.
        limits.keep_newest(self._refusals, peer, refusal, KNOWN_MAX)
        is_news = before is None or str(before) != str(refusal)
        if is_news:
            self._note_change()
        return is_news

    @asynccontextmanager
    async def _linked(self, peer: PeerId) -> AsyncIterator[trio.MemoryReceiveChannel[bytes]]:
        send, receive = trio.open_memory_channel[bytes](QUEUE_FRAMES)
        self._queues[peer] = send
        self._refusals.pop(peer, None)
        self.met.set()
        self._note_change()
        await self.tell(ev.Linked(peer))
        try:
            yield receive
        finally:
            if self._queues.get(peer) is send:
                del self._queues[peer]
            send.close()
            receive.close()
            # A link that was dropped ends late: a newer one may be up by then. Not shielded: this
            # is only cancelled with the whole node, and then nobody is left to hear it.
            if peer not in self._queues:
                self._said.pop(peer, None)
                self._starts.pop(peer, None)
                self._scopes.pop(peer, None)
                self._note_change()
                self._wanted.set()
                await self.tell(ev.Unlinked(peer))

    async def _read(self, stream: Stream) -> None:
        while True:
            data = await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX)
            peer, frame = stream.peer, decode_frame(data)
            if isinstance(frame, Refusal) and frame.reason == TWIN:
                raise RefusedError(TWIN)
            await self.tell(ev.FrameArrived(peer, frame))
            charge = self._budgets.charge(peer, cost_s(peer, frame, len(data)), trio.current_time())
            if charge.is_over:
                await self.tell(ev.Overdrawn(peer))
            if charge.wait_s:
                await trio.sleep(charge.wait_s)
                if peer not in self.transport.connected():
                    return  # What it left unread would make it seem alive for a while.

    async def _write(
        self,
        stream: Stream,
        queue: trio.MemoryReceiveChannel[bytes],
        scope: trio.CancelScope,
    ) -> None:
        try:
            async for data in queue:
                with trio.move_on_after(WRITE_S) as patience:
                    await stream.send_frame(data)
                if patience.cancelled_caught:
                    logger.info("link ended peer=%s reason=reads nothing", short_id(stream.peer))
                    break
        except BarnraiseError as error:
            logger.debug("write ended peer=%s reason=%s", short_id(stream.peer), error)
        # Our queue was closed or the peer is gone: end the reader too.
        scope.cancel()


# Probing ------------------------------------------------------------------------------------------
#
# A connection broke: is the peer gone? Asked at once, for a round may wait for it.


class Prober(Protocol):
    """The part of the transport that looks."""

    def connected(self) -> tuple[PeerId, ...]:
        """Peers with an open connection."""
        ...

    async def is_gone(self, peer: PeerId, addresses: Sequence[str]) -> bool:
        """Whether a peer's own system says that nothing listens there any more."""
        ...


async def probe(
    transport: Prober,
    links: Links,
    peer: PeerId,
    tell: Callable[[ev.CoreEvent | ev.Fault], Awaitable[None]],
) -> None:
    """Tell the core if a peer whose connection broke is gone. Only linked and known ones matter."""
    addresses = links.addresses(peer)
    if not addresses or not await transport.is_gone(peer, addresses):
        return
    if peer not in transport.connected() and peer not in links.linked():
        await tell(ev.Unlinked(peer, is_gone=True))
