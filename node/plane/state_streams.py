"""States and steps on their way: what a node fetches, and what it serves to joiners.

The cells travel in the bulk streams of `node.plane.bulk_streams`, which asks here. Disk and hashing
are in worker threads; of what is served there is about a chunk in memory at a time.
"""

import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import trio

from node.holdings.shard_store import Item, State
from node.plane.bulk_queue import LineLimits, Pause, Throttle
from node.plane.gathered import Gathered, WrongStep
from node.plane.served import CellSource, Served
from node.plane.work_desk import WorkDesk
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.errors import StateError, StreamClosedError
from protocol.frames import Bulk, BulkHeader
from protocol.identity import PeerId
from protocol.messages import SealCertificate

logger = logging.getLogger(__name__)

STALL_S = 10.0
"""As in `node.plane.bulk_streams`: beyond the pause that we make ourselves."""

READ_BYTES = limits.CHUNK_BYTES
"""Read in one go by a worker thread."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """What a node fetches and serves with; `bytes_per_s` of 0 sets no limit to what it serves.

    `line` is what its owner gives of the line to all cells, those of rounds too.
    """

    gathered: Gathered
    served: Served
    bytes_per_s: float = 0.0
    line: LineLimits = field(default_factory=LineLimits)
    work: WorkDesk | None = None
    """In runs with audits."""

    on_fetch: Callable[[bytes], None] = lambda _: None
    """Hears the root of each state that somebody takes cells of."""


class StateStreamsOwner(Protocol):
    """What is needed of the driver."""

    core: NodeCore

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        """Queue an event."""
        ...

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work in a worker thread."""
        ...

    async def state_arrived(self, certificate: SealCertificate, state: State) -> None:
        """The state of that seal is here, and is what was sealed."""
        ...


class Fetching:
    """Carries the core's orders out, and tells it what came of them."""

    def __init__(self, owner: StateStreamsOwner, gathered: Gathered) -> None:
        self._owner = owner
        self.gathered = gathered
        self._lock = trio.Lock()
        """Several streams bring cells; they are taken in one at a time."""
        self._order: ev.FetchOrder | None = None

    def order(self, order: ev.FetchOrder) -> None:
        """Gather the cells of a state, or of the steps to it; forget any other state under way.

        `carry_out` does it: of several orders the last one.
        """
        self._order = order

    async def carry_out(self) -> None:
        """See `order`."""
        async with self._lock:
            order, self._order = self._order, None
            if order is None:
                return
            gathered, compute = self.gathered, self._owner.compute
            if isinstance(order, ev.FetchState):
                held = await compute(partial(gathered.expect_state, order.certificate))
            else:
                held = await compute(partial(gathered.expect_steps, order.certificates))
            await self._owner.tell(ev.FetchBegun(gathered.subject, held))
            await self._go_on()

    def takes(self, header: BulkHeader) -> bool:
        """Whether cells of that kind and subject are wanted."""
        return self.gathered.takes(header)

    async def take(self, peer: PeerId, header: BulkHeader, item: Item) -> None:
        """Take a cell in. Raises ProofError if it is not of the sealed state."""
        kind, subject = header.bulk, header.subject
        async with self._lock:
            # Only of whom we asked: nothing but the state at the end proves the cells of a step.
            is_asked = self._owner.core.catchup.is_asked(peer, subject, item.index)
            if not (is_asked or kind is Bulk.STATE):
                return
            fresh = await self._owner.compute(lambda: self.gathered.take(header, item))
            if fresh:
                await self._owner.tell(ev.CellsFetched(peer, subject, fresh))
                await self._go_on()

    async def _go_on(self) -> None:
        """Take the steps that are due; tell once the state is there."""
        certificate = self.gathered.certificate
        try:
            await self._owner.compute(self.gathered.advance)
            if certificate is None or not self.gathered.is_whole:
                return
            state = await self._owner.compute(self.gathered.state)
        except WrongStep as error:
            await self._owner.tell(ev.StepFailed(error.subject))
        except StateError as error:
            logger.warning("state sync failed reason=%s", error)
            assert certificate is not None
            self.gathered.forget()
            await self._owner.tell(ev.StateFailed(certificate.value.digest))
        else:
            await self._owner.state_arrived(certificate, state)

    async def forget(self, certificate: SealCertificate) -> None:
        """That state is in place and on the disk, or not needed any more."""
        async with self._lock:
            if self.gathered.certificate == certificate and self._order is None:
                await self._owner.compute(self.gathered.forget)


