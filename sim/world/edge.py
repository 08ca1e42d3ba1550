"""One process of a simulated node: events into the core, and its actions carried out, in order.

It does what `node.daemon.driver` does, without its threads: disk and arithmetic take no time of the
loop's own, what goes to the worker thread is done when its time is over. What that and the rest of
the edge leave out is listed in `sim.world.world`.
"""

from collections import deque
from dataclasses import replace
from math import inf

from node.holdings.journal import batch_of
from node.holdings.recovery import StoredState, take_state
from node.holdings.shard_store import State
from node.peers.bent_links import FLOOD_BYTES_PER_S
from node.peers.leaving import HAND_OVER_S_MAX, HandingOver, Lingering
from node.plane import bulk
from node.plane.bulk import seat_proven
from node.plane.gathered import Gathered
from node.plane.served import Served
from node.reporting.tracing import (
    Adopted,
    Advanced,
    Began,
    Confirmed,
    Convicted,
    Diverged,
    FellBack,
    Signed,
    Synced,
)
from protocol import events as ev
from protocol import limits
from protocol.core.budgets import Budgets, Strikes, about_bytes, cost_s
from protocol.errors import PeerError
from protocol.evidence import Evidence, decode_evidence
from protocol.frames import Chain, Frame
from protocol.gossip import Entries
from protocol.identity import PeerId, short_id
from protocol.messages import SealCertificate
from protocol.rounds.restart import Restart
from protocol.rounds.round_view import RoundView
from sim.attacks.work import spoiled_gram, spoiled_sum
from sim.world.nodes import Around, NodeParts, Session, SimNode, Transfer, Wire
from sim.world.traffic import GONE_S, Transfers, send_frame
from sim.world.work import SimWork

# Evidence -----------------------------------------------------------------------------------------

BANNED = "banned from this run"


class Convicting:
    """What one process knows of liars: evidence is kept, passed on once, and told to the core; who
    is banned for it has no link. Its disk keeps the evidence.

    It does what `node.shared_state` and gossip do with evidence, without all their other entries:
    linked peers push what is new, and tell a new neighbour what they hold.
    """

    def __init__(self, world: Around, node: SimNode, strikes: Strikes) -> None:
        self._world, self._node, self._strikes = world, node, strikes
        self._run = node.core.manifest.digest

    def begin(self) -> None:
        """The core hears again of what the disk holds."""
        self._tell(tuple(self._node.disk.evidence.values()))
        self.look()

    def found(self, evidence: Evidence) -> None:
        """Evidence that was checked: keep it, and pass it on if it is news."""
        held, node = self._node.disk.evidence, self._node
        if evidence.subject in held:
            return
        held[evidence.subject] = evidence
        at_s = self._world.now_s
        self._world.emit(Convicted(at_s=at_s, peer=node.peer, evidence=evidence))
        send_frame(self._world, node, tuple(node.wires), _told(evidence))
        self._tell((evidence,))

    def heard(self, source: PeerId, frame: Entries) -> None:
        """Evidence that a peer passed on: nobody's word is taken for it."""
        signer = self._node.core.signer
        for encoded in frame.entries:
            try:
                self.found(decode_evidence(encoded, self._run, signer))
            except PeerError as error:
                self._world.accuse(self._node, source, f"entry: {error.strike}")
                return

    def linked(self, peer: PeerId) -> None:
        """A new neighbour may not know."""
        for _, evidence in sorted(self._node.disk.evidence.items()):
            send_frame(self._world, self._node, (peer,), _told(evidence))

    def look(self) -> None:
        """Nobody who is banned has a link; a node that is banned itself ends."""
        node, banned = self._node, self._node.core.machine.head.roster.banned
        if node.peer in banned:
            self._world.ended(node, BANNED)
            return
        for peer in self._strikes.ban(banned):
            self._world.hang_up(node, peer, float("inf"))

    def _tell(self, evidence: tuple[Evidence, ...]) -> None:
        if evidence:
            self._world.push(
                self._world.now_s, self._node, self._node.tell, ev.EvidenceHeld(evidence)
            )


