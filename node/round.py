"""RoundMachine: one shard's rounds, decided purely. Event and monotonic time in, actions out.

    contribution -> COMMIT -> parts to reducers -> HAVE -> LIST -> VOTE -> certificate
                 -> slices summed, AGG, results -> outer step -> SEAL -> quorum -> next round

After every event all rules are asked again until none has more to do, so that no outcome depends
on the order in which messages arrive. Nothing is summed before its LIST is certified; nobody
replaces the anchor before a quorum of equal SEALs of one attempt; whoever is missing is absent,
and nobody waits for the absent longer than a deadline. Rule names (R1...) are the design's.
"""

from collections.abc import Callable, Iterator
from typing import assert_never

from node import events as ev
from node import supply
from node.admission import breach, concerns, is_for_us
from node.agenda import Agenda, is_idle
from node.agreement import Seen, commit_body, is_given_up, learn, statements, time_out_s
from node.ballots import Entry
from node.chain import certify, seal_value
from node.deadlines import LearnedDeadline
from node.restart import Restart, own_seal, refill
from node.round_view import RoundConfig, RoundView
from node.silence import Silence
from protocol import limits
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Agg,
    Body,
    Kind,
    Leave,
    Seal,
    SealCertificate,
    SealValue,
    Seat,
    SignedMessage,
    decode_message,
    sign_message,
    slice_subject,
)


