"""Bulk streams: cells out, cells in, each checked on arrival. One stream per transfer.

What is sent when is decided in `node.plane.bulk_queue`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Protocol, TypeVar

import trio

from node.holdings.shard_store import Item, ShardStore, State
from node.holdings.write_ahead import WriteAhead
from node.plane import bulk
from node.plane.bulk_checks import Checks
from node.plane.bulk_queue import Meter, PushQueue, SendWindow
from node.plane.bulk_receiving import TOLD_EVERY_S as TOLD_EVERY_S
from node.plane.bulk_receiving import Inbound
from node.plane.bulk_sending import STALL_S as STALL_S
from node.plane.bulk_sending import await_through, num_together, piece_bytes, send_items
from node.plane.hooks import NodeHooks
from node.plane.state_streams import Fetching, InMemory, Outgoing, Serving, StateParts
from node.plane.uplink import Uplink
from node.status.board import EventLog
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.errors import (
    LimitError,
    NetworkError,
    PeerError,
    StateError,
    StreamClosedError,
)
from protocol.frames import Bulk, BulkHeader
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealCertificate
from protocol.transport import Stream, Transport
from protocol.wire import decode, encode

logger = logging.getLogger(__name__)

BULK_PROTOCOL = "/barnraise/bulk/1"

OVERTAKEN_S = 4.0
"""Cells can overtake the message that commits to them; under the 5 s after which the library
resets a stream whose reader does not read."""

SMALL_BYTES = 64 * limits.KIB
"""Below it, hashing costs less than the way to a worker thread and back."""

STREAMS_MAX = 8
"""Of one peer at a time: each holds some cells in memory. A node opens up to four."""

T = TypeVar("T")


class BulkOwner(Protocol):
    """What the streams need of the driver."""

    core: NodeCore
    store: ShardStore
    ahead: WriteAhead

    def is_linked(self, peer: PeerId) -> bool:
        """Whether a peer's hello is checked and its control stream is open."""
        ...

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        """Queue an event."""
        ...

    async def changed(self) -> None:
        """Until the core has handled another event."""
        ...

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work in a worker thread."""
        ...

    async def state_arrived(self, certificate: SealCertificate, state: State) -> None:
        """The state of that seal is here, and is what was sealed."""
        ...


class BulkStreams:
    """Sends and receives cells for one driver."""

    def __init__(
        self,
        owner: BulkOwner,
        transport: Transport,
        hooks: NodeHooks,
        log: EventLog,
        parts: StateParts,
    ) -> None:
        self._owner = owner
        self._transport = transport
        self._hooks = hooks
        self._log = log
        self.fetching = Fetching(owner, parts.gathered)
        self._serving = Serving(owner, parts)
        self._line = parts.line
        self._work = parts.work
        self._queue = PushQueue()
        self._paces: dict[PeerId, SendWindow] = {}
        self.uplink = Uplink()
        self._checks = Checks(owner.compute)
        self._num_inbound: Counter[PeerId] = Counter()
        self.parts_in_flight = 0

    # Out ----------------------------------------------------------------------------------------

    async def push(self, push: ev.Push) -> None:
        """Send the cells that are here once it is their turn, and then whatever else waits.

        A peer out of reach asks elsewhere, or is absent.
        """
        after_s = self._hooks.cells_after_s(push.to, push.bulk, push.subject)
        if after_s == inf:
            return
        if after_s:
            await trio.sleep(after_s)
        if push.bulk is Bulk.WORK and not await self._may_open(push):
            return
        self._queue.offer(push, round_index=self._owner.core.machine.view.index)
        async with trio.open_nursery() as nursery:
            await self._go_on(push.to, nursery)

    async def _may_open(self, push: ev.Push) -> bool:
        return self._work is not None and await self._work.may_open(push, self._owner.changed)

    async def _go_on(self, to: PeerId, nursery: trio.Nursery) -> None:
        while (due := self._queue.begin(to)) is not None:
            sent = trio.Event()
            nursery.start_soon(self._carry, due, sent, nursery)
            await sent.wait()

    async def _carry(self, due: ev.Push, sent: trio.Event, nursery: trio.Nursery) -> None:
        """One transfer. The next one begins when this is sent but for its rest, or through."""

        def is_sent() -> None:
            self._queue.sent(due)
            sent.set()

        try:
            await self._send(due, is_sent)
        finally:
            self._queue.done(due)
            sent.set()
        await self._go_on(due.to, nursery)

    async def _send(self, push: ev.Push, is_sent: Callable[[], None]) -> None:
        if not self._owner.is_linked(push.to):
            self._queue.forget(push.to)
            return
        about = bulk.round_of(self._owner.core, push)
        if push.bulk in bulk.IS_SERVED:
            cells: Outgoing | None = await self._serving.cells(push)
            if cells is None or about is None:
                await self._owner.tell(ev.NotServed(push.to, push.bulk, push.subject))
                return
        elif about is None:
            return
        elif push.bulk is Bulk.WORK and self._work is not None:
            cells = await self._work.outgoing(push)
        elif push.bulk is Bulk.RESULT and self._owner.store.is_on_disk(push.subject):
            spans = bulk.result_spans(self._owner.core, push)
            cells = self._serving.one_by_one(bulk.StoredResults(self._owner.store, push, spans))
        else:
            cells = InMemory(bulk.outgoing(self._owner.core, self._owner.store, push))
        count = cells.count
        if not count or not bulk.is_of_use(self._owner.core, push):
            return
        header = BulkHeader(bulk=push.bulk, subject=push.subject, round=about, items=count)
        header = self._hooks.sent_header(header)
        is_part = push.bulk is Bulk.PART
        round_index = self._owner.core.machine.view.index
        if is_part:
            self.parts_in_flight += 1
            self._log.emit("phase", round=round_index, phase="pushing", attempt=0)
        is_measured = push.bulk in (Bulk.PART, Bulk.RESULT)
        num_bytes: int | None = None
        self._serving.num_of_round += push.bulk not in bulk.IS_SERVED
        if is_measured:
            self.uplink.began(trio.current_time())
        try:
            num_bytes = await self._send_items(push, header, cells, is_sent)
        except (NetworkError, StateError, trio.TooSlowError) as error:
            reason = str(error) or f"nothing moved for {STALL_S:g} s"
            if isinstance(error, trio.TooSlowError):
                self._pace(push.to).stalled()
            logger.info(
                "not sent peer=%s what=%s reason=%s", short_id(push.to), push.bulk.name, reason
            )
        else:
            if is_part:
                self._tell_parts(push.to, round_index, count, "out")
        finally:
            if is_measured:
                self.uplink.ended(num_bytes, trio.current_time())
            self.parts_in_flight -= is_part
            self._serving.num_of_round -= push.bulk not in bulk.IS_SERVED

    def _pace(self, peer: PeerId) -> SendWindow:
        if peer not in self._paces:
            # A peer may come under many names, but not be linked under all of them.
            kept = {p: pace for p, pace in self._paces.items() if self._owner.is_linked(p)}
            self._paces = {**kept, peer: SendWindow()}
        return self._paces[peer]

    async def _send_items(
        self, push: ev.Push, header: BulkHeader, cells: Outgoing, is_sent: Callable[[], None]
    ) -> int:
        """How many bytes of payload the taker has now."""
        num_bytes, meter, serving = 0, Meter(self._pace(push.to)), self._serving
        before = None
        if push.bulk is Bulk.STATE:
            meter = Meter(self._pace(push.to), gives_way=lambda: serving.gives_way)
            before = serving.turns()
        pause, is_limited = self._line.turn(before), self._line.turn(None) is not None
        with trio.fail_after(STALL_S) as scope:
            stream = await self._transport.open_stream(push.to, BULK_PROTOCOL)
            try:
                await stream.send_frame(encode(header))
                num_left = header.items
                while found := await cells.more():
                    found = [self._hooks.sent_item(push.bulk, item) for item in found]
                    while found:
                        count = num_together(found, piece_bytes(meter, pause))
                        items, found = found[:count], found[count:]
                        num_bytes += sum(len(item.payload) for item in items)
                        num_left -= count
                        if not is_limited and meter.is_rest(num_left * len(items[0].payload)):
                            is_sent()
                        await send_items(stream, items, meter, scope, pause)
                is_sent()
                # It is under way until the taker has it: the system's buffers hold a round's bytes.
                while meter.under_way:
                    await await_through(stream, meter, scope)
            finally:
                await stream.aclose()
        return num_bytes

    # In -----------------------------------------------------------------------------------------

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound bulk streams. Raises PeerError for what does not fit.

        A peer that is not linked may be one that only the DHT knows; its cells are none of ours.
        """
        if not self._owner.is_linked(stream.peer):
            logger.debug("bulk stream of a peer without a link peer=%s", short_id(stream.peer))
            return
        if self._num_inbound[stream.peer] >= STREAMS_MAX:
            logger.info("too many bulk streams at once peer=%s", short_id(stream.peer))
            return
        inbound: Inbound | None = None
        self._num_inbound[stream.peer] += 1
        try:
            with trio.fail_after(STALL_S) as scope:
                data = await stream.receive_frame(limits.BULK_HEADER_BYTES_MAX)
                inbound = Inbound(stream, self._owner, scope, decode(BulkHeader, data), self._line)
                scope.deadline = trio.current_time() + STALL_S
                if inbound.header.bulk in bulk.IS_SERVED:
                    await self._receive_fetched(inbound)
                elif inbound.header.bulk is Bulk.WORK:
                    await self._receive_work(inbound)
                else:
                    await self._receive_cells(inbound)
        except trio.TooSlowError as error:
            raise StreamClosedError(f"a transfer of {short_id(stream.peer)} stalled") from error
        except PeerError as error:
            await self._owner.tell(ev.Fault(stream.peer, f"bulk: {error}"))
            if inbound is not None and inbound.header.bulk in bulk.IS_SERVED:
                await self._owner.tell(ev.FetchedWrong(stream.peer))
            raise
        finally:
            self._num_inbound[stream.peer] -= 1
            self._num_inbound += Counter()  # Forgets the zeros: a peer may come under many names.
            if inbound is not None and inbound.cells:
                await inbound.tell()

    async def _receive_cells(self, inbound: Inbound) -> None:
        owner, header, peer = self._owner, inbound.header, inbound.stream.peer
        round_index = owner.core.machine.view.index

        async def take(items: Sequence[Item]) -> bool:
            cells = [item.index for item in items]
            accept = bulk.admission(owner.core, owner.store, header, items)
            if accept is None:
                inbound.timed_s = -1.0  # The line does not wait: this node does.
                accept = await self._admission(header, items)
            if accept is None:
                logger.info("cells of nothing known peer=%s", short_id(peer))
                return False
            if sum(len(item.payload) for item in items) <= SMALL_BYTES:
                accept()
            else:
                await self._checks.run(accept)
            if header.bulk is Bulk.RESULT:
                view = owner.core.machine.standing.about(header.subject)
                if view is not None:
                    digest, index = header.subject, view.index
                    here = owner.store.results_to_keep(digest, cells, round_index=index)
                    owner.ahead.offer(index, digest, here)
            inbound.cells.extend(cells)
            return True

        if await inbound.take_all(take) and header.bulk is Bulk.PART:
            self._tell_parts(peer, round_index, header.items, "in")

    async def _admission(
        self, header: BulkHeader, items: Sequence[Item]
    ) -> Callable[[], None] | None:
        """The check, once the message that commits to the cells is here; None if it stays away."""
        owner, accept = self._owner, None
        with trio.move_on_after(OVERTAKEN_S):
            while accept is None:
                await owner.changed()
                accept = bulk.admission(owner.core, owner.store, header, items)
        return accept

    async def _receive_fetched(self, inbound: Inbound) -> None:
        """Cells of a state or step; what nobody asked for any more is nobody's fault."""
        peer, header = inbound.stream.peer, inbound.header

        async def take(items: Sequence[Item]) -> bool:
            for item in items:
                await self.fetching.take(peer, header, item)
            return True

        await inbound.take_all(take, lambda: self.fetching.takes(header))

    async def _receive_work(self, inbound: Inbound) -> None:
        """Cells of work that was asked for; what nobody needs any more is nobody's fault."""
        work, subject = self._work, inbound.header.subject
        if work is None:
            raise LimitError("work in a run without audits")

        async def take(items: Sequence[Item]) -> bool:
            for item in items:
                if not await self._owner.compute(partial(work.keep, subject, item)):
                    return False
                inbound.cells.append(item.index)
            return True

        await inbound.take_all(take, lambda: work.wants(subject))

    def _tell_parts(self, peer: PeerId, round_index: int, cells: int, direction: str) -> None:
        self._log.emit(
            "parts",
            round=round_index,
            peer=peer_id_text(peer),
            cells=cells,
            direction=direction,
        )
