"""The driver of a node: feeds the core with events and carries its actions out, in order.

All decisions are in `node.core`, all bytes in `node.shard_store`. Here are the edges: the event
queue, worker threads, bulk streams, the write-ahead log, the trainer, checkpoints. Topology (who
sums which slice) shows only in the Push actions that come out of the core.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from node import bulk
from node import events as ev
from node.bulk_streams import BulkStreams
from node.checkpoints import Checkpoints
from node.core import NodeCore
from node.hooks import NodeHooks
from node.links import Links
from node.round_view import RoundView
from node.shard_store import ShardStore, State
from node.slot_log import SlotLog
from node.status import EventLog, peer_texts
from node.work import TrainerWork
from protocol import limits
from protocol.errors import StateError
from protocol.frames import Bulk, Want
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealCertificate
from protocol.transport import Transport

logger = logging.getLogger(__name__)

EVENTS_WAITING_MAX = 64
"""Beyond it readers of streams wait, and so do the peers behind them. Waiting readers take turns,
the queue does not: what one peer floods into it stands before everybody's next frame."""

FAULTS_SHOWN_MAX, FAULTS_SHOWN_S = 20, 10.0
"""So many per so long go to the log: a hostile peer makes thousands a second."""

T = TypeVar("T")
CoreInput = ev.CoreEvent | ev.Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParts:
    """What a driver drives."""

    core: NodeCore
    store: ShardStore
    transport: Transport
    log: EventLog
    slots: SlotLog
    checkpoints: Checkpoints
    hooks: NodeHooks