def _told(evidence: Evidence) -> Entries:
    return Entries(is_push=True, entries=(evidence.encoded,))


# Events and actions -------------------------------------------------------------------------------

LEAVE_S = 0.2
"""As `node.daemon.running`: for the LEAVE to reach the peers before the streams close."""

TRAINER_END_S, TRAINER_LOOK_S = 5.0, 0.1
"""For the trainer's last look, and how often it is asked whether it is through."""

FLOOD_EVERY_S = 0.05
FLOOD_FRAMES_MAX = 64
"""Frames that a flooder offers to one peer at a time, and that wait there to be read at most: the
window of a stream."""

LATE_S = 1e-6
"""A timer is never early: rounding must not wake a node before the time that it named."""


OfRound = ev.Measure | ev.Reduce | ev.Apply

Computed = OfRound | ev.CheckSeat | ev.ProveSeat


class Edge(SimNode):
    """See SimNode. `begin` comes first, once; then the world calls what happens."""

    __deletable__ = ("convicting", "transfers", "work")

    def __init__(self, world: Around, parts: NodeParts) -> None:
        super().__init__(parts)
        self.world = world
        self._arrived: tuple[SealCertificate, State] | None = None
        self._synced: SealCertificate | None = None
        """A state that was put in place, of which nothing is told yet."""
        self._offered: StoredState | None = None
        self._busy_s = 0.0
        path = short_id(self.peer)
        self._compute_luck = world.luck(f"compute/{path}")
        self._save_luck = world.luck(f"checkpoint/{path}")
        self.work = SimWork(world, self)
        parts.core.working = self.work.working
        self.transfers = Transfers(world, self)
        self.strikes = Strikes()
        self._budgets = Budgets()
        self._unread: dict[PeerId, deque[tuple[Wire, ev.FrameArrived]]] = {}
        """Frames of who is beyond its share, until its next one is read."""
        self._reads_at_s = 0.0
        """When the loop is through with the frames that are here, where its time counts."""
        self.hooks = world.settings.liars.get(self.peer) or self.hooks
        self.hooks.began(parts.core.signer)
        self.hooks.runs(parts.core, lambda: self.own_s)
        if self.trainer.traced is not None:
            self.trainer.traced.bend = self.hooks.trained
            parts.core.audits.device = self.hooks.device_class(parts.core.audits.device)
        self.convicting = Convicting(world, self, self.strikes)
        self._logged_round, self._is_lost = 0, False
        self._chain_readers: set[PeerId] = set()
        self._wake_s, self._wake_own_s = inf, inf
        """When the timer goes off, in the world's time and in the node's own."""
        self._told_s = 0.0
        """The own time of the last event."""
        self._lingers_s = 0.0
        """Until when the last round is served; 0 while the run goes on."""
        self._is_going, self._was_finished = False, False
        self._lingering: Lingering | None = None

    def let_go(self) -> None:
        """See SimNode."""
        super().let_go()
        self._lingering = None
        del self.convicting, self.transfers, self.work

    # The worker thread --------------------------------------------------------------------------

    def _computing_s(self) -> float:
        low, high = self.device.compute_s
        return low + (high - low) * self._compute_luck.random()

    def _compute(self, action: Computed) -> None:
        """One thread: first come, first served."""
        machine = self.core.machine
        view: RoundView | None = machine.view
        if isinstance(action, OfRound):
            view = machine.standing.about(action.list_digest)
        if view is None:
            return  # That round is over.
        rows: bulk.Rows | None = None
        if isinstance(action, ev.Measure | ev.Reduce):
            rows = bulk.rows_of(self.core, self.store, action)
        self._busy_s = max(self.world.now_s, self._busy_s) + self._computing_s()
        self.world.push(self._busy_s, self, self.computed, action, view, rows)

    def computed(self, action: Computed, view: RoundView, rows: bulk.Rows | None) -> None:
        """A task of the thread is done; sums of a round that is over are dropped."""
        store, machine = self.store, self.core.machine
        if isinstance(action, OfRound) and not machine.has_view(view):
            return
        match action:
            case ev.Measure(list_digest=digest, first=first, stop=stop):
                assert rows is not None
                entries, fragment = rows.entries, rows.fragment
                stats = self.hooks.measuring(store)(
                    entries, first=first, stop=stop, fragment=fragment
                )
                if self.sums_wrongly or self.lies_in_gram:
                    stats = spoiled_gram(stats)
                self.tell(ev.Measured(digest, first, stop, stats))
            case ev.Reduce(list_digest=digest, first=first, stop=stop, grams=grams):
                assert rows is not None
                span = {"first": first, "stop": stop, "fragment": rows.fragment}
                root = self.hooks.reducing(store)(digest, rows.entries, **span, grams=grams)
                if self.sums_wrongly:
                    root = spoiled_sum(store, digest, first, stop)
                self.tell(ev.Reduced(digest, first, stop, root))
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                if view.seals.is_beside:
                    return  # The branch that it stood on is left (R4, R5).
                base = view.seals.head.root
                root = store.apply(digest, is_empty=is_empty, round_index=view.index, base=base)
                cells = [] if is_empty else store.result_cells(digest)
                # On the disk before the SEAL that it leads to is signed.
                roots = store.result_roots(digest) if cells else []
                self.disk.journal.keep_result(view.index, digest, cells, roots)
                self.tell(ev.Applied(digest, root, base))
            case ev.CheckSeat(peer=peer, basis=basis, proof=proof):
                on = machine.standing.on(basis)
                own = store.seat_proof(peer, basis, on.seals.head.root) if on is not None else b""
                is_proved = own == proof if own else None
                self.tell(ev.SeatChecked(peer, basis, is_proved))
            case ev.ProveSeat(basis=basis):
                self.tell(seat_proven(self.world.manifest, store, self.peer, basis))

    # State --------------------------------------------------------------------------------------

    def _adopt(self, action: ev.Adopt) -> None:
        world, certificate = self.world, action.certificate
        value = certificate.value
        self.store.adopt(value.list_digest)
        self.store.forget_parts(bulk.parts_over(self.core))
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
        self.works.keep(self.core.audits.subjects)
        self._offer(certificate)
        self.transfers.forget()
        self._finish()

    def _stand(self, action: ev.Advance | ev.Confirm | ev.FallBack) -> None:
        """R4: on a branch, one round of it final, or off it."""
        world, store = self.world, self.store
        match action:
            case ev.Advance(certificate=certificate, was_listed=was_listed, kept=kept):
                store.advance(certificate.value.list_digest, kept)
                self._advanced(certificate, root=store.state.root, was_listed=was_listed)
            case ev.Confirm(certificate=certificate):
                value = certificate.value
                root = store.confirm(value.list_digest)
                world.emit(
                    Confirmed(at_s=world.now_s, peer=self.peer, certificate=certificate, root=root)
                )
                self.sealed[value.round] = value.digest
                self.anchors[value.round] = store.final.anchor_N.tobytes()
                self._offer(certificate)
                self.transfers.forget()
                self._finish()
            case ev.FallBack(final=final, lost=lost):
                store.fall_back()
                world.emit(FellBack(at_s=world.now_s, peer=self.peer, final=final, lost=lost))

    def _advanced(self, link: SealCertificate, *, root: bytes, was_listed: bool) -> None:
        self.world.emit(
            Advanced(
                at_s=self.world.now_s,
                peer=self.peer,
                certificate=link,
                root=root,
                was_listed=was_listed,
            )
        )

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
        state, value = self.store.final, certificate.value
        return StoredState(value.round, value.digest, state.anchor_N, state.slots)

    def state_came(self, certificate: SealCertificate, state: State) -> None:
        """See SimNode."""
        self._arrived = (certificate, state)
        self.world.push(self.world.now_s, self, self._state_ready, ev.StateReady(certificate))

    def _state_ready(self, event: ev.StateReady) -> None:
        """It is put in place before the core hears of it."""
        placed = self._take_state(event)
        if placed is not None:
            self.tell(placed)
            self._finish()

    def _take_state(self, event: ev.StateReady) -> ev.StateReady | None:
        """Put a synchronised state in place; None if the core has given it up meanwhile."""
        arrived, self._arrived = self._arrived, None
        is_it = arrived is not None and arrived[0] == event.certificate
        if arrived is None or not is_it or not self.core.awaits_state(event.certificate):
            return None
        round_index = event.certificate.value.round
        results = take_state(self.store, self.disk.journal, round_index, arrived[1])
        # On the disk before the chain says so, and before anything is built on it. An older state
        # that still waits to be written would take its place there.
        self._offered = None
        self.disk.save(self._stored(event.certificate))
        self.anchors[round_index] = self.store.state.anchor_N.tobytes()
        self._synced = event.certificate
        self.transfers.forget()
        return replace(event, results=results)

    @property
    def own_s(self) -> float:
        """What the node's monotonic clock shows."""
        return self.clock.own_s(self.world.now_s)

    def begin(self, restart: Restart) -> None:
        """The first actions; and what the disk lacks of the state that recovery led to."""
        disk = self.disk
        self.gathered = Gathered(self.store, disk.journal, disk.fetched)
        self.served = Served(self.store, disk.journal, disk.finder(self.store))
        head, lost, world = restart.chain[-1], restart.is_lost, self.world
        self._logged_round, self._is_lost, first = head.value.round, lost, head.value.round + 1
        world.emit(Began(at_s=world.now_s, peer=self.peer, round=first, head=head, is_lost=lost))
        for link in restart.branch:
            self._advanced(link, root=link.value.root, was_listed=False)
        self.core.wants_seat = False  # Until the trainer is up.
        self.work.begin()
        if head.value.round:
            self.anchors[head.value.round] = self.store.state.anchor_N.tobytes()
            self._offer(head)
        self.carry_out(self.core.start(self.own_s, restart))
        if self.hooks.floods:
            self._flood()
        self.convicting.begin()
        if self.is_alive:
            self._was_finished = self.core.is_finished
            self._after(self.own_s)
            self._finish()

    def tell(self, event: ev.CoreEvent) -> None:
        """See SimNode."""
        own_s = self.clock.own_s(self.world.now_s)
        actions = self.core.handle(event, own_s)
        if actions:
            self.carry_out(actions)
        if self.is_alive:
            self._after(own_s)

    def _after(self, own_s: float) -> None:
        """What every event may have made due at the edge; `own_s` is the node's own time."""
        if self._is_lost and not self.core.machine.is_muted:
            # Once it is known again what may be signed, a restart need not ask anew.
            self._is_lost = False
            self.disk.journal.forgive_loss()
        if self.transfers.waiting:
            self.transfers.look_again()
        if self.core.machine.head.roster.banned:
            self.convicting.look()
        self.world.ask(self, None)
        if self._lingers_s and self.is_alive:
            self._linger()
        self._told_s = own_s
        # Only the machine may want to be woken earlier: else it is a time from the last event.
        is_set = self._wake_own_s < inf and self.core.machine.wakeup_s() >= self._wake_own_s
        if self.is_alive and not is_set:
            self._set_timer()

    def _set_timer(self) -> None:
        """Wake up when the core wants to be told of the time, if nothing happens before."""
        self._wake_own_s = self.core.wakeup_s(self._told_s)
        self._wake_s = self.clock.world_s(self._wake_own_s) + LATE_S
        self.world.push(self._wake_s, self, self._wake)

    def _wake(self) -> None:
        """The loop's timer; events since it was set may have put it off."""
        now_s = self.world.now_s
        if self._wake_s > now_s:
            return
        self._wake_s = self._wake_own_s = inf
        due_s = self.clock.world_s(self.core.wakeup_s(self._told_s)) + LATE_S
        if due_s > now_s:
            self._set_timer()
        else:
            self.tell(ev.Tick())

    # Links --------------------------------------------------------------------------------------

    def linked(self, wire: Wire) -> None:
        """See SimNode."""
        self.wires[wire.to.peer] = wire
        self.tell(ev.Linked(wire.to.peer))
        self.convicting.linked(wire.to.peer)

    def unlinked(self, session: Session) -> None:
        """See SimNode."""
        other = session.other(self)
        peer = other.peer
        wire = self.wires.get(peer)
        if wire is not None and wire.session is session:
            del self.wires[peer]
            self.tell(ev.Unlinked(peer))
            self.world.look_for(self, peer)
            if not other.is_alive:
                self.world.push(self.world.now_s + GONE_S, self, self._told_gone, other)

    def _told_gone(self, other: SimNode) -> None:
        """As `node.peers.links`: the system of a process that ended refuses connections."""
        if other.peer not in self.wires and not other.is_alive:
            self.tell(ev.Unlinked(other.peer, is_gone=True))

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
        send_frame(self.world, self, (peer,), frame)

    def hear(self, wire: Wire, event: ev.FrameArrived) -> None:
        """See SimNode. Nothing that was sent on an earlier link arrives on this one."""
        unread = self._unread.get(event.peer)
        if unread is not None:
            unread.append((wire, event))
        else:
            self._read(wire, event)

    def _read(self, wire: Wire, event: ev.FrameArrived) -> None:
        peer, frame = event.peer, event.frame
        own = self.wires.get(peer)
        if own is None or own.session is not wire.session or wire.direction.is_blocked:
            return
        cost = cost_s(peer, frame, about_bytes(frame))
        if self.world.settings.costs_time:
            now_s = self.world.now_s
            self._reads_at_s = max(self._reads_at_s, now_s) + cost / self.clock.rate
            self.world.push(self._reads_at_s, self, self._take, wire, event)
        else:
            self._take(wire, event)
        charge = self._budgets.charge(peer, cost, self.own_s)
        if charge.wait_s:
            self._unread.setdefault(peer, deque())
            wait_s = charge.wait_s / self.clock.rate
            self.world.push(self.world.now_s + wait_s, self, self._read_on, peer)
            if charge.is_over:
                self.tell(ev.Overdrawn(peer))

    def _take(self, wire: Wire, event: ev.FrameArrived) -> None:
        """What was read reaches the core; nothing of a link that is over by then."""
        own = self.wires.get(event.peer)
        if own is None or own.session is not wire.session:
            return
        if isinstance(event.frame, Entries):
            self.convicting.heard(event.peer, event.frame)
        else:
            self.tell(event)

    def _read_on(self, peer: PeerId) -> None:
        """The turn of the next frame of who is beyond its share."""
        unread = self._unread.pop(peer)
        while unread and peer not in self._unread:
            self._read(*unread.popleft())
        if unread:
            self._unread[peer].extend(unread)

    def _flood(self) -> None:
        """Offer frames that nothing asks for, as fast as each takes them, and the line."""
        world, num_bytes = self.world, 0
        for peer, wire in list(self.wires.items()):
            for _ in range(FLOOD_FRAMES_MAX):
                if wire.to.num_unread(self.peer) >= FLOOD_FRAMES_MAX:
                    break
                if num_bytes > FLOOD_BYTES_PER_S * FLOOD_EVERY_S:
                    break
                frame = self.hooks.flood(self.core, peer)
                if frame is None:
                    break
                num_bytes += about_bytes(frame)
                self.send(peer, frame)
        world.push(world.now_s + FLOOD_EVERY_S, self, self._flood)

    def num_unread(self, peer: PeerId) -> int:
        """See SimNode."""
        return len(self._unread.get(peer, ()))

    def cells_came(self, transfer: Transfer, num_here: int) -> None:
        """See SimNode."""
        self.transfers.arrived(transfer, num_here)

    # Actions ------------------------------------------------------------------------------------

    def carry_out(self, actions: list[ev.CoreAction]) -> None:
        """In order; but what must survive reaches the disk first, all of a batch together (R12)."""
        world = self.world
        self._make_durable(actions)
        for action in actions:
            world.ask(self, action)
            if not self.is_alive:
                return
            if isinstance(action, ev.SendAll):
                send_frame(world, self, action.peers, action.frame)
            elif isinstance(action, ev.Send):
                self.send(action.peer, action.frame)
            elif not isinstance(action, ev.RecordSlot | ev.RecordProof):  # Done before all else.
                self.act(action)

    def _make_durable(self, actions: list[ev.CoreAction]) -> None:
        core, world = self.core, self.world
        batch = batch_of(core, actions, logged_round=self._logged_round)
        if not batch.is_empty:
            batch.write(self.disk.journal)
        if batch.links:
            self._logged_round = batch.links[-1].value.round
            core.trim_chain()
        if self._synced is not None:
            certificate, self._synced = self._synced, None
            root = self.store.state.root
            world.emit(Synced(at_s=world.now_s, peer=self.peer, certificate=certificate, root=root))
        for message in batch.own:
            world.emit(Signed(at_s=world.now_s, peer=self.peer, message=message))

    def act(self, action: ev.CoreAction) -> None:
        """Carry one action out."""
        world = self.world
        if isinstance(action, ev.Push):
            self.transfers.push(action)
            return
        match action:
            case ev.SendChain(peer=peer, first=first):
                self._send_chain(peer, first)
            case ev.Adopt():
                self._adopt(action)
            case ev.Advance() | ev.Confirm() | ev.FallBack():
                self._stand(action)
                if isinstance(action, ev.FallBack):
                    self.work.fell_back()
            case ev.Train():
                self.work.train(action, self.store.state.anchor_N)
            case ev.FetchState() | ev.FetchSteps():
                world.push(world.now_s, self, self.transfers.order, action)
            case ev.Fault(peer=peer, reason=reason, is_strike=is_strike):
                world.accuse(self, peer, reason, is_strike=is_strike)
            case ev.Rerun():
                self.work.audit(action)
            case ev.Accuse(evidence=evidence):
                self.convicting.found(evidence)
            case ev.HistoryKnown():
                pass  # For people.
            case ev.TwoHistories():
                world.push(world.now_s, self, world.ended, self, "two histories")
            case ev.Resync(reason=reason):
                world.emit(Diverged(at_s=world.now_s, peer=self.peer, reason=reason))
            case ev.Measure() | ev.Reduce() | ev.Apply() | ev.CheckSeat() | ev.ProveSeat():
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

    # Ends ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """The operator stops it: its peers are told, and then it is gone."""
        self.tell(ev.Leaving())
        if self.is_alive:
            self._leave_when_free(self.world.now_s + HAND_OVER_S_MAX)

    def _leave_when_free(self, latest_s: float) -> None:
        """Gone in a moment, or once others have the vote that it is needed for."""
        world = self.world
        if HandingOver(self.core).is_due and world.now_s < latest_s:
            world.push(world.now_s + LEAVE_S, self, self._leave_when_free, latest_s)
        else:
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
        is_over = now_s >= self._lingers_s and not self._lingering.is_giving(self.own_s)
        if is_over or not self._lingering.is_needed(self.own_s):
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