class RoundMachine:
    """The rounds of one shard on one node. Not thread-safe; one owner calls `handle`."""

    def __init__(
        self, config: RoundConfig, signer: Signer, head: SealCertificate, *, now_s: float
    ) -> None:
        self.config = config
        self._signer = signer
        self._deadline = LearnedDeadline(
            floor_s=config.deadline_floor_s, cap_s=config.deadline_cap_s, rare=config.rare
        )
        self._suspects: frozenset[PeerId] = frozenset()
        self._left: set[PeerId] = set()
        self._silence = Silence()
        self._is_past_end = False
        self._agenda = Agenda(now_s)
        self.certificate = head
        self.view = self._new_view(head, now_s)
        self.previous: RoundView | None = None
        self.is_held = False
        """Set while a later state is being fetched: this node then only listens."""

    # What others may ask ------------------------------------------------------------------------

    @property
    def head(self) -> SealValue:
        """The last final seal that this node has adopted."""
        return self.view.head

    @property
    def is_muted(self) -> bool:
        """Whether this node fills no slot now.

        It does not know yet where the others are (R3), or what it signed in this round (R12).
        """
        return self._silence.is_on(self.view)

    @property
    def is_asking(self) -> bool:
        """Whether the STATUS of others is waited for."""
        return self._silence.is_asking

    @property
    def has_forgotten(self) -> bool:
        """Whether signatures are lost, so that what this node says of rounds is worth nothing."""
        return self._silence.has_forgotten

    def wakeup_s(self) -> float:
        """The monotonic time at which a Tick is due, if no event comes before."""
        return self._agenda.wakeup_s

    def reset(self, head: SealCertificate, *, now_s: float) -> None:
        """Go on from a state that was synchronised; forgets the round under way."""
        self.certificate = head
        self.view = self._new_view(head, now_s)
        self.previous = None
        # Who left meanwhile is gone; who came back since has not said that it leaves again.
        self._left.clear()
        self._agenda.disturb()

    def resume(self, restart: Restart, *, now_s: float) -> None:
        """R12: go on where this node went down; called once, before anything is handled."""
        *before, head = restart.chain
        if before:
            self.view = self._new_view(before[-1], now_s)
            refill(self.view, restart, now_s=now_s)
            for data in head.seals:
                # Heard after this node had filed its own: stragglers need them to end the round.
                self.view.ballots.add(Entry(*decode_message(data)))
        view = self.view
        self.reset(head, now_s=now_s)
        self.previous = view if before else None
        refill(self.view, restart, now_s=now_s)
        self.view.own_seal = own_seal(restart, self._signer.peer_id)
        self._left |= set(self.view.ballots.of(Kind.LEAVE))
        self._silence.restarted(restart, self.view)
        self._silence.settle(self.view)

    def take_seat(self, basis: bytes, proof: bytes) -> Iterator[ev.RoundAction]:
        """R11: ask for a seat, with the proof that the state of `basis` is here."""
        view = self.view
        if basis != view.basis or view.is_member or self.is_muted:
            return
        if view.me not in view.ballots.of(Kind.SEAT):
            yield from self._sign(Kind.SEAT, Seat(proof=proof, device=""))

    def leave(self) -> Iterator[ev.RoundAction]:
        """Say that this node goes; the others drop it with the next seal that can."""
        view = self.view
        if view.is_member and view.me not in view.ballots.of(Kind.LEAVE):
            yield from self._sign(Kind.LEAVE, Leave(reason=""))

    # Events -------------------------------------------------------------------------------------

    def handle(self, event: ev.RoundEvent, now_s: float) -> list[ev.RoundAction]:
        """Take one event in; the actions that are due, in order."""
        was_asking = self.is_asking
        if isinstance(event, ev.Heard):
            can_be_quiet = not was_asking
            actions = self._hear(Entry(event.message, event.body), now_s)
            self._silence.settle(self.view)
        else:
            actions = list(self._take(event, now_s))
            can_be_quiet = not was_asking and is_idle(event, self.view, now_s < self.wakeup_s())
        if not (can_be_quiet and self._agenda.is_quiet(self.view, now_s)):
            actions += self._settle(now_s)
        self._agenda.plan(now_s)
        return actions

    def _settle(self, now_s: float) -> list[ev.RoundAction]:
        """Ask all rules until none has more to do."""
        actions: list[ev.RoundAction] = []
        while not (self.view.is_diverged or self.is_held):
            due = [action for rule in self._rules() for action in rule(now_s)]
            if not due:
                break
            actions += due
        opens_s = self.view.started_s + self.config.wait_seats_s
        self._agenda.settle(self.view, self._deadline, opens_s=opens_s, now_s=now_s)
        if self.is_held:
            self._agenda.disturb()  # The rules were not asked.
        return actions

    def _rules(self) -> tuple[Callable[[float], Iterator[ev.RoundAction]], ...]:
        agreed = (self._open_collection, self._supply, self._agree, self._seal)
        return (self._final, self._commit, *agreed)

    def _take(self, event: ev.LocalRoundEvent, now_s: float) -> Iterator[ev.RoundAction]:
        match event:
            case ev.Contributed():
                self.view.contributed(event)
            case ev.CellsArrived(bulk=bulk, subject=subject, cells=cells):
                # Cells of the round before may come late, and are no progress of this one.
                is_late = self.previous is not None and self.previous.is_about(subject)
                view = self.previous if self.previous and is_late else self.view
                is_new = view.arrived(bulk, subject, cells, now_s=now_s)
                if is_new and learn(view, self._deadline, now_s):
                    self._agenda.disturb()
            case ev.Reduced():
                yield from self._reduced(event)
            case ev.Applied(list_digest=digest, root=root):
                self.view.applied[digest] = root
            case ev.SeatChecked(peer=peer, basis=basis, is_proved=is_proved):
                if is_proved and basis == self.view.basis:
                    self.view.proven_seats.add(peer)
            case ev.SuspicionsChanged(suspects=suspects):
                self._suspects = suspects
                self.view.suspect(suspects)
            case ev.Woke():
                self._silence.woke()
            case ev.StatusHeard(peer=peer, round=round_index):
                self._silence.status(peer, round_index)
            case ev.EndTimePassed() | ev.Tick():
                self._is_past_end |= isinstance(event, ev.EndTimePassed)
            case _:
                assert_never(event)
        self._silence.settle(self.view)

    def _hear(self, entry: Entry, now_s: float) -> list[ev.RoundAction]:
        message, slot = entry.message, entry.message.slot
        view = self.view
        if message.sender == view.me and view.ballots.find(message.digest) is None:
            # Ours, and not in our journal: the disk was rolled back (R12).
            self._silence.rolled_back(slot.round)
        has_room = len(view.early) < limits.MESSAGES_PER_ROUND_MAX
        if slot.round == view.index + 1 and has_room and not self.config.rare("early-dropped"):
            view.early.setdefault(message.digest, entry)
        if not concerns(view, entry):
            return []
        if wrong := breach(view, entry):
            return [ev.Fault(message.sender, wrong)]
        filed = view.ballots.add(entry)
        if filed == "conflict":
            return [ev.Fault(message.sender, f"two different {slot.kind.name} in one slot")]
        if filed != "new":
            return []
        if slot.kind is Kind.LEAVE:
            self._left.add(message.sender)
        if slot.kind in (Kind.LIST, Kind.NEWATTEMPT) and slot.attempt > view.attempt:
            self._enter(slot.attempt, now_s)
            self._agenda.disturb()
        elif is_for_us(view, entry):
            self._agenda.disturb()
        if isinstance(entry.body, Seat):
            return [ev.CheckSeat(message.sender, slot.basis, entry.body.proof)]
        return []

    def _reduced(self, event: ev.Reduced) -> Iterator[ev.RoundAction]:
        view = self.view
        if ("reduce", event.list_digest, event.first, view.me) not in view.requested:
            return  # The round went on while the slice was summed.
        cells = range(event.first, event.stop)
        view.results.setdefault(event.list_digest, set()).update(cells)
        subject = slice_subject(event.list_digest, event.first, event.stop)
        body = Agg(
            list_digest=event.list_digest, first=event.first, stop=event.stop, root=event.root
        )
        if self._silence.has_lost(view):
            return
        if view.me not in view.ballots.of(Kind.AGG, 0, subject):  # Signed before a restart.
            yield from self._sign(Kind.AGG, body, subject=subject)
        piece = next(p for p in view.slices if p.first == event.first)
        yield from supply.push_results(view, event.list_digest, piece)

    # Rules --------------------------------------------------------------------------------------

    def _commit(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2, R6: bind the contribution, once, and tell what this node saw."""
        view, mine = self.view, self.view.contribution
        if mine is None or view.own_commit or not view.is_member or self.is_muted:
            return
        if self._waits_for_seats(now_s):
            return
        seen = Seen(suspects=self._suspects, left=self._left, is_past_end=self._is_past_end)
        body = commit_body(view, mine, seen)
        signed = sign_message(self._signer, view.slot(Kind.COMMIT), body)
        view.own_commit = signed.digest
        view.parts[signed.digest] = set(range(view.num_cells))
        yield from self._publish(signed, body)

    def _waits_for_seats(self, now_s: float) -> bool:
        view, config = self.view, self.config
        is_waiting = view.index == 1 and len(view.proven_seats) < config.wait_seats
        return is_waiting and now_s < view.started_s + config.wait_seats_s

    def _open_collection(self, now_s: float) -> Iterator[ev.RoundAction]:
        self.view.start_clock(now_s)  # R2: with a quorum of COMMITs.
        yield from ()

    def _supply(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R3: move bytes towards whoever sums them now, sum, and take the outer step."""
        view = self.view
        deadline_s = self._deadline.seconds(view.time_outs)
        certified = view.ballots.certified_lists()
        for digest, _ in certified:
            view.certified_s.setdefault(digest, now_s)
        yield from supply.push_parts(view)
        yield from supply.pull_parts(view, now_s=now_s, deadline_s=deadline_s)
        if not certified and view.ballots.sealed(view.basis) is None:
            return  # Nothing is summed yet.
        yield from supply.reduce_slices(view)
        yield from supply.pull_results(view, now_s=now_s, deadline_s=deadline_s)
        yield from supply.apply_results(view)

    def _agree(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: HAVE, LIST, VOTE and the report to a new closer, each once per slot."""
        view = self.view
        if self.is_muted:
            return
        if view.is_voter and is_given_up(view, self._deadline, now_s=now_s):
            view.time_outs += now_s >= time_out_s(view, self._deadline)
            self._enter(view.attempt + 1 + view.rare("attempt-skipped"), now_s)
        for said in statements(view, self._deadline, now_s=now_s):
            yield from self._sign(said.kind, said.body, attempt=said.attempt)

    def _seal(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: SEAL a list certified in the attempt one works in, with its full result in hand."""
        view = self.view
        if not view.is_member or self.is_muted:
            return
        for attempt, digest in view.ballots.certified():
            if attempt < view.attempt or digest not in view.applied:
                continue
            if view.me in view.ballots.of(Kind.SEAL, attempt, view.basis):
                continue
            if view.lock is not None and view.lock[1] != digest and view.lock[0] >= attempt:
                continue
            value = self._value(digest)
            if value is not None and not self.config.rare("seal-later"):
                if attempt > view.attempt:
                    self._enter(attempt, now_s)
                view.lock = (attempt, digest)
                yield from self._sign_seal(value, attempt)

    def _value(self, digest: bytes) -> SealValue | None:
        known = self.view.values
        if digest not in known or known[digest].root != self.view.applied.get(digest):
            value = seal_value(self.view, digest, self._signer, self.config.clock)
            if value is not None:
                known[digest] = value
            return value
        return known[digest]

    def _sign_seal(self, value: SealValue, attempt: int) -> Iterator[ev.RoundAction]:
        yield ev.RecordProof(tuple(self.view.ballots.messages()))
        body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
        yield from self._sign(Kind.SEAL, body, attempt=attempt, subject=value.before)

    def _final(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: a quorum of SEALs of one attempt makes the round final."""
        view = self.view
        sealed = view.ballots.sealed(view.basis)
        value = self._value(sealed[0].list_digest) if sealed else None
        if sealed is None or value is None:
            return
        if value.digest != sealed[0].value:
            yield from self._diverge("ours would be another: in state, roster or clock")
        else:
            yield from self._adopt(certify(value, sealed[1]), now_s)

    def _diverge(self, reason: str) -> Iterator[ev.RoundAction]:
        self.view.is_diverged = True
        yield ev.Resync(f"round {self.view.index} is sealed, but {reason}")

    def _adopt(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.RoundAction]:
        view, value = self.view, certificate.value
        own_seal = view.own_seal_of(value)
        sealed = view.ballots.sealed(view.basis)
        if not own_seal and view.is_member and sealed is not None and not self.is_muted:
            # Shown a quorum of SEALs, a member may add its own of that attempt, even of one it has
            # left: its next COMMIT must carry it (R1, R2).
            attempt = sealed[1][0].slot.attempt
            is_new = view.me not in view.ballots.of(Kind.SEAL, attempt, view.basis)
            if is_new and not self.config.rare("late-seal-unsigned"):
                yield from self._sign_seal(value, attempt)
                own_seal = view.own_seal_of(value)
        was_listed = view.is_listed_in(value)
        self.certificate, self.previous = certificate, view
        self.view = self._new_view(certificate, now_s)
        self.view.own_seal = own_seal
        self._left &= set(value.roster.members)
        yield ev.Adopt(certificate, was_listed)
        for entry in view.early.values():
            yield from self._hear(entry, now_s)

    def _enter(self, attempt: int, now_s: float) -> None:
        """Work in a later attempt from now on; the rule below reports the lock to its closer."""
        view = self.view
        view.attempt, view.entered_s = attempt, now_s
        if view.opened_s is None:
            view.opened_s = now_s

    # Helpers ------------------------------------------------------------------------------------

    def _new_view(self, head: SealCertificate, now_s: float) -> RoundView:
        return RoundView(
            me=self._signer.peer_id,
            head=head.value,
            num_cells=self.config.num_cells,
            trust=self.config.trust,
            started_s=now_s,
            suspects=self._suspects,
            draw=self.config.rare,
        )

    def _sign(
        self, kind: Kind, body: Body, *, attempt: int = 0, subject: bytes = b""
    ) -> Iterator[ev.RoundAction]:
        slot = self.view.slot(kind, attempt=attempt, subject=subject)
        yield from self._publish(sign_message(self._signer, slot, body), body)

    def _publish(self, message: SignedMessage, body: Body) -> Iterator[ev.RoundAction]:
        filed = self.view.ballots.add(Entry(message, body), is_own=True)
        # A slot filled twice would convict this node; the rules ask before they sign.
        assert filed == "new", f"{message.slot.kind.name} signed twice in one slot ({filed})"
        yield ev.RecordSlot(message)
        yield ev.Broadcast(message)
