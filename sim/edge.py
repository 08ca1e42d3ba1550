"""One process of a simulated node: events into the core, and its actions carried out, in order.

It does what `node.exchange` does, without its threads: disk and arithmetic take no time of the
loop's own, what goes to the worker thread is done when its time is over. What that and the rest of
the edge leave out is listed in `sim.world`.
"""

from math import inf

from node import bulk
from node import events as ev
from node.lingering import Lingering
from node.recovery import StoredState
from node.restart import Restart
from node.round_view import RoundView
from node.shard_store import State
from node.strikes import Strikes
from node.tracing import Adopted, Began, Diverged, Signed, Synced
from protocol import limits
from protocol.frames import Bulk, Chain, Frame, Want, decode_frame, encode_frame
from protocol.identity import PeerId, short_id
from protocol.messages import SealCertificate, SignedMessage
from sim.nodes import Around, NodeParts, Session, SimNode, Transfer, Wire
from sim.transfers import Transfers
from sim.work import SimWork

LEAVE_S = 0.2
"""As `node.running`: for the LEAVE to reach the peers before the streams close."""

TRAINER_END_S, TRAINER_LOOK_S = 5.0, 0.1
"""For the trainer's last look, and how often it is asked whether it is through."""

LATE_S = 1e-6
"""A timer is never early: rounding must not wake a node before the time that it named."""

Computed = ev.Reduce | ev.Apply | ev.CheckSeat | ev.ProveSeat


