"""Bulk streams: cells out, cells in, each checked on arrival. One stream per transfer."""

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from node import bulk
from node import events as ev
from node.core import NodeCore
from node.hooks import NodeHooks
from node.shard_store import Item, ShardStore
from node.status.board import EventLog
from protocol import limits
from protocol.errors import NetworkError, PeerError, ProofError, StreamClosedError
from protocol.frames import Bulk, BulkHeader, BulkItem
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealCertificate
from protocol.transport import Stream, Transport
from protocol.wire import decode, encode

logger = logging.getLogger(__name__)

BULK_PROTOCOL = "/barnraise/bulk/1"

STALL_S = 10.0
"""A transfer that moves no cell for so long is given up; the round does without it."""

OVERTAKEN_S = 4.0
"""Cells can overtake the message that commits to them; under the 5 s after which the library
resets a stream whose reader does not read."""

SMALL_BYTES = 64 * limits.KIB
"""Below it, hashing costs less than the way to a worker thread and back."""

PUSHES_MAX = {Bulk.PART: 16, Bulk.RESULT: 16, Bulk.STATE: 2}
"""Transfers to one peer at a time, by kind. A whole state is one, or two where it has many slots;
what is asked for beyond is not sent, and an honest peer asks again."""

T = TypeVar("T")


class Owner(Protocol):
    """What the streams need of the driver."""

    core: NodeCore
    store: ShardStore

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

    async def state_arrived(self, certificate: SealCertificate, cells: dict[int, bytes]) -> None:
        """All cells of a state are here."""
        ...


