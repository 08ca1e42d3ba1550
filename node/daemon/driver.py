"""The driver of a node: feeds the core with events and carries its actions out, in order.

All decisions are in `protocol.core.node_core`, all bytes in `node.holdings.shard_store`. Here are
the edges: the event queue, worker threads, bulk streams, the write-ahead log, the trainer,
checkpoints; and who is banned.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from node.holdings.checkpoints import Checkpoints
from node.holdings.journal import Journal, WriteAhead, batch_of
from node.holdings.recovery import take_state
from node.holdings.shard_store import ShardStore, State
from node.peers.links import Links
from node.peers.two_histories import keep_two_histories, two_histories_text
from node.plane import bulk
from node.plane.bulk import check_seat, seat_proven
from node.plane.bulk_streams import BulkStreams
from node.plane.hooks import NodeHooks
from node.plane.state_streams import StateParts
from node.reporting.narrator import Narrator, why_left_out
from node.reporting.trace_file import NodeTrace, untraced
from node.status.board import EventLog
from node.trainers.work import TrainerWork
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.errors import RefusedError, TwoHistoriesError
from protocol.evidence import Evidence
from protocol.frames import Chain
from protocol.hybrid_clock import WallClock
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealCertificate
from protocol.rounds.restart import Restart
from protocol.rounds.round_view import RoundView
from protocol.transport import Transport
from training.methods.method import has_equal_steps

Accuse = Callable[[Evidence], Awaitable[None]]
"""Keeps evidence that this node found, and spreads it."""

OWN_BAN = (
    "this key is banned from the run: it signed two different things in one place, or sums that are"
    " wrong. If it is in use on two machines, stop one; if this machine errs, have its memory"
    " tested; and join with a new key"
)


class Banning:
    """Looks after every event of one node's driver."""

    def __init__(self, core: NodeCore, trace: NodeTrace, log: EventLog) -> None:
        self._core, self._trace, self._log = core, trace, log
        self._banned: tuple[PeerId, ...] = ()

    def look(self, event: ev.CoreEvent, links: Links) -> None:
        """Whom this event convicted, or the newest seal bans. Raises RefusedError if that is we."""
        if isinstance(event, ev.EvidenceHeld):
            for evidence in event.evidence:
                self._trace.convicted(evidence)
                name, what = peer_id_text(evidence.subject), evidence.accusation.name.lower()
                self._log.emit("convicted", peer=name, accusation=what)
        banned = self._core.machine.head.roster.banned
        if banned == self._banned:
            return
        for peer in sorted(set(banned) - set(self._banned)):
            logger.warning("banned peer=%s", short_id(peer))
            self._log.emit("banned", peer=peer_id_text(peer), round=self._core.machine.head.round)
        self._banned = banned
        links.ban(banned)
        if self._core.machine.view.me in banned:
            raise RefusedError(OWN_BAN)


# Banning ------------------------------------------------------------------------------------------
#
# Who is banned, at the edge of a node: told, traced, and without a link once a seal says so.
# Evidence alone closes no link: until the next seal its subject is a member, whose SEAL a small
# quorum may need.

# The driver ---------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

EVENTS_WAITING_MAX = 64
"""Beyond it readers of streams wait, and so do the peers behind them. Waiting readers take turns,
the queue does not: what one peer floods into it stands before everybody's next frame."""

END_CHECK_S = 60.0

TORN_S = 1.5
"""For evidence to reach the peers, before a node that found two histories of its run stops."""

T = TypeVar("T")
OfRound = ev.Measure | ev.Reduce | ev.Apply
CoreInput = ev.CoreEvent | ev.Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverParts:
    """What a driver drives."""

    core: NodeCore
    store: ShardStore
    transport: Transport
    log: EventLog
    journal: Journal
    restart: Restart
    checkpoints: Checkpoints
    states: StateParts
    hooks: NodeHooks
    folder: Path = Path()
    """The run's."""

    trace: NodeTrace | None = None
    wall_clock: WallClock = time.time