class Outgoing(Protocol):
    """The cells of one transfer, a few at a time."""

    @property
    def count(self) -> int:
        """How many there are in all."""
        ...

    async def more(self) -> Sequence[Item]:
        """The next of them; none at the end."""
        ...


class ListedSource(CellSource, Protocol):
    """A source that names its cells."""

    @property
    def cells(self) -> Sequence[int]:
        """Their numbers."""
        ...


class _FromSource:
    """Cells that are read when it is their turn, about a chunk of them at a time; while their
    source is here."""

    def __init__(
        self,
        source: Callable[[], CellSource | None],
        cells: Sequence[int],
        read: Callable[[Callable[[], list[Item]]], Awaitable[list[Item]]],
    ) -> None:
        self.count = len(cells)
        self._source, self._cells, self._read = source, cells, read
        self._next = 0

    async def more(self) -> Sequence[Item]:
        """See Outgoing."""
        if self._next == self.count:
            return ()
        found = await self._read(self._some)
        self._next += len(found)
        return found

    def _some(self) -> list[Item]:
        source, found = self._source(), list[Item]()
        if source is None:
            raise StreamClosedError("what was asked for is not here any more")
        num_bytes = 0
        for index in self._cells[self._next :]:
            if found and num_bytes >= READ_BYTES:
                break
            found.append(source.item(index))
            num_bytes += len(found[-1].payload)
        return found


class Serving:
    """Reads what joiners ask for, at the pace that the node's owner allows.

    `num_of_round` counts the transfers of parts and results under way: they go before.
    """

    def __init__(self, owner: StateStreamsOwner, parts: StateParts) -> None:
        self._owner = owner
        self._served, self._on_fetch = parts.served, parts.on_fetch
        self._throttle = Throttle(parts.bytes_per_s, now_s=trio.current_time())
        self._limiter = trio.CapacityLimiter(1)
        self.num_of_round = 0

    async def cells(self, push: ev.Push) -> Outgoing | None:
        """The cells that were asked for; None if nothing of that subject is here."""
        certificate = self._owner.core.sealed(push.subject)
        source = None
        if certificate is not None:
            now_s = trio.current_time()
            source = await self.wait_for_disk(
                partial(self._served.find, push.bulk, certificate, now_s=now_s)
            )
        if source is None:
            return None
        # Each once: a Want of 60 KiB that names one cell over and over would ask for gigabytes.
        count = source.count
        cells = [index for index in dict.fromkeys(push.cells) if index < count]
        if push.bulk is Bulk.STATE:
            assert certificate is not None
            self._on_fetch(certificate.value.root)
            # Not held by the transfer: else each peer that takes a piece every few seconds would
            # keep a state of its own here, in memory or as a file that is removed already.
            return _FromSource(weakref.ref(source), cells, self.wait_for_disk)
        return _FromSource(lambda: source, cells, self.wait_for_disk)

    def one_by_one(self, source: ListedSource) -> Outgoing:
        """The cells of a source, read when it is their turn."""
        return _FromSource(lambda: source, source.cells, self.wait_for_disk)

    async def wait_for_disk(self, work: Callable[[], T]) -> T:
        """Do what waits for the disk in a thread."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    @property
    def gives_way(self) -> bool:
        """Whether parts or results move. Then a transfer of a state has one piece under way: what
        is on the line cannot be overtaken."""
        return self.num_of_round > 0

    def turns(self) -> Pause:
        """What each piece of one transfer waits for; the transfer's `scope` waits with it."""
        sent_s = math.inf

        async def pause(num_bytes: int, scope: trio.CancelScope) -> None:
            nonlocal sent_s
            now_s = trio.current_time()
            delay_s = self._throttle.delay_s(
                num_bytes,
                took_s=max(0.0, now_s - sent_s),
                is_round_moving=self.gives_way,
                now_s=now_s,
            )
            if delay_s:
                scope.deadline = now_s + delay_s + STALL_S
                await trio.sleep(delay_s)
            sent_s = trio.current_time()

        return pause