class BulkStreams:
    """Sends and receives cells for one driver."""

    def __init__(self, owner: Owner, transport: Transport, hooks: NodeHooks, log: EventLog) -> None:
        self._owner = owner
        self._transport = transport
        self._hooks = hooks
        self._log = log
        self._expected: tuple[SealCertificate, PeerId] | None = None
        self._cells: dict[int, bytes] = {}
        self._pushing: Counter[tuple[PeerId, Bulk]] = Counter()
        self.parts_in_flight = 0

    # Out ----------------------------------------------------------------------------------------

    async def push(self, push: ev.Push) -> None:
        """Send the cells that are here. A peer out of reach asks elsewhere, or is absent."""
        lane = (push.to, push.bulk)
        if not self._owner.is_linked(push.to) or self._pushing[lane] >= PUSHES_MAX[push.bulk]:
            return
        items = bulk.outgoing(self._owner.core, self._owner.store, push)
        if not items:
            return
        is_part = push.bulk is Bulk.PART
        round_index = self._owner.core.machine.view.index
        self._pushing[lane] += 1
        if is_part:
            self.parts_in_flight += 1
            self._log.emit("phase", round=round_index, phase="pushing", attempt=0)
        try:
            await self._send_items(push, items)
        except (NetworkError, trio.TooSlowError) as error:
            logger.info("not sent peer=%s what=%s reason=%s", short_id(push.to), push.bulk, error)
        else:
            if is_part:
                self._tell_parts(push.to, round_index, len(items), "out")
        finally:
            self.parts_in_flight -= is_part
            self._pushing[lane] -= 1
            self._pushing += Counter()  # Forgets the zeros: a peer may come under many names.

    async def _send_items(self, push: ev.Push, items: list[Item]) -> None:
        with trio.fail_after(STALL_S) as scope:
            stream = await self._transport.open_stream(push.to, BULK_PROTOCOL)
            try:
                header = BulkHeader(bulk=push.bulk, subject=push.subject, items=len(items))
                await stream.send_frame(encode(header))
                for item in items:
                    sent = self._hooks.sent_item(push.bulk, item)
                    head = BulkItem(index=sent.index, length=len(sent.payload), proof=sent.proof)
                    await stream.send_frame(encode(head))
                    await stream.send_all(sent.payload)
                    scope.deadline = trio.current_time() + STALL_S
            finally:
                await stream.aclose()

    # In -----------------------------------------------------------------------------------------

    def expect_state(self, certificate: SealCertificate, source: PeerId) -> None:
        """Take state cells of this seal, from this peer; forget any other state under way."""
        self._expected, self._cells = (certificate, source), {}

    async def accept(self, stream: Stream) -> None:
        """Handler of inbound bulk streams. Raises PeerError for what does not fit.

        A peer that is not linked may be one that only the DHT knows; its cells are none of ours.
        """
        if not self._owner.is_linked(stream.peer):
            logger.debug("bulk stream of a peer without a link peer=%s", short_id(stream.peer))
            return
        try:
            with trio.fail_after(STALL_S) as scope:
                data = await stream.receive_frame(limits.BULK_HEADER_BYTES_MAX)
                header = decode(BulkHeader, data)
                scope.deadline = trio.current_time() + STALL_S
                if header.bulk is Bulk.STATE:
                    await self._receive_state(stream, header, scope)
                else:
                    await self._receive_cells(stream, header, scope)
        except trio.TooSlowError as error:
            raise StreamClosedError(f"a transfer of {short_id(stream.peer)} stalled") from error
        except PeerError as error:
            await self._owner.tell(ev.Fault(stream.peer, f"bulk: {error}"))
            raise

    async def _receive_item(self, stream: Stream, header: BulkHeader) -> Item:
        data = await stream.receive_frame(limits.BULK_ITEM_HEADER_BYTES_MAX)
        head = decode(BulkItem, data)
        expected = bulk.expected_bytes(self._owner.store, header, head.index)
        if head.length != expected:
            raise ProofError(f"cell {head.index} has {head.length} bytes instead of {expected}")
        payload = await stream.receive_exactly(head.length)
        return Item(head.index, payload, head.proof)

    async def _receive_cells(
        self, stream: Stream, header: BulkHeader, scope: trio.CancelScope
    ) -> None:
        owner, cells = self._owner, []
        round_index = owner.core.machine.view.index
        for _ in range(header.items):
            item = await self._receive_item(stream, header)
            scope.deadline = trio.current_time() + STALL_S
            if not await self._is_checkable(header, item.index):
                logger.info("cells of nothing known peer=%s", short_id(stream.peer))
                return
            accept = bulk.admission(owner.core, owner.store, header, item)
            if len(item.payload) <= SMALL_BYTES:
                accept()
            else:
                await owner.compute(accept)
                await owner.tell(ev.BytesArrived(stream.peer))
            cells.append(item.index)
        await owner.tell(ev.BytesArrived(stream.peer))
        await owner.tell(ev.CellsArrived(header.bulk, header.subject, tuple(cells)))
        if header.bulk is Bulk.PART:
            self._tell_parts(stream.peer, round_index, len(cells), "in")

    async def _is_checkable(self, header: BulkHeader, index: int) -> bool:
        with trio.move_on_after(OVERTAKEN_S):
            while not bulk.can_check(self._owner.core, header, index):
                await self._owner.changed()
        return bulk.can_check(self._owner.core, header, index)

    async def _receive_state(
        self, stream: Stream, header: BulkHeader, scope: trio.CancelScope
    ) -> None:
        owner, expected = self._owner, self._expected
        if expected is None or expected[1] != stream.peer:
            return  # A source that was given up delivers after all: nobody's fault.
        certificate = expected[0]
        if certificate.value.digest != header.subject:
            return
        for _ in range(header.items):
            item = await self._receive_item(stream, header)
            scope.deadline = trio.current_time() + STALL_S
            await owner.compute(partial(owner.store.check_state_cell, certificate.value.root, item))
            if self._expected is not expected:
                return  # Given up for another seal or source: cells of two states do not mix.
            self._cells[item.index] = item.payload
            await owner.tell(ev.BytesArrived(stream.peer, is_state=True))
        if self._expected is expected and len(self._cells) == owner.store.num_state_cells:
            self._expected = None
            await owner.state_arrived(certificate, self._cells)

    def _tell_parts(self, peer: PeerId, round_index: int, cells: int, direction: str) -> None:
        self._log.emit(
            "parts",
            round=round_index,
            peer=peer_id_text(peer),
            cells=cells,
            direction=direction,
        )