class Driver:
    """One node's event loop. Make it, connect `links` and `trainer`, then `run` it."""

    def __init__(self, parts: DriverParts, *, compute_threads: int) -> None:
        self.core = parts.core
        self.store = parts.store
        self._parts = parts
        self._log = parts.log
        self._trace = parts.trace or untraced(parts.core.machine.view.me)
        self._send, self._events = trio.open_memory_channel[CoreInput](EVENTS_WAITING_MAX)
        self._limiter = trio.CapacityLimiter(compute_threads)
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._links: Links | None = None
        self._work: TrainerWork | None = None
        self._narrator = Narrator(parts.log)
        self._banning = Banning(self.core, self._trace, parts.log)
        self._logged_round = parts.restart.chain[-1].value.round
        self._chain_readers: set[PeerId] = set()
        self._is_lost = parts.restart.is_lost
        self._arrived: tuple[SealCertificate, State] | None = None
        self.ahead = WriteAhead(parts.journal)
        self.bulk = BulkStreams(self, parts.transport, parts.hooks, parts.log, parts.states)
        self.finished = trio.Event()
        self.was_finished = False
        """Whether the run had ended before this start of the node."""

    def connect(self, links: Links, work: TrainerWork, accuse: Accuse) -> None:
        """Say where frames go, who trains, and who keeps and spreads evidence."""
        self._links, self._work, self._accuse = links, work, accuse

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
            nursery.start_soon(self.ahead.run)
            await self._go_on_from_disk()
            if self.core.manifest.stop.unix_s:
                nursery.start_soon(self._watch_end)
            while True:
                event: CoreInput = ev.Tick()
                with trio.move_on_at(self.core.wakeup_s(trio.current_time())):
                    event = await self._events.receive()
                if isinstance(event, ev.Fault):
                    self._fault(event)
                    continue
                assert self._links is not None
                if isinstance(event, ev.Linked | ev.Unlinked):
                    self._narrator.link(event, self._links.linked())
                if (placed := await self._placed(event)) is None:
                    continue
                actions = self.core.handle(placed, trio.current_time())
                await self._carry_out(actions, is_synced=isinstance(event, ev.StateReady))
                await self._settle_loss()
                self._changed.set()
                self._changed = trio.Event()
                self._narrator.look(self.core, self.bulk.parts_in_flight)
                self._banning.look(event, self._links)
                if isinstance(event, ev.StateReady):
                    self._go_on_from(event.certificate)

    async def _go_on_from_disk(self) -> None:
        """The first actions; and what the disk lacks of the state that recovery led to."""
        restart = self._parts.restart
        self._trace.began(restart)
        if restart.has_run:
            head = restart.chain[-1]
            logger.info("resumed round=%d", head.value.round)
            self._log.emit("resumed", round=head.value.round)
            if head.value.round:
                self._parts.checkpoints.offer(head, self.store.final)
        await self._carry_out(self.core.start(trio.current_time(), restart))
        if self.core.is_finished:
            self.was_finished = True
            self.finished.set()

    async def _settle_loss(self) -> None:
        """Once it is known again what may be signed, a restart need not ask anew."""
        if self._is_lost and not self.core.machine.is_muted:
            self._is_lost = False
            await trio.to_thread.run_sync(self._parts.journal.forgive_loss)

    async def _watch_end(self) -> None:
        """Say when the run's last date is past, also by a clock that is set meanwhile."""
        end_s = self.core.manifest.stop.unix_s
        while (left_s := end_s - self._parts.wall_clock()) > 0:
            with trio.move_on_after(min(left_s, END_CHECK_S)):
                await self.finished.wait()
        await self.tell(ev.EndTimePassed())

    # Actions ------------------------------------------------------------------------------------

    async def _carry_out(self, actions: list[ev.CoreAction], *, is_synced: bool = False) -> None:
        """In order; but what must survive reaches the disk first, all of a batch together (R12).

        `is_synced` says that they follow from a state that is in place now.
        """
        batch = batch_of(self.core, actions, logged_round=self._logged_round)
        if not batch.is_empty:
            await trio.to_thread.run_sync(batch.write, self._parts.journal)
        if batch.links:
            self._logged_round = batch.links[-1].value.round
            self.core.trim_chain()
        if is_synced:
            self._trace.synced(self.core.machine.certificate, self.store.state.root)
        for action in actions:
            await self._act(action)

    async def _apply(self, view: RoundView, action: ev.Apply) -> bytes | None:
        """The outer step; its result is on the disk before the SEAL that it leads to is signed.

        The disk works while the step is computed: a large result takes it as long.
        """
        digest, is_empty, index = action.list_digest, action.is_empty, view.index
        base = view.seals.head.root
        cells = [] if is_empty else self.store.result_cells(digest)
        roots = self.store.result_roots(digest) if cells else []
        step = partial(self.store.apply, digest, is_empty=is_empty, round_index=index, base=base)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.ahead.keep, index, digest, cells, roots)
            root = await self._compute_in(view, step)
        return root

    async def _act(self, action: ev.CoreAction) -> None:
        assert self._links is not None
        assert self._work is not None
        match action:
            case ev.Send(peer=peer, frame=frame):
                self._links.send(peer, frame)
            case ev.SendAll(peers=peers, frame=frame):
                self._links.send_all(peers, frame)
            case ev.RecordSlot(message=message):
                self._trace.signed(message)  # It is in the journal, and leaves with a later action.
            case ev.Push():
                self._spawn(partial(self.bulk.push, action))
            case ev.SendChain(peer=peer) if peer not in self._chain_readers:
                self._chain_readers.add(peer)
                self._spawn(partial(self._send_chain, action))
            case ev.SendChain():
                pass  # One page at a time: it asks again.
            case ev.Adopt():
                await self._adopt(action)
            case ev.Advance() | ev.Confirm() | ev.FallBack():
                await self._stand(action)
            case ev.Train():
                self._work.train(action, self.store.state.anchor_N)
            case ev.Rerun():
                self._spawn(partial(self._work.audit, action))
            case ev.FetchState() | ev.FetchSteps():
                self.bulk.fetching.order(action)
                self._spawn(self.bulk.fetching.carry_out)
            case ev.Fault():
                self._fault(action)
            case ev.Accuse(evidence=evidence):
                self._spawn(partial(self._accuse, evidence))
            case ev.HistoryKnown():
                self._narrator.history(action)
            case ev.TwoHistories():
                self._spawn(partial(self._stop_torn, action))
            case ev.Resync(reason=reason):
                self._narrator.resync(reason)
                self._trace.diverged(reason)
            case ev.Measure() | ev.Reduce() | ev.Apply() | ev.CheckSeat() | ev.ProveSeat():
                machine = self.core.machine
                view: RoundView | None = machine.view
                if isinstance(action, OfRound):
                    view = machine.standing.about(action.list_digest)
                if view is not None:  # Else that round is over.
                    self._spawn(partial(self._answer, action, view))

    async def _send_chain(self, action: ev.SendChain) -> None:
        assert self._links is not None
        read = partial(self._parts.journal.read_chain, action.first, limits.CHAIN_PAGE_SEALS)
        seals = await trio.to_thread.run_sync(read)
        for seal in seals:
            self._links.send(action.peer, Chain(seals=(seal,)))
        self._chain_readers.discard(action.peer)

    async def _stop_torn(self, found: ev.TwoHistories) -> None:
        """Keep the proof, let the evidence against whoever signed both get out, and stop."""
        path = await trio.to_thread.run_sync(partial(keep_two_histories, self._parts.folder, found))
        self._narrator.torn(found)
        await trio.sleep(TORN_S)
        raise TwoHistoriesError(two_histories_text(path, found.ours.value.round))

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)

    async def _compute_in(self, view: RoundView, work: Callable[[], T]) -> T | None:
        """As `compute`; None if the round went on first, and its cells may be gone."""
        async with self._limiter:
            if not self.core.machine.has_view(view):
                return None
            return await trio.to_thread.run_sync(work)

    async def _answer(self, action: OfRound | ev.CheckSeat | ev.ProveSeat, view: RoundView) -> None:
        """Compute in a thread, and tell the core. `view` is the round that the action is of."""
        store, root = self.store, None
        if isinstance(action, OfRound) and not self.core.machine.has_view(view):
            return
        event: CoreInput
        match action:
            case ev.Measure(list_digest=digest, first=first, stop=stop):
                work = bulk.summing(self.core, store, self._parts.hooks, action)
                root = await self._compute_in(view, work)
                event = ev.Measured(digest, first, stop, root or b"")
            case ev.Reduce(list_digest=digest, first=first, stop=stop):
                work = bulk.summing(self.core, store, self._parts.hooks, action)
                root = await self._compute_in(view, work)
                event = ev.Reduced(digest, first, stop, root or b"")
            case ev.Apply(list_digest=digest):
                if self._work is not None:
                    self._work.results_here()
                base, root = view.seals.head.root, await self._apply(view, action)
                event = ev.Applied(digest, root or b"", base)
            case ev.CheckSeat():
                event = await check_seat(self.core, store, self.compute, action)
            case ev.ProveSeat(basis=basis):
                me = self.core.machine.view.me
                run = self.core.manifest
                event = await self.compute(partial(seat_proven, run, store, me, basis))
        # The round went on meanwhile: what was computed belongs to no round under way.
        is_late = root is None or not self.core.machine.has_view(view)
        if isinstance(event, ev.Measured | ev.Reduced | ev.Applied) and is_late:
            return
        await self.tell(event)
        if isinstance(event, ev.Reduced):
            # The others have its root first: they wait for it.
            digest, cells = event.list_digest, range(event.first, event.stop)
            here = store.results_to_keep(digest, cells, round_index=view.index)
            self.ahead.offer(view.index, digest, here)
            await self._compute_in(view, bulk.stepping_ahead(self.core, store, digest, cells))

    async def _adopt(self, action: ev.Adopt) -> None:
        value, hooks = action.certificate.value, self._parts.hooks
        # Who holds a state has the next one made beside it.
        before = self.store.state if hooks.bends_anchor else None
        await self.compute(partial(self.store.adopt, value.list_digest))
        self.store.forget_parts(bulk.parts_over(self.core))
        state = self.store.state
        if is_bent := before is not None:
            anchor_N = hooks.adopted_anchor(state.anchor_N, before.anchor_N)
            state = await self.compute(partial(self.store.make_state, anchor_N, state.slots))
        self._trace.adopted(action.certificate, state.root, was_listed=action.was_listed)
        assert self._work is not None
        self._work.adopted(state.anchor_N if is_bent else None)
        previous = self.core.machine.previous
        assert previous is not None
        left_out = None if action.was_listed else self._why_left_out(previous)
        traffic, train_loss = self._parts.transport.traffic(), self._work.train_loss
        self._narrator.sealed(action, previous, traffic, train_loss, left_out)
        self._parts.checkpoints.offer(action.certificate, state, is_held=is_bent)
        if (gathered := self.bulk.fetching.gathered.certificate) is not None:
            self._spawn(partial(self.bulk.fetching.forget, gathered))  # Not needed any more.
        if self.core.is_finished:
            self.finished.set()

    def _why_left_out(self, view: RoundView) -> str | None:
        core = self.core
        return why_left_out(
            view,
            wants_seat=core.wants_seat,
            has_spent=core.machine.patience.has_spent(view.me),
            equal_steps=has_equal_steps(core.manifest),
        )

    async def _stand(self, action: ev.Advance | ev.Confirm | ev.FallBack) -> None:
        """R4: on a branch, one round of it final, or off it."""
        assert self._work is not None
        match action:
            case ev.Advance(certificate=certificate, was_listed=was_listed, kept=kept):
                digest = certificate.value.list_digest
                await self.compute(partial(self.store.advance, digest, kept))
                root = self.store.state.root
                self._trace.advanced(certificate, root, was_listed=was_listed)
                self._work.adopted(None)
                self._narrator.advanced(action)
            case ev.Confirm(certificate=certificate):
                digest = certificate.value.list_digest
                root = await self.compute(partial(self.store.confirm, digest))
                self._trace.confirmed(certificate, root)
                self._parts.checkpoints.offer(certificate, self.store.final)
                self._narrator.confirmed(action)
                if self.core.is_finished:
                    self.finished.set()
            case ev.FallBack(final=final_seal, lost=lost):
                await self.compute(self.store.fall_back)
                self._trace.fell_back(final_seal, lost)
                self._work.adopted(None)
                self._work.fell_back()
                self._narrator.fell_back(action)

    async def state_arrived(self, certificate: SealCertificate, state: State) -> None:
        """A sealed state is here and verified: the loop goes on from it."""
        self._arrived = (certificate, state)
        await self.tell(ev.StateReady(certificate))

    async def _placed(self, event: ev.CoreEvent) -> ev.CoreEvent | None:
        """The event, once a synchronised state is in place; None if it is not wanted any more.

        The head may have gone on by itself, or the source be gone. Asked here in the loop: between
        store and core must be no other event, or a round would go on with the state of another.
        """
        if not isinstance(event, ev.StateReady):
            return event
        certificate, at = event.certificate, event.certificate.value.round
        arrived, self._arrived = self._arrived, None
        if arrived is None or certificate != arrived[0] or not self.core.awaits_state(certificate):
            logger.info("state came too late round=%d", at)
            return None
        state = self._parts.hooks.synced_state(arrived[1])
        results = await self.compute(lambda: take_state(self.store, self._parts.journal, at, state))
        # On the disk before the chain says so, and before anything is built on it.
        await self._parts.checkpoints.save(certificate, state.anchor_N, state.slots)
        self._spawn(partial(self.bulk.fetching.forget, certificate))
        return replace(event, results=results)

    def _go_on_from(self, certificate: SealCertificate) -> None:
        self._log.emit("synced", round=certificate.value.round)
        logger.info("state synced round=%d", certificate.value.round)
        if self.core.is_finished:
            self.finished.set()

    def _fault(self, fault: ev.Fault) -> None:
        self._trace.accused(fault.peer, fault.reason)
        if self._links is not None and fault.is_strike:
            self._links.strike(fault.peer)
        self._narrator.fault(fault)
