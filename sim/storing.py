"""What a simulated node does to its store and disk: arithmetic in its time, states, checkpoints."""

from dataclasses import replace

from node import events as ev
from node.cells import bulk
from node.cells.seat_proof import seat_proven
from node.cells.shard_store import State
from node.durable.recovery import StoredState, take_state
from node.reporting.tracing import Adopted, Advanced, Confirmed, FellBack
from node.rules.round_view import RoundView
from protocol.identity import short_id
from protocol.messages import SealCertificate
from sim.nodes import Around, NodeParts, SimNode
from sim.transfers import Transfers
from sim.wrong_sum import spoiled_gram, spoiled_sum

OfRound = ev.Measure | ev.Reduce | ev.Apply
Computed = OfRound | ev.CheckSeat | ev.ProveSeat


class Storing(SimNode):
    """See SimNode."""

    __deletable__ = ("transfers",)

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

    transfers: Transfers

    def let_go(self) -> None:
        """See SimNode."""
        super().let_go()
        del self.transfers

    def _finish(self) -> None:
        """The run may be over."""
        raise NotImplementedError

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
                if view.is_beside:
                    return  # The branch that it stood on is left (R4, R5).
                base = view.head.root
                root = store.apply(digest, is_empty=is_empty, round_index=view.index, base=base)
                cells = [] if is_empty else store.result_cells(digest)
                # On the disk before the SEAL that it leads to is signed.
                roots = store.result_roots(digest) if cells else []
                self.disk.journal.keep_result(view.index, digest, cells, roots)
                self.tell(ev.Applied(digest, root, base))
            case ev.CheckSeat(peer=peer, basis=basis, proof=proof):
                on = machine.standing.on(basis)
                own = store.seat_proof(peer, basis, on.head.root) if on is not None else b""
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
