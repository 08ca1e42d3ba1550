"""NodeCore: everything that a node decides, as one pure machine over one shard.

Composes rounds, liveness, relay and catching up. The edge (`node.daemon.driver` over libp2p, or the
simulator's world) feeds it events with the monotonic time and carries out its actions in order.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from protocol import events as ev
from protocol import limits
from protocol.auditing.audits_machine import AUDIT_KINDS, Audits
from protocol.catching_up.catchup import CatchUp
from protocol.catching_up.chain_sources import chain_page
from protocol.core.budgets import NOBODY, OVER, OVERDRAWN_S, PASSED_ON, message_cost_s
from protocol.core.liveness import Liveness
from protocol.core.relay import Relay, heartbeat, pack
from protocol.errors import DecodeError, ProofError
from protocol.frames import (
    Branch,
    BranchEnd,
    Bulk,
    Chain,
    Frame,
    Heartbeat,
    Hello,
    Lacking,
    Messages,
    Refusal,
    StatusAnswer,
    StatusAsk,
    Want,
    WantBranch,
    WantChain,
    Welcome,
    wants,
)
from protocol.gossiping.settings import Quota
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import (
    Kind,
    List,
    NewAttempt,
    SealCertificate,
    SignedMessage,
    decode_body,
    is_signed,
)
from protocol.rounds import roster as rosters
from protocol.rounds.ballots import BallotEntry, quoted_votes
from protocol.rounds.restart import Restart, was_listed
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundConfig, RoundView
from protocol.rounds.standing import Meeting

LATE_KINDS = frozenset({Kind.COMMIT, Kind.SEAL})
"""What of a round that is sealed still shows who is there."""


CHAIN_KEPT = 64
"""Seals in memory, at most 36 KiB each; older ones are read from the journal when a peer asks."""


class NodeCore:
    """One node's decisions. One owner calls `handle`; `wakeup_s` says when at the latest."""

    def __init__(
        self,
        manifest: RunManifest,
        config: RoundConfig,
        signer: Signer,
        genesis: SealCertificate,
        *,
        now_s: float,
    ) -> None:
        self.manifest = manifest
        self.machine = RoundMachine(config, signer, genesis, now_s=now_s)
        self.audits = Audits(manifest, config, signer, genesis.value)
        self.machine.audits = self.audits
        self.liveness = Liveness(
            signer.peer_id,
            heartbeat_s=manifest.timing.heartbeat_s,
            suspect_s=manifest.timing.suspect_s,
            now_s=now_s,
            rare=config.rare,
        )
        self.chain = [genesis]
        self.signer = signer
        self._me = signer.peer_id
        self._relay = Relay(self._me, settle_s=manifest.timing.heartbeat_s / 2, rare=config.rare)
        self._passed_on = Quota(PASSED_ON)
        """What others may have this node check in the name of each peer."""
        self.catchup = CatchUp(signer, config.trust, config.cell_sizes, config.rare)
        self._meeting = Meeting(signer)
        self._rare = config.rare
        self._rounds: dict[PeerId, int] = {}
        self._newest = 0
        """The newest of them."""
        self._suspects: frozenset[PeerId] = frozenset()
        self._overdrawn: dict[PeerId, float] = {}
        """Who sends more than its share, and until when it counts as suspected for that."""
        self._nonce = 0
        self.wants_seat = True
        self.may_sit: Callable[[PeerId], bool] = lambda _: True
        """Who may ask for a seat; the edge knows, in runs for the invited."""
        self.working: Callable[[], ev.Working | None] = lambda: None
        """How far the own trainer is; the edge knows."""
        self._seat_asked = b""
        self._is_astray = False
        """Whether a branch was given up, and the trainer has not heard of it."""
        self._told = b""
        """The head that the last heartbeat told of."""

    # What the edge may ask ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the last seal of the run is adopted."""
        return self.machine.head.clock.ends_run

    @property
    def rounds(self) -> dict[PeerId, int]:
        """The round behind the last final seal of each linked peer, as it said."""
        return dict(self._rounds)

    def views(self) -> tuple[RoundView, ...]:
        """The round under way, those of the own branch, and the one before while stragglers may
        need it."""
        return self.machine.views

    def awaits_state(self, certificate: SealCertificate) -> bool:
        """Whether that state is still wanted; asked before the own state is replaced by it."""
        return certificate == self.catchup.wanted

    def sealed(self, digest: bytes) -> SealCertificate | None:
        """The final seal of that digest, if it is one of the newest: what a joiner may ask for."""
        found = (seal for seal in reversed(self.chain) if seal.value.digest == digest)
        return next(found, None)

    def trim_chain(self) -> None:
        """Keep the newest seals only; called once all of them are in the journal."""
        del self.chain[:-CHAIN_KEPT]

    def wakeup_s(self, now_s: float) -> float:
        """When a Tick is due if nothing happens before."""
        return min(self.machine.wakeup_s(), now_s + self.liveness.tick_interval_s)

    # What it does by itself ---------------------------------------------------------------------

    def _catches_up(self, peer: PeerId, now_s: float) -> Iterator[ev.CoreAction]:
        """R11: a peer asks for the chain; short rounds are held for it, if it may sit. It hears how
        far the chain goes: what the last heartbeat told is many short rounds ago."""
        if self.may_sit(peer) and not (peer in self.machine.convicted or self.audits.is_shut(peer)):
            self.machine.courtesy.asked(peer, now_s)
            self._gives(peer, now_s)
            yield ev.Send(peer, self._heartbeat(now_s))

    def _gives(self, peer: PeerId, now_s: float) -> None:
        """R11: a peer takes what it lacks of the state; no round goes far ahead of it meanwhile."""
        newest = self.machine.head.round
        is_barred = peer in self.machine.convicted or self.audits.is_shut(peer)
        if self._rounds.get(peer, 0) <= newest and self.may_sit(peer) and not is_barred:
            self.machine.giving.gave(peer, newest, now_s)

    def _is_sealed(self, bulk: Bulk, subject: bytes) -> bool:
        """Whether that is of a state, or of a result behind which the last seal stands."""
        previous = self.machine.previous
        if bulk is Bulk.RESULT:
            return previous is not None and previous.is_about(subject)
        return bulk in (Bulk.STATE, Bulk.STEP)

    def _believes_open(self, peer: PeerId, is_open: int) -> bool:
        """R12: whether a STATUS fits the heartbeat before it, whose seals its sender can be asked
        for; it matters to who forgot what it signed.

        Behind a final seal may be a branch; and a round that was SEALed may have led to the next.
        """
        config, working = self.machine.config, self._rounds.get(peer)
        if not self.machine.has_forgotten:
            return True
        ahead = config.clock.lag + limits.BRANCH_ROUNDS_MAX * config.may_branch
        return working is not None and is_open <= working + ahead

    def _heartbeat(self, now_s: float) -> Heartbeat:
        standing = self.machine.standing
        branch: tuple[BranchEnd, ...] = ()
        if standing.branch:
            head = standing.head.value.digest
            branch = (BranchEnd(final=self.machine.head.round, head=head),)
        view = self.machine.view
        progress = self.machine.patience.own(view, self.working(), now_s)
        return heartbeat(view, self.liveness, branch, now_s, progress)

    def _meet(self, now_s: float) -> Iterator[ev.CoreAction]:
        """R4: who is on a branch meets who is not, or on another one."""
        machine, meeting = self.machine, self._meeting
        if not machine.config.may_branch:
            return
        is_behind = meeting.is_behind(machine.head, machine.doubted)
        is_open = meeting.is_open(machine.standing, now_s=now_s)
        machine.meets(is_behind=is_behind, is_meeting=is_open)
        yield from meeting.ask(machine.standing, now_s=now_s)
        path = None if self.catchup.is_busy else meeting.choose(machine.standing)
        if path is not None:
            yield from self._expand(machine.follow(path, now_s), now_s)

    def _train(
        self, head: SealCertificate, *, was_listed: bool, is_resync: bool = False
    ) -> Iterator[ev.CoreAction]:
        standing, samples = self.machine.standing, self.machine.config.clock.samples_each
        view, leases = standing.top, {}
        derived = self.machine.config.derived
        find = rosters.leased_for if derived is None else derived.leased_for
        if not head.value.clock.ends_run:
            leases = find(view.index, view.seals.named, samples)
        is_needed = view.own.contribution is None and self._me in leases
        if standing.beside is not None and not is_needed:
            # What the head's round needs of the trainer is here, or nothing is: it has no seat yet.
            view = standing.beside
            leases = find(view.index, view.seals.named, samples)
        lease, is_resync = leases.get(self._me, ()), is_resync or self._is_astray
        if is_resync:
            standing.resynced()
        self._is_astray = False
        bases = tuple(one.basis for one in standing.worked_for)
        yield ev.Train(head, lease, was_listed, is_resync, view.index, view.basis, bases)

    def _train_beside(self) -> Iterator[ev.CoreAction]:
        """R5: the next round has its contribution, so the trainer goes on for the one behind it."""
        standing = self.machine.standing
        beside = standing.beside
        is_due = beside is not None and beside.own.contribution is None
        if is_due and standing.top.own.contribution is not None:
            yield from self._train(standing.head, was_listed=False)

    # Rounds -------------------------------------------------------------------------------------

    def _round(self, event: ev.RoundEvent, now_s: float) -> Iterable[ev.CoreAction]:
        due = self.machine.handle(event, now_s)
        return self._expand(due, now_s) if due else ()

    def _audit(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.CoreAction]:
        """R10: the round before the one that is final now may be looked at."""
        machine = self.machine
        assert machine.previous is not None
        due = self.audits.sealed(machine.previous, certificate.value, machine.convicted)
        yield from self._expand(due, now_s)

    def _expand(self, actions: Iterable[ev.RoundAction], now_s: float) -> Iterator[ev.CoreAction]:
        """Turn a machine's broadcasts and pulls into frames; add what follows from a final seal."""
        for action in actions:
            if isinstance(action, ev.Broadcast):
                message = action.message
                self._relay.note(message, now_s)
                yield ev.SendAll(self.liveness.linked, Messages(messages=(message,)))
                continue
            if isinstance(action, ev.RecordSlot | ev.RecordProof | ev.Push):
                yield action
                continue
            match action:
                case ev.Pull(source=source, bulk=bulk, subject=subject, cells=cells):
                    if source not in self.liveness.linked and bulk is Bulk.RESULT:
                        source = self._relay.detour(self._rounds, self.machine.view) or source
                    if source in self.liveness.linked:
                        for want in wants(bulk, subject, cells):
                            yield ev.Send(source, want)
                case ev.Resync():
                    self.catchup.is_forced = True
                    yield action
                case ev.Adopt(certificate=certificate, is_doubtful=is_doubtful):
                    self.chain.append(certificate)
                    self.catchup.overtaken()
                    self.machine.rates.fade()
                    self._relay.forget(self.views())
                    yield action
                    was_listed = action.was_listed
                    yield from self._train(
                        certificate, was_listed=was_listed, is_resync=is_doubtful
                    )
                    if self.audits.is_on:
                        yield from self._audit(certificate, now_s)
                case ev.Advance(certificate=certificate, is_doubtful=is_doubtful):
                    self.machine.rates.fade()
                    self._relay.forget(self.views())
                    yield action
                    # Back on a branch that was left before, what was committed there stands.
                    view = self.machine.standing.on(certificate.value.digest)
                    if view is None or not view.own.commit:
                        was_listed = action.was_listed
                        yield from self._train(
                            certificate, was_listed=was_listed, is_resync=is_doubtful
                        )
                case ev.Confirm(certificate=certificate):
                    self.chain.append(certificate)
                    self.catchup.overtaken()
                    self._relay.forget(self.views())
                    yield action
                    if certificate.value.clock.ends_run:
                        yield from self._train(certificate, was_listed=False)
                case ev.FallBack(final=final):
                    self._is_astray = True
                    yield action
                    standing = self.machine.standing
                    base = standing.base
                    rounds = standing.worked_for if base.is_overlapped else [base]
                    is_there = base.seals.before == final.value.digest
                    if is_there and not all(view.own.commit for view in rounds):
                        yield from self._train(final, was_listed=False)
                case _:
                    yield action

    def start(self, now_s: float, restart: Restart | None = None) -> list[ev.CoreAction]:
        """The first actions: train if seated, else ask for a seat.

        `restart` is what a node that ran before goes on from; its state is in the store.
        """
        is_listed, has_run = False, restart is not None and restart.has_run
        if restart is not None and restart.has_run:
            self.chain = list(restart.chain)
            self.machine.resume(restart, now_s=now_s)
            is_listed = was_listed(restart, self._me)
        if restart is not None:
            self.catchup.begun = restart.begun
        # Who lost signatures, or seals that it had signed behind, cannot know what became of its
        # contributions: e = 0 (R6).
        is_known = has_run and restart is not None and restart.is_whole
        head = self.machine.standing.head
        train = self._train(head, was_listed=is_listed, is_resync=not is_known)
        return [*train, *self._after(now_s)]

    # Events -------------------------------------------------------------------------------------

    def handle(self, event: ev.CoreEvent, now_s: float) -> list[ev.CoreAction]:
        """Take one event in; the actions that are due, in order."""
        # Nearly all of a node's own work passes here: lists, for generators in generators cost more
        # than most of what they would carry.
        actions: list[ev.CoreAction] = []
        if self.liveness.tick(now_s):
            actions += self._wake(now_s)
        if isinstance(event, ev.FrameArrived):
            self.liveness.spoke(event.peer, now_s)
            actions += self._frame(event.peer, event.frame, now_s)
        elif isinstance(event, ev.Tick) or (
            isinstance(event, ev.CellsArrived) and event.bulk is not Bulk.WORK
        ):
            actions += self._round(event, now_s)  # As `_take` would: these are most of the rest.
        else:
            actions += self._take(event, now_s)
        if not self._is_quiet(now_s):
            actions += self._after(now_s)
        if self.machine.filed_late:
            actions += self._pass_on_late(now_s)
        return actions

    def _pass_on_late(self, now_s: float) -> Iterator[ev.CoreAction]:
        """What was kept here until it could be filed, to those who may not have it."""
        late, self.machine.filed_late = self.machine.filed_late, []
        for message in late:
            self._relay.note(message, now_s)
            yield from self._relay.forward(message, message.sender, self.liveness.linked)

    def _is_quiet(self, now_s: float) -> bool:
        """Whether `_after` would find nothing due, as behind nearly every event."""
        machine = self.machine
        standing, view = machine.standing, machine.view
        if standing.branch or standing.ahead:
            return False  # The next round is bound (R4), and more than one is watched.
        return (
            self.liveness.is_quiet(machine.watched, now_s)
            and now_s < machine.wakeup_s()
            and (view.is_member or not self._may_ask_seat())
            and self._newest <= view.index
            and self.catchup.is_at_rest
            and not self.catchup.is_alone
            and not machine.is_held
            and not self._overdrawn
            and not self._owes_beat(now_s)
        )

    def _owes_beat(self, now_s: float) -> bool:
        """R11: whether joiners wait for a COMMIT, and have not heard what it is on."""
        machine = self.machine
        is_held = now_s < machine.courtesy.until_s and not machine.view.own.commit
        return is_held and machine.view.basis != self._told

    def _wake(self, now_s: float) -> Iterator[ev.CoreAction]:
        """R3: having slept, say nothing until a quorum has told where it is."""
        self._nonce += 1
        yield from self._round(ev.Woke(), now_s)
        yield ev.SendAll(self.liveness.linked, StatusAsk(nonce=self._nonce))

    def _take(self, event: ev.LocalEvent, now_s: float) -> Iterator[ev.CoreAction]:
        match event:
            case ev.Linked(peer=peer):
                self.liveness.link_up(peer, now_s)
                self.machine.rates.linked = self.liveness.linked
                yield ev.Send(peer, self._heartbeat(now_s))
                if self.machine.is_asking:
                    yield ev.Send(peer, StatusAsk(nonce=self._nonce))
            case ev.Unlinked(peer=peer, is_gone=is_gone):
                self.liveness.link_down(peer, now_s, is_gone=is_gone)
                self.machine.rates.linked = self.liveness.linked
                self._relay.drop_link(peer)
                self._meeting.left(peer)
                self.machine.giving.left(peer)
                self._rounds.pop(peer, None)
                self._newest = max(self._rounds.values(), default=0)
            case ev.Overdrawn(peer=peer):
                # Nobody waits for whose words lie behind its own flood.
                self._overdrawn[peer] = now_s + OVERDRAWN_S
                yield ev.Fault(peer, OVER, is_strike=False)
            case ev.BytesArrived(peer=peer, is_state=is_state, subject=subject):
                self.liveness.spoke(peer, now_s)
                self.machine.rates.took(peer, event.num_bytes, event.seconds)
                if is_state:
                    self.catchup.moved(peer, now_s=now_s)
                else:
                    for view in self.machine.standing.under_way:
                        view.note_movement(subject, peer, now_s)
            case ev.BytesGiven(peer=peer, bulk=bulk, subject=subject):
                if bulk is Bulk.PART:
                    self.machine.gave_parts(peer, subject, event.seconds)
                elif self._is_sealed(bulk, subject):
                    self._gives(peer, now_s)
            case ev.SeatProven(basis=basis, proof=proof, work=work):
                yield from self._expand(self.machine.take_seat(basis, proof, work), now_s)
            case ev.StateReady():
                yield from self._resynced(event, now_s)
            case ev.NotServed(peer=peer, bulk=bulk, subject=subject):
                yield ev.Send(peer, Lacking(bulk=bulk, subject=subject))
            case _ if isinstance(event, ev.FetchEvent):
                yield from self.catchup.take(event, now_s=now_s)
            case ev.TrainerReady(device=device):
                self.wants_seat = True
                self.audits.device = device or self.audits.device
            case ev.Leaving():
                self.wants_seat = False
                yield from self._expand(self.machine.leave(), now_s)
            case ev.Contributed():
                yield from self._round(event, now_s)
                yield from self._train_beside()
            case ev.CellsArrived(bulk=Bulk.WORK, subject=subject, cells=cells):
                yield from self._expand(self.audits.cells_came(subject, cells), now_s)
            case ev.Reran():
                yield from self._expand(self.audits.reran(event), now_s)
            case _:
                yield from self._round(event, now_s)

    def _after(self, now_s: float) -> list[ev.CoreAction]:
        """What every event may have made due: suspicions, heartbeats, catching up, a seat."""
        machine = self.machine
        actions: list[ev.CoreAction] = []
        suspects = self.liveness.suspects(machine.watched, now_s)
        if self.audits.shunned:
            suspects |= self.audits.shunned
        if self._overdrawn:
            self._overdrawn = {p: end_s for p, end_s in self._overdrawn.items() if now_s < end_s}
            suspects = suspects.union(self._overdrawn)
        if suspects != self._suspects:
            self._suspects = suspects
            actions += self._round(ev.SuspicionsChanged(suspects), now_s)
        is_due = self.liveness.beat_due(now_s)
        if is_due:
            actions += self._meet(now_s)
        # On a branch, or behind one, what this node lacks of a round is sent upon its heartbeat.
        is_new = machine.view.basis != self._told and bool(machine.standing.bound)
        is_new |= self._owes_beat(now_s)
        if (is_due or is_new) and not self._rare("beat-skipped"):
            beat = self._heartbeat(now_s)
            self._told = beat.head
            actions.append(ev.SendAll(self.liveness.linked, beat))
            if machine.is_asking:
                actions.append(ev.SendAll(self.liveness.linked, StatusAsk(nonce=self._nonce)))
        if now_s >= machine.wakeup_s():
            # Whatever the event was: bytes that keep arriving must not hold up the deadlines.
            actions += self._round(ev.Tick(), now_s)
        catchup = self.catchup
        base = machine.standing.base
        if self._newest > base.index or not catchup.is_at_rest:
            # Bytes, not whole cells: those that came twice, and one that takes long, move as well.
            moved_s = max(base.times.progress_s, *base.cells.moved_s.values(), 0.0)
            actions += catchup.consider(
                base.seals.head,
                self._rounds,
                moved_s=moved_s,
                now_s=now_s,
                named=base.seals.named_by,
            )
        if catchup.is_alone:
            actions += catchup.look_around(self._rounds, now_s)
        if catchup.wanted is not None:
            actions += catchup.pull(self._rounds, lag_s=self.liveness.lag_s, now_s=now_s)
        machine.is_held, machine.doubted = catchup.wanted is not None, catchup.sources.doubted
        if not machine.view.is_member and self._may_ask_seat():
            self._seat_asked = machine.view.basis
            actions.append(ev.ProveSeat(machine.view.basis))
        return actions

    def _may_ask_seat(self) -> bool:
        """R11: once per round, with the state of its head in hand."""
        view = self.machine.view
        return (
            self.wants_seat
            and self._seat_asked != view.basis
            # On a branch the state in hand is that of its head.
            and view is self.machine.standing.top
            and not (self.catchup.is_busy or self.is_finished)
        )

    # Frames -------------------------------------------------------------------------------------

    def _frame(self, peer: PeerId, frame: Frame, now_s: float) -> Iterable[ev.CoreAction]:
        if isinstance(frame, Messages):
            return self._messages(peer, frame.messages, now_s)
        if isinstance(frame, Heartbeat):
            return self._beat(peer, frame, now_s)
        return self._other_frame(peer, frame, now_s)

    def _beat(self, peer: PeerId, frame: Heartbeat, now_s: float) -> Iterable[ev.CoreAction]:
        self.liveness.vouched(frame.link_set, frame.silent, now_s)
        if frame.progress:
            self.machine.hear_progress(peer, frame.progress, now_s)
        working, head = frame.round, frame.head
        if frame.branch:
            # Rounds of a branch are none that anybody has to catch up with.
            end = frame.branch[0]
            working, head = end.final + 1, end.head
        elif self.machine.standing.base.is_overlapped:
            # It names the round, and that is not what the round stands on (R5).
            head = b""
        if self._rounds.get(peer) != working:
            self._rounds[peer] = working
            self._newest = max(self._rounds.values())
        behind = self.machine.view.index - working
        self.machine.courtesy.told(peer, behind, now_s)
        self.machine.giving.told(peer, behind, now_s)
        is_new = self._meeting.heard(peer, working - 1, head, now_s=now_s)
        view = self.machine.view
        is_it = view.basis == frame.head and view.index == frame.round  # As nearly always.
        filled = self._relay.fill(peer, frame, (view,) if is_it else self.views(), now_s)
        if is_new and (frame.branch or self.machine.standing.branch):
            return [*filled, *self._meet(now_s)]
        return filled

    def _messages(
        self, peer: PeerId, messages: tuple[SignedMessage, ...], now_s: float
    ) -> list[ev.CoreAction]:
        if len(messages) == 1:  # As nearly always.
            return self._message(peer, messages[0], now_s)
        actions: list[ev.CoreAction] = []
        for message in messages:
            due = self._message(peer, message, now_s)
            actions += due
            if due and any(isinstance(a, ev.Fault) and a.peer == peer for a in due):
                break  # Each bad signature costs a check; one is enough to know.
        return actions

    def _other_frame(self, peer: PeerId, frame: Frame, now_s: float) -> Iterator[ev.CoreAction]:
        match frame:
            case Want():
                if not self._rare("want-ignored"):
                    yield from self._wanted(peer, frame, now_s)
            case Lacking(bulk=bulk, subject=subject):
                self.catchup.lacks(peer, bulk, subject)
            case WantChain(first=first):
                yield from self._catches_up(peer, now_s)
                yield from chain_page(self.chain, peer, first)
            case Chain(seals=seals):
                yield from self._chain_arrived(peer, seals, now_s)
            case WantBranch(final=final):
                yield from self._meeting.answer(self.machine.standing, peer, final)
            case Branch():
                yield from self._branch_arrived(peer, frame, now_s)
            case StatusAsk() if self.machine.has_forgotten:
                pass  # It would be taken for a memory.
            case StatusAsk(nonce=nonce):
                # What either has signed (R3); the rest its heartbeats ask for, once and not of all.
                signed = [m for view in self.views() for m in view.ballots.messages()]
                yield from pack(peer, [m for m in signed if m.sender in (peer, self._me)])
                top = self.machine.standing.top
                # With two rounds in flight (R5) one more may be open.
                is_open = top.may_be_open + self.machine.config.clock.lag - 1
                answer = StatusAnswer(nonce=nonce, round=is_open, head=top.basis)
                yield ev.Send(peer, self._heartbeat(now_s))
                yield ev.Send(peer, answer)
            case StatusAnswer(nonce=nonce, round=round_index):
                if nonce == self._nonce and self._believes_open(peer, round_index):
                    yield from self._round(ev.StatusHeard(peer, round_index), now_s)
            case Hello() | Refusal() | Welcome():
                yield ev.Fault(peer, f"{type(frame).__name__} in the middle of a conversation")

    def _wanted(self, peer: PeerId, want: Want, now_s: float) -> Iterator[ev.CoreAction]:
        """Cells for who asks. Of what is not here they are not looked at: that is said, or nothing
        is, at once."""
        subject = want.subject
        match want.bulk:
            case Bulk.STATE | Bulk.STEP:
                is_here = self.sealed(subject) is not None
                if not is_here:
                    yield ev.Send(peer, Lacking(bulk=want.bulk, subject=subject))
            case Bulk.WORK:
                is_here = self.audits.is_on  # Who may see it is known with the next seal.
            case _:
                is_here = any(view.is_about(subject) for view in self.views())
        if is_here:
            if self._is_sealed(want.bulk, subject):
                self._gives(peer, now_s)
            yield ev.Push(peer, want.bulk, subject, want.cells)

    def _message(self, source: PeerId, message: SignedMessage, now_s: float) -> list[ev.CoreAction]:
        """File a signed message, after those that it quotes; forward it if it was new."""
        machine, digest, slot = self.machine, message.digest, message.slot
        standing = machine.standing
        view = standing.on(slot.basis) or machine.view
        if view.ballots.find(digest):
            return []  # As half of them: gaps are filled by two, and who forwards cannot know.
        if slot.run != view.seals.head.run or slot.shard != view.seals.head.shard:
            return [ev.Fault(source, "a message of another run or shard")]
        if slot.kind in AUDIT_KINDS:
            return self._verdict(source, message, now_s)
        top = standing.top
        if digest in view.early or digest in top.early:
            return []
        ahead = (view.index + 1, top.index + 1, top.index + machine.config.clock.lag)
        is_known = slot.basis == view.basis or slot.round in ahead
        if not is_known and slot.kind in LATE_KINDS:
            return self._late(source, message, now_s)
        if not (is_known or "slots" in view.config.without):
            return []
        try:
            body = decode_body(message)
        except DecodeError as error:
            return [ev.Fault(source, f"malformed message: {error}")]
        sender = message.sender
        is_barred = sender in machine.convicted or self.audits.is_shut(sender)
        is_barred |= not self.may_sit(sender) or machine.proofs.is_shut(sender, slot.round)
        if slot.kind is Kind.SEAT and is_barred:
            return []  # Also one that somebody else passes on, who may not know better.
        if sender != source:
            # Whoever passes it on is not charged for what its sender says too much.
            account = sender if view.may_speak(sender) else NOBODY
            if not self._passed_on.allows(account, message_cost_s(message), now_s):
                return []
        if not is_signed(message, self.signer):
            return [ev.Fault(source, f"{slot.kind.name} is not signed by its sender")]
        # Only of peers that matter here: anybody can make up keys, and every entry is memory. Who
        # brought its own message has been heard.
        if message.sender != source and view.may_speak(message.sender):
            self.liveness.heard(message.sender, now_s)
        actions: list[ev.CoreAction] = []
        if isinstance(body, List | NewAttempt) and body.certificate:
            try:
                quoted = quoted_votes(slot, body, view.ballots, self.signer)
            except DecodeError as error:
                return [ev.Fault(source, f"{slot.kind.name} with a bad certificate: {error}")]
            for vote in quoted:
                actions += self._message(source, vote, now_s)
        due = list(self._round(ev.Heard(message, body), now_s))
        if slot.kind is Kind.SEAT and not any(isinstance(a, ev.Accuse) for a in due):
            # Keys cost nothing: at fault is who brings a SEAT that nobody honest passes on. Of two
            # SEATs of one key an honest peer may have heard the other one alone.
            due = [replace(a, peer=source) if isinstance(a, ev.Fault) else a for a in due]
        actions += due
        if view.ballots.find(digest):
            if slot.kind is Kind.COMMIT:
                view.note_movement(digest, message.sender, now_s)  # It announces its parts.
            self._relay.note(message, now_s)
            actions += self._relay.forward(message, source, self.liveness.linked)
        return actions

    def _late(self, source: PeerId, message: SignedMessage, now_s: float) -> list[ev.CoreAction]:
        """A COMMIT or SEAL of a round that is sealed since: who is there, though late (R1)."""
        ended = self.machine.ended_on(message.slot.basis)
        if ended is None or message.slot.round != ended.index:
            return []
        sender = message.sender
        if sender not in ended.member_set or ended.ballots.find(message.digest):
            return []  # Before anything is decoded: keys cost nothing.
        if sender != source and not self._passed_on.allows(sender, message_cost_s(message), now_s):
            return []
        try:
            body = decode_body(message)
        except DecodeError as error:
            return [ev.Fault(source, f"malformed message: {error}")]
        if not is_signed(message, self.signer):
            return [ev.Fault(source, f"{message.slot.kind.name} is not signed by its sender")]
        actions = list(
            self._expand(self.machine.hear_late(ended, BallotEntry(message, body)), now_s)
        )
        if ended.ballots.find(message.digest):
            actions += self._relay.forward(message, source, self.liveness.linked)
        return actions

    def _verdict(self, source: PeerId, message: SignedMessage, now_s: float) -> list[ev.CoreAction]:
        """What somebody says of work in a round that is sealed (R10)."""
        try:
            body = decode_body(message)
        except DecodeError as error:
            return [ev.Fault(source, f"malformed message: {error}")]
        if not self.audits.takes(message, body):
            return []
        if not is_signed(message, self.signer):
            return [ev.Fault(source, f"{message.slot.kind.name} is not signed by its sender")]
        actions = list(self._expand(self.audits.heard(message, body), now_s))
        return [*actions, *self._relay.forward(message, source, self.liveness.linked)]

    # Chain and state ----------------------------------------------------------------------------

    def _chain_arrived(
        self, peer: PeerId, seals: tuple[SealCertificate, ...], now_s: float
    ) -> Iterator[ev.CoreAction]:
        try:
            actions = self.catchup.extend(peer, seals, now_s=now_s)
        except ProofError as error:
            yield ev.Fault(peer, f"bad chain: {error}")
            return
        if self.catchup.wanted is not None and self.machine.standing.branch:
            # R4: where the branch became final elsewhere, the state of its seals is here.
            branch = {link.value.digest for link in self.machine.standing.branch}
            if self.catchup.wanted.value.digest in branch:
                yield from self._expand(self.machine.confirm(self.catchup.finish(), now_s), now_s)
                return
        yield from actions

    def _branch_arrived(self, peer: PeerId, frame: Branch, now_s: float) -> Iterator[ev.CoreAction]:
        try:
            self._meeting.arrived(peer, frame, self.machine.standing)
        except ProofError as error:
            yield ev.Fault(peer, f"bad branch: {error}")
            return
        if not frame.seals:
            yield from self._meet(now_s)

    def _resynced(self, event: ev.StateReady, now_s: float) -> Iterator[ev.CoreAction]:
        certificate = event.certificate
        if certificate != self.catchup.wanted:
            return
        self.chain += self.catchup.finish()
        self._is_astray = False
        before = self.chain[-2].value if len(self.chain) > 1 else None
        self.machine.reset(certificate, now_s=now_s, before=before, results=event.results)
        self._relay.forget(self.views())
        yield from self._train(certificate, was_listed=False, is_resync=True)