class Edge(SimNode):
    """See SimNode. `begin` comes first, once; then the world calls what happens."""

    def __init__(self, world: Around, parts: NodeParts) -> None:
        super().__init__(parts)
        self.world = world
        self.work = SimWork(world, self)
        self.transfers = Transfers(world, self)
        self.strikes = Strikes()
        self._logged_round, self._is_lost = 0, False
        self._chain_readers: set[PeerId] = set()
        self._arrived: tuple[SealCertificate, State] | None = None
        self._synced: SealCertificate | None = None
        """A state that was put in place, of which nothing is told yet."""
        self._offered: StoredState | None = None
        self._wake_s, self._due_s = inf, inf
        self._busy_s = 0.0
        self._lingers_s = 0.0
        """Until when the last round is served; 0 while the run goes on."""
        self._is_going, self._was_finished = False, False
        self._lingering: Lingering | None = None
        self._sent: tuple[Frame | None, ev.FrameArrived | None] = (None, None)
        path = short_id(self.peer)
        self._compute_luck = world.luck(f"compute/{path}")
        self._save_luck = world.luck(f"checkpoint/{path}")

    @property
    def own_s(self) -> float:
        """What the node's monotonic clock shows."""
        return self.clock.own_s(self.world.now_s)

    def begin(self, restart: Restart) -> None:
        """The first actions; and what the disk lacks of the state that recovery led to."""
        head, lost, world = restart.chain[-1], restart.is_lost, self.world
        self._logged_round, self._is_lost, first = head.value.round, lost, head.value.round + 1
        world.emit(Began(at_s=world.now_s, peer=self.peer, round=first, head=head, is_lost=lost))
        self.core.wants_seat = False  # Until the trainer is up.
        self.work.begin()
        if head.value.round:
            self.anchors[head.value.round] = self.store.state.anchor_N.tobytes()
            self._offer(head)
        self.carry_out(self.core.start(self.own_s, restart))
        if self.is_alive:
            self._was_finished = self.core.is_finished
            self._after()
            self._finish()

    def tell(self, event: ev.CoreEvent) -> None:
        """See SimNode. A synchronised state is put in place before the core hears of it."""
        if type(event) is ev.StateReady and not self._take_state(event):
            return
        actions = self.core.handle(event, self.clock.own_s(self.world.now_s))
        if actions:
            self.carry_out(actions)
        if self.is_alive:
            self._after()
        if type(event) is ev.StateReady:
            self._finish()

    def _after(self) -> None:
        """What every event may have made due at the edge."""
        if self._is_lost and not self.core.machine.is_muted:
            # Once it is known again what may be signed, a restart need not ask anew.
            self._is_lost = False
            self.disk.journal.forgive_loss()
        if self.transfers.waiting:
            self.transfers.look_again()
        world, clock = self.world, self.clock
        world.ask(self, None)
        if self._lingers_s and self.is_alive:
            self._linger()
        due_s = clock.world_s(self.core.wakeup_s(clock.own_s(world.now_s))) + LATE_S
        self._due_s = due_s
        if due_s < self._wake_s and self.is_alive:
            self._wake_s = due_s
            world.push(due_s, self, self._wake)

    def _wake(self) -> None:
        """The loop's timer; events since it was set may have put it off."""
        now_s = self.world.now_s
        if self._wake_s > now_s:
            return
        self._wake_s = inf
        if self._due_s > now_s:
            self._wake_s = self._due_s
            self.world.push(self._due_s, self, self._wake)
        else:
            self.tell(ev.Tick())

    # Links --------------------------------------------------------------------------------------

    def linked(self, wire: Wire) -> None:
        """See SimNode."""
        self.wires[wire.to.peer] = wire
        self.tell(ev.Linked(wire.to.peer))

    def unlinked(self, session: Session) -> None:
        """See SimNode."""
        peer = session.other(self).peer
        wire = self.wires.get(peer)
        if wire is not None and wire.session is session:
            del self.wires[peer]
            self.tell(ev.Unlinked(peer))
            self.world.look_for(self, peer)

    def is_paused(self, peer: PeerId) -> bool:
        """See SimNode."""
        return self.strikes.is_paused(peer, self.own_s)

    def strike(self, peer: PeerId) -> None:
        """A fault of a peer; with too many of them it is left alone for a while."""
        pause_s = self.strikes.strike(peer, self.own_s)
        if pause_s:
            self.world.hang_up(self, peer, pause_s / self.clock.rate)

    def send(self, peer: PeerId, frame: Frame) -> None:
        """Send a frame; silently nothing if the peer is gone: its end is under way as an event."""
        wire = self.wires.get(peer)
        if wire is None:
            return
        direction = wire.direction
        if direction.held is not None:
            direction.held.append(lambda: self.send(peer, frame))
            return
        if direction.is_blocked:
            return
        last, event = self._sent
        if last is not frame or event is None:
            # A broadcast is one frame to many peers.
            heard = decode_frame(encode_frame(frame)) if self.world.settings.is_encoding else frame
            event = ev.FrameArrived(self.peer, heard)
            self._sent = (frame, event)
        world, to = self.world, wire.to
        for time_s in direction.frame_times(world.now_s):
            world.push(time_s, to, to.hear, wire, event)

    def hear(self, wire: Wire, event: ev.FrameArrived) -> None:
        """See SimNode. Nothing that was sent on an earlier link arrives on this one."""
        own = self.wires.get(event.peer)
        if own is not None and own.session is wire.session and not wire.direction.is_blocked:
            self.tell(event)

    def cells_came(self, transfer: Transfer, num_here: int) -> None:
        """See SimNode."""
        self.transfers.arrived(transfer, num_here)

    # Actions ------------------------------------------------------------------------------------

    def carry_out(self, actions: list[ev.CoreAction]) -> None:
        """In order; but what must survive reaches the disk first, all of a batch together (R12)."""
        self._make_durable(actions)
        sent: Frame | None = None
        for action in actions:
            if type(action) is ev.Send and action.frame is sent:
                self.send(action.peer, action.frame)
                continue  # A broadcast is one action, whoever asks.
            self.world.ask(self, action)
            if not self.is_alive:
                return
            if type(action) is ev.Send:
                sent = action.frame
                self.send(action.peer, sent)
            else:
                self.act(action)

    def _make_durable(self, actions: list[ev.CoreAction]) -> None:
        core, world = self.core, self.world
        if core.chain[-1].value.round > self._logged_round:
            links = [c for c in core.chain if c.value.round > self._logged_round]
            # The chain first: a signature of a round that it does not reach could not be used.
            self.disk.journal.extend_chain(links)
            self._logged_round = links[-1].value.round
            core.trim_chain()
        if self._synced is not None:
            certificate, self._synced = self._synced, None
            root = self.store.state.root
            world.emit(Synced(at_s=world.now_s, peer=self.peer, certificate=certificate, root=root))
        signed: list[SignedMessage] = []
        own = [action.message for action in actions if type(action) is ev.RecordSlot]
        for action in actions if own else ():
            if isinstance(action, ev.RecordSlot):
                signed.append(action.message)
            elif isinstance(action, ev.RecordProof):
                signed += action.messages
        if signed:
            self.disk.journal.record(signed)
            for message in own:
                world.emit(Signed(at_s=world.now_s, peer=self.peer, message=message))

    def act(self, action: ev.CoreAction) -> None:
        """Carry one action out."""
        world = self.world
        match action:
            case ev.RecordSlot() | ev.RecordProof():
                pass  # Done before all else.
            case ev.Push():
                self.transfers.push(action)
            case ev.SendChain(peer=peer, first=first):
                self._send_chain(peer, first)
            case ev.Adopt():
                self._adopt(action)
            case ev.Train():
                self.work.train(action, self.store.state.anchor_N)
            case ev.FetchState(certificate=certificate, source=source):
                self._fetch(certificate, source)
            case ev.Fault(peer=peer, reason=reason):
                world.accuse(self, peer, reason)
            case ev.Resync(reason=reason):
                world.emit(Diverged(at_s=world.now_s, peer=self.peer, reason=reason))
            case ev.Reduce() | ev.Apply() | ev.CheckSeat() | ev.ProveSeat():
                self._compute(action)
            case _:
                raise AssertionError(f"no such action: {action}")

    def _send_chain(self, peer: PeerId, first: int) -> None:
        """A page of seals from the journal; one page at a time, so that a peer asks again."""
        if peer not in self._chain_readers:
            self._chain_readers.add(peer)
            at_s = self.world.now_s + self._computing_s()
            self.world.push(at_s, self, self._chain_read, peer, first)

    def _chain_read(self, peer: PeerId, first: int) -> None:
        self._chain_readers.discard(peer)
        for seal in self.disk.journal.read_chain(first, limits.CHAIN_PAGE_SEALS):
            self.send(peer, Chain(seals=(seal,)))

    def _fetch(self, certificate: SealCertificate, source: PeerId) -> None:
        cells = tuple(range(self.store.num_state_cells))
        self.transfers.expect_state(certificate, source)
        for start in range(0, len(cells), limits.WANT_CELLS_MAX):
            page = cells[start : start + limits.WANT_CELLS_MAX]
            self.send(source, Want(bulk=Bulk.STATE, subject=certificate.value.digest, cells=page))

    # The worker thread --------------------------------------------------------------------------

    def _computing_s(self) -> float:
        low, high = self.device.compute_s
        return low + (high - low) * self._compute_luck.random()

    def _compute(self, action: Computed) -> None:
        """One thread: first come, first served."""
        view = self.core.machine.view
        entries = bulk.rooted(self.core, action) if isinstance(action, ev.Reduce) else ()
        self._busy_s = max(self.world.now_s, self._busy_s) + self._computing_s()
        self.world.push(self._busy_s, self, self.computed, action, view, entries)

    def computed(
        self, action: Computed, view: RoundView, entries: list[tuple[ev.ListEntry, bytes]]
    ) -> None:
        """A task of the thread is done; sums of a round that is over are dropped."""
        store = self.store
        if isinstance(action, ev.Reduce | ev.Apply) and self.core.machine.view is not view:
            return
        match action:
            case ev.Reduce(list_digest=digest, first=first, stop=stop):
                root = store.reduce(digest, entries, first=first, stop=stop)
                self.tell(ev.Reduced(digest, first, stop, root))
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                root = store.apply(digest, is_empty=is_empty, round_index=view.index)
                cells = [] if is_empty else store.result_cells(digest)
                # On the disk before the SEAL that it leads to is signed.
                self.disk.journal.keep_result(view.index, digest, cells)
                self.tell(ev.Applied(digest, root))
            case ev.CheckSeat(peer=peer, basis=basis, proof=proof):
                is_proved = store.seat_proof(peer, basis) == proof
                self.tell(ev.SeatChecked(peer, basis, is_proved))
            case ev.ProveSeat(basis=basis):
                self.tell(ev.SeatProven(basis, store.seat_proof(self.peer, basis)))

    # State --------------------------------------------------------------------------------------

    def _adopt(self, action: ev.Adopt) -> None:
        world, certificate = self.world, action.certificate
        value = certificate.value
        self.store.adopt(value.list_digest)
        state = self.store.state
        world.emit(
            Adopted(
                at_s=world.now_s,
                peer=self.peer,
                certificate=certificate,
                root=state.root,
                was_listed=action.was_listed,
            )
        )
        self.sealed[value.round] = value.digest
        self.anchors[value.round] = state.anchor_N.tobytes()
        self._offer(certificate)
        self._finish()

    def _offer(self, certificate: SealCertificate) -> None:
        """A checkpoint, behind the rounds: of the newest state by the time that it is written."""
        is_busy, self._offered = self._offered is not None, self._stored(certificate)
        if not is_busy:
            low, high = self.device.checkpoint_s
            at_s = self.world.now_s + low + (high - low) * self._save_luck.random()
            self.world.push(at_s, self, self._save)

    def _save(self) -> None:
        offered, self._offered = self._offered, None
        if offered is not None:
            self.disk.save_behind(offered)

    def _stored(self, certificate: SealCertificate) -> StoredState:
        state, value = self.store.state, certificate.value
        return StoredState(value.round, value.digest, state.anchor_N, state.slots)

    def state_came(self, certificate: SealCertificate, state: State) -> None:
        """See SimNode."""
        self._arrived = (certificate, state)
        self.world.push(self.world.now_s, self, self.tell, ev.StateReady(certificate))

    def _take_state(self, event: ev.StateReady) -> bool:
        """Put a synchronised state in place; False if the core has given it up meanwhile."""
        arrived, self._arrived = self._arrived, None
        is_it = arrived is not None and arrived[0] == event.certificate
        if arrived is None or not is_it or not self.core.awaits_state(event.certificate):
            return False
        self.store.replace_state(arrived[1])
        # On the disk before the chain says so, and before anything is built on it. An older state
        # that still waits to be written would take its place there.
        self._offered = None
        self.disk.save(self._stored(event.certificate))
        self.anchors[event.certificate.value.round] = self.store.state.anchor_N.tobytes()
        self._synced = event.certificate
        return True

    # Ends ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """The operator stops it: its peers are told, and then it is gone."""
        self.tell(ev.Leaving())
        if self.is_alive:
            world = self.world
            world.push(world.now_s + LEAVE_S, self, world.ended, self, "left")

    def _finish(self) -> None:
        """The run may be over: then peers are served for a while."""
        if self.is_alive and not self._lingers_s and self.core.is_finished:
            self._lingers_s = self.world.now_s + self.world.settings.linger_s
            was_finished = self._was_finished
            self._lingering = Lingering(self.core, now_s=self.own_s, is_resumed=was_finished)
            if self._lingers_s < inf:
                self.world.push(self._lingers_s, self, self._linger)

    def _linger(self) -> None:
        """Go once everybody is through with the last round, as far as one knows."""
        if self._is_going or self._lingers_s == inf or self._lingering is None:
            return
        now_s = self.world.now_s
        if now_s >= self._lingers_s or not self._lingering.is_needed(self.own_s):
            self._is_going = True
            self._save()
            self._go(now_s + TRAINER_END_S)

    def _go(self, at_latest_s: float) -> None:
        """The trainer takes a look at the last anchor, and all is over."""
        world = self.world
        if self.work.is_done or world.now_s >= at_latest_s:
            world.ended(self, "finished", is_over=True)
        else:
            world.push(world.now_s + TRAINER_LOOK_S, self, self._go, at_latest_s)