class Driver:
    """One node's event loop. Make it, connect `links` and `trainer`, then `run` it."""

    def __init__(self, parts: DriverParts, *, compute_threads: int) -> None:
        self.core = parts.core
        self.store = parts.store
        self._parts = parts
        self._log = parts.log
        self._send, self._events = trio.open_memory_channel[CoreInput](EVENTS_WAITING_MAX)
        self._limiter = trio.CapacityLimiter(compute_threads)
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._links: Links | None = None
        self._work: TrainerWork | None = None
        self._phase = ("", 0, 0)
        self._round_began_s = trio.current_time()
        self._arrived: tuple[SealCertificate, State] | None = None
        self._faults_since_s, self._num_faults = -FAULTS_SHOWN_S, 0
        self.bulk = BulkStreams(self, parts.transport, parts.hooks, parts.log)
        self.finished = trio.Event()

    def connect(self, links: Links, work: TrainerWork) -> None:
        """Say where frames go and who trains."""
        self._links, self._work = links, work

    async def tell(self, event: CoreInput) -> None:
        """Queue an event; waits while the queue is full."""
        await self._send.send(event)

    def is_linked(self, peer: PeerId) -> bool:
        """Whether a peer's hello is checked and its control stream is open."""
        return self._links is not None and peer in self._links.linked()

    async def changed(self) -> None:
        """Until the core has handled another event."""
        await self._changed.wait()

    async def compute(self, work: Callable[[], T]) -> T:
        """Run numpy work in a worker thread; one at a time, first come, first served."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    async def run(self) -> None:
        """Handle events until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._carry_out(self.core.start(trio.current_time()))
            while True:
                event: CoreInput = ev.Tick()
                with trio.move_on_at(self.core.wakeup_s(trio.current_time())):
                    event = await self._events.receive()
                if isinstance(event, ev.Fault):
                    self._fault(event)
                    continue
                if isinstance(event, ev.Linked | ev.Unlinked):
                    self._show_link(event)
                if isinstance(event, ev.StateReady) and not await self._take_state(event):
                    continue
                await self._carry_out(self.core.handle(event, trio.current_time()))
                self._changed.set()
                self._changed = trio.Event()
                self._show_phase()
                if isinstance(event, ev.StateReady):
                    self._go_on_from(event.certificate)

    # Actions ------------------------------------------------------------------------------------

    async def _carry_out(self, actions: list[ev.CoreAction]) -> None:
        """In order; but all signatures of one batch reach the disk together, before any leaves."""
        signed = [action.message for action in actions if isinstance(action, ev.RecordSlot)]
        if signed:
            await trio.to_thread.run_sync(self._parts.slots.append, signed)
        for action in actions:
            await self._act(action)

    async def _act(self, action: ev.CoreAction) -> None:
        assert self._links is not None
        assert self._work is not None
        match action:
            case ev.Send(peer=peer, frame=frame):
                self._links.send(peer, frame)
            case ev.Push():
                self._spawn(partial(self.bulk.push, action))
            case ev.Adopt():
                await self._adopt(action)
            case ev.Train():
                self._work.train(action, self.store.state.anchor_N)
            case ev.FetchState(certificate=certificate, source=source):
                cells = tuple(range(self.store.num_state_cells))
                self.bulk.expect_state(certificate, source)
                for start in range(0, len(cells), limits.WANT_CELLS_MAX):
                    page = cells[start : start + limits.WANT_CELLS_MAX]
                    want = Want(bulk=Bulk.STATE, subject=certificate.value.digest, cells=page)
                    self._links.send(source, want)
            case ev.Fault():
                self._fault(action)
            case ev.Resync(reason=reason):
                logger.warning("resync reason=%s", reason)
                self._log.emit("resync", reason=reason)
            case ev.Reduce() | ev.Apply() | ev.CheckSeat() | ev.ProveSeat():
                self._spawn(partial(self._answer, action, self.core.machine.view))

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)

    async def _compute_in(self, view: RoundView, work: Callable[[], T]) -> T | None:
        """As `compute`; None if the round went on first, and its cells may be gone."""
        async with self._limiter:
            if self.core.machine.view is not view:
                return None
            return await trio.to_thread.run_sync(work)

    async def _answer(
        self, action: ev.Reduce | ev.Apply | ev.CheckSeat | ev.ProveSeat, view: RoundView
    ) -> None:
        """Compute in a thread, and tell the core. `view` is the round that the action is of."""
        store, root = self.store, None
        if isinstance(action, ev.Reduce | ev.Apply) and self.core.machine.view is not view:
            return
        event: CoreInput
        match action:
            case ev.Reduce(list_digest=digest, first=first, stop=stop):
                entries = bulk.rooted(self.core, action)
                root = await self._compute_in(
                    view, partial(store.reduce, digest, entries, first=first, stop=stop)
                )
                event = ev.Reduced(digest, first, stop, root or b"")
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                root = await self._compute_in(
                    view, partial(store.apply, digest, is_empty=is_empty, round_index=view.index)
                )
                event = ev.Applied(digest, root or b"")
            case ev.CheckSeat(peer=peer, basis=basis, proof=proof):
                expected = await self.compute(partial(store.seat_proof, peer, basis))
                event = ev.SeatChecked(peer, basis, expected == proof)
            case ev.ProveSeat(basis=basis):
                me = self.core.machine.view.me
                proof = await self.compute(partial(store.seat_proof, me, basis))
                event = ev.SeatProven(basis, proof)
        # The round went on meanwhile: what was computed belongs to no round under way.
        is_late = root is None or self.core.machine.view is not view
        if isinstance(event, ev.Reduced | ev.Applied) and is_late:
            return
        await self.tell(event)

    async def _adopt(self, action: ev.Adopt) -> None:
        value = action.certificate.value
        before_N = self.store.state.anchor_N
        await self.compute(partial(self.store.adopt, value.list_digest))
        anchor_N = self._parts.hooks.adopted_anchor(self.store.state.anchor_N, before_N)
        assert self._work is not None
        self._work.adopted(anchor_N)
        previous = self.core.machine.previous
        assert previous is not None
        senders = sorted(
            commit[0] for digest in value.commits if (commit := previous.ballots.commit_of(digest))
        )
        sent, received = self._parts.transport.traffic()
        now_s = trio.current_time()
        self._log.emit(
            "sealed",
            round=value.round,
            digest=value.digest.hex(),
            listed=peer_texts(tuple(senders)),
            members=len(value.roster.seats),
            voters=sum(1 for seat in value.roster.seats if seat.voter_since >= 0),
            attempt=previous.attempt,
            was_listed=action.was_listed,
            wall_s=round(now_s - self._round_began_s, 4),
            bytes_up=sent,
            bytes_down=received,
            train_loss=self._work.train_loss,
        )
        logger.info(
            "round sealed round=%d listed=%d members=%d attempt=%d wall_s=%.2f",
            value.round,
            len(value.commits),
            len(value.roster.seats),
            previous.attempt,
            now_s - self._round_began_s,
        )
        self._round_began_s = now_s
        self._parts.checkpoints.offer(action.certificate, anchor_N, self.store.state.slots)
        if self.core.is_finished:
            self.finished.set()

    async def state_arrived(self, certificate: SealCertificate, cells: dict[int, bytes]) -> None:
        """All cells of a sealed state are here and verified: the loop goes on from it."""
        root = certificate.value.root
        try:
            state = await self.compute(partial(self.store.assemble, root, cells))
        except StateError as error:
            logger.warning("state sync failed reason=%s", error)
            await self.tell(ev.StateFailed(certificate.value.digest))
            return
        self._arrived = (certificate, state)
        await self.tell(ev.StateReady(certificate))

    async def _take_state(self, event: ev.StateReady) -> bool:
        """Put a synchronised state in place; False if the core has given it up meanwhile.

        The head may have gone on by itself, or the source be gone. Asked here in the loop: between
        store and core must be no other event, or a round would go on with the state of another.
        """
        arrived, self._arrived = self._arrived, None
        is_it = arrived is not None and arrived[0] == event.certificate
        if arrived is None or not is_it or not self.core.awaits_state(event.certificate):
            logger.info("state came too late round=%d", event.certificate.value.round)
            return False
        state = self._parts.hooks.synced_state(arrived[1])
        await self.compute(partial(self.store.replace_state, state))
        return True

    def _go_on_from(self, certificate: SealCertificate) -> None:
        self._log.emit("synced", round=certificate.value.round)
        logger.info("state synced round=%d", certificate.value.round)
        if self.core.is_finished:
            self._parts.checkpoints.offer(
                certificate, self.store.state.anchor_N, self.store.state.slots
            )
            self.finished.set()

    # Telling people -----------------------------------------------------------------------------

    def _fault(self, fault: ev.Fault) -> None:
        now_s = trio.current_time()
        if now_s - self._faults_since_s >= FAULTS_SHOWN_S:
            if self._num_faults > FAULTS_SHOWN_MAX:
                logger.warning("more faults count=%d", self._num_faults - FAULTS_SHOWN_MAX)
            self._faults_since_s, self._num_faults = now_s, 0
        self._num_faults += 1
        if self._num_faults > FAULTS_SHOWN_MAX:
            return
        logger.warning("fault peer=%s reason=%s", short_id(fault.peer), fault.reason)
        self._log.emit("fault", peer=peer_id_text(fault.peer), reason=fault.reason)

    def _show_link(self, event: ev.Linked | ev.Unlinked) -> None:
        assert self._links is not None
        name = "linked" if isinstance(event, ev.Linked) else "unlinked"
        logger.info("%s peer=%s", name, short_id(event.peer))
        linked = peer_texts(self._links.linked())
        self._log.emit(name, peer=peer_id_text(event.peer), linked=linked)

    def _show_phase(self) -> None:
        """Emit a phase when it changes: this is how one watches a round."""
        view = self.core.machine.view
        if view.ballots.certified():
            phase = "certified"
        elif self.bulk.parts_in_flight:
            phase = "pushing"
        elif view.own_commit:
            phase = "committed"
        else:
            phase = "training"
        now = (phase, view.index, view.attempt)
        if now != self._phase:
            if now[1] != self._phase[1] and view.is_member:
                self._log.emit("seated", round=view.index)
            self._phase = now
            self._log.emit("phase", round=view.index, phase=phase, attempt=view.attempt)
