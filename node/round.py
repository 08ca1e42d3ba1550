"""RoundMachine: one shard's rounds, decided purely. Event and monotonic time in, actions out.

    contribution -> COMMIT -> parts to reducers -> HAVE -> LIST -> VOTE -> certificate
                 -> slices summed, AGG, results -> outer step -> SEAL -> quorum -> next round

After every event all rules are asked again until none has more to do, so that no outcome depends
on the order in which messages arrive. Nothing is summed before its LIST is certified; nobody
replaces the anchor before a quorum of equal SEALs of one attempt; whoever is missing is absent,
and nobody waits for the absent longer than a deadline. The rules R1 to R13 that the comments name
are in docs/protocol/rounds.md.
"""

from collections.abc import Iterator
from typing import assert_never

from node import events as ev
from node.rules import supply
from node.rules.agenda import POLLS_PER_DEADLINE, is_idle
from node.rules.agreed import note_grams
from node.rules.agreement import (
    Seen,
    commit_body,
    due_times,
    has_timed_out,
    is_given_up,
    learn,
    statements,
)
from node.rules.ballots import Entry
from node.rules.chain import certify
from node.rules.everybody import note_lists
from node.rules.lapses import note_lapses
from node.rules.round_sums import RoundSums
from node.rules.round_view import RoundView
from protocol import limits
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import (
    Kind,
    Leave,
    SealCertificate,
    SealValue,
    Seat,
    sign_message,
)

_NOBODY: frozenset[PeerId] = frozenset()

PASSES_MAX = 10_000
"""So often are all rules asked after one event, or two of them go round in circles."""


class RoundMachine(RoundSums):
    """The rounds of one shard on one node. Not thread-safe; one owner calls `handle`."""

    def follow(self, path: tuple[SealCertificate, ...], now_s: float) -> Iterator[ev.RoundAction]:
        """R4: branches met, and this is the one to stand on, from the last final seal on."""
        standing = self.standing
        own = [link.value.digest for link in standing.branch]
        other = [link.value.digest for link in path]
        if other[: len(own)] != own:
            yield from self._fall_back(now_s)
            own = []
        standing.ahead = path[len(own) :]
        self._agenda.disturb()
        yield from self._settle(now_s)
        self._agenda.plan(now_s)

    def take_seat(self, basis: bytes, proof: bytes, work: bytes = b"") -> Iterator[ev.RoundAction]:
        """R11: ask for a seat, with the proof that the state of `basis` is here, and the work that
        the run may ask for."""
        view = self.view
        if basis != view.basis or view.is_member or self.is_muted or self.is_held:
            return  # While another state is put in place, the proof may be of that.
        if view.me not in view.ballots.of(Kind.SEAT):
            yield from self._sign(Kind.SEAT, Seat(proof=proof, device="", work=work))

    def leave(self) -> Iterator[ev.RoundAction]:
        """Say that this node goes; the others drop it with the next seal that can."""
        view = self.view
        if view.is_member and view.me not in view.ballots.of(Kind.LEAVE):
            self._left.add(view.me)  # Its own COMMIT names it: nobody else's word may count.
            yield from self._sign(Kind.LEAVE, Leave(reason=""))

    # Events -------------------------------------------------------------------------------------

    def handle(self, event: ev.RoundEvent, now_s: float) -> list[ev.RoundAction]:
        """Take one event in; the actions that are due, in order."""
        was_asking, actions = self._silence.is_asking, list[ev.RoundAction]()
        if isinstance(event, ev.Heard):
            actions, can_be_quiet = self._hear(Entry(event.message, event.body), now_s), True
            if was_asking:
                self._settle_silence()
        else:
            if isinstance(event, ev.CellsArrived):  # As nearly always: no generator is made.
                self._cells_arrived(event, now_s)
            else:
                actions += self._take(event, now_s)
            is_early = now_s < self.wakeup_s()
            can_be_quiet = all(is_idle(event, view, is_early) for view in self._worked_in)
        can_be_quiet &= was_asking == self._silence.is_asking  # Else it may sign again.
        if not (can_be_quiet and self._agenda.is_quiet(self.view, now_s)):
            actions += self._settle(now_s)
        self._agenda.plan(now_s)
        return actions

    def _settle(self, now_s: float) -> list[ev.RoundAction]:
        """Ask all rules until none has more to do."""
        actions = self._hear_listed(now_s)
        passes = 0
        while not (self.view.is_diverged or self.is_held):
            passes += 1
            assert passes < PASSES_MAX, "two rules undo what the other did"
            due = self._due(now_s)
            if not due:
                break
            actions += due
        opens_s = self.view.started_s + self.config.wait_seats_s
        others_s = (opens_s, self.courtesy.until_s, self._reach.due_s, *self._due_beside(now_s))
        self._agenda.settle(self.view, self._deadline, others_s=others_s, now_s=now_s)
        if self.is_held:
            self._agenda.disturb()  # The rules were not asked.
        return actions

    def _due_beside(self, now_s: float) -> Iterator[float]:
        """When the rules are due for the round beside this one (R5)."""
        view = self._beside
        if view is not None:
            deadline_s = self._deadline.seconds(view.time_outs)
            yield from due_times(view, self._deadline)
            yield from supply.retry_times(view, deadline_s, now_s=now_s)
            if view.opened_s is not None:
                yield now_s + deadline_s / POLLS_PER_DEADLINE

    def _due(self, now_s: float) -> list[ev.RoundAction]:
        """What each rule has to do, asked one after the other."""
        is_overlapped = self.config.clock.lag > 1
        # The round that was under way beside the last one is not needed (R5).
        if is_overlapped and self.head.clock.ends_run:
            return []
        actions = [*self._stand(now_s)]
        stood_in = self.view
        actions += self._final(now_s)
        is_elsewhere = self.view is not stood_in  # Of which kind that round is, is asked first.
        if is_elsewhere or (is_overlapped and self.view.head.clock.ends_run):
            return actions
        asked = (
            self._provisional(now_s),
            self._commit(now_s),
            self._supply(now_s),
            self._agree(now_s),
            self._seal(now_s),
        )
        for found in asked:
            actions += found
        return actions

    @property
    def _beside(self) -> RoundView | None:
        """The round beside the one that is worked in; none where that is behind a branch (R4)."""
        return self.standing.beside if self.view is self.standing.top else None

    @property
    def _worked_in(self) -> tuple[RoundView, ...]:
        """The rounds that may be bound and agreed upon now; SEALed is the first alone (R5)."""
        beside = self._beside
        return (self.view,) if beside is None else (self.view, beside)

    def _cells_arrived(self, event: ev.CellsArrived, now_s: float) -> None:
        # Cells of the round before may come late, and are no progress of this one.
        view = next((view for view in self.views if view.is_about(event.subject)), self.view)
        if event.bulk is Bulk.PART and not self._takes_parts(view):
            return
        is_new = view.arrived(event.bulk, event.subject, event.cells, now_s=now_s)
        if is_new and learn(view, self._deadline, now_s):
            self._agenda.disturb()
        self._settle_silence()

    def _take(self, event: ev.LocalRoundEvent, now_s: float) -> Iterator[ev.RoundAction]:
        match event:
            case ev.Contributed():
                self.standing.top.contributed(event)
                if self.standing.beside is not None:
                    self.standing.beside.contributed(event)
            case ev.Reduced():
                yield from self._reduced(event)
            case ev.Measured():
                yield from self._measured(event)
            case ev.Applied(list_digest=digest, root=root, base=base):
                view = self.standing.about(digest) or self.view
                if not (view.is_beside or (base and base != view.head.root)):
                    view.applied[digest] = root
            case ev.SeatChecked(peer=peer, basis=basis, is_proved=is_proved):
                self.proofs.checked(peer, self.standing.on(basis), is_proved)
                yield from self.proofs.next(self.standing.under_way)
            case ev.SuspicionsChanged(suspects=suspects):
                self._suspects = suspects
                for view in self.standing.under_way:
                    view.suspect(suspects, self.convicted)
            case ev.Convicted(evidence=evidence):
                self._convict(self.convicted | ({e.subject for e in evidence} - {self.view.me}))
            case ev.Woke():
                self._silence.woke()
            case ev.StatusHeard(peer=peer, round=round_index):
                self._silence.status(peer, round_index)
            case ev.EndTimePassed() | ev.Tick() | ev.CellsArrived():
                self._is_past_end |= isinstance(event, ev.EndTimePassed)
            case _:
                assert_never(event)
        self._settle_silence()

    def _takes_parts(self, view: RoundView) -> bool:
        """Whether that round may be summed here: parts of others on the branch are not kept."""
        standing = self.standing
        near = (self.previous, *standing.shared, standing.top, standing.beside)
        return any(view is one for one in near)

    # Rules --------------------------------------------------------------------------------------

    def _stand(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R4: in which round to work, and of which kind."""
        standing, sealers = self.standing, _NOBODY
        if not self._reach.has_all(standing.base.roster, self._suspects):
            opening, sealers = self._reach.sealers(standing.position, self._suspects, now_s=now_s)
            if sealers and standing.branch and opening.basis.digest == standing.final.value.digest:
                # Nobody in reach has a seat behind the head, who could contribute or name a joiner.
                yield from self._fall_back(now_s)
            base = standing.base
            is_final_elsewhere = self.is_behind or base.ballots.sealed(base.before)
            if is_final_elsewhere or len(standing.branch) >= limits.BRANCH_ROUNDS_MAX:
                sealers = _NOBODY
        view = standing.top if sealers else standing.base
        view.bound = b"" if sealers else standing.bound
        view.is_meeting = self.is_meeting
        view.followed = standing.followed if sealers else b""
        is_toggled = bool(sealers) != view.is_provisional
        if view is not self.view or sealers != view.ballots.sealers:
            self.view = view
            view.elect(sealers)
            self._agenda.disturb()
        if is_toggled and _has_acted(view):
            self._enter(view, self._next_attempt(view), now_s)

    def _next_attempt(self, view: RoundView) -> int:
        """The next attempt; of a provisional round the next whose closer is in reach."""
        attempt = view.attempt + 1
        if view.is_provisional:
            span = range(attempt, attempt + len(view.final.roster.seats))
            attempt = next((a for a in span if view.can_close(a)), attempt)
        return attempt

    def _commit(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2, R6: bind the contribution, once, and tell what this node saw."""
        yield from self.proofs.next(self.standing.under_way)
        for view in self._worked_in:
            mine = view.contribution
            is_mute = self._is_mute_in(view)
            if mine is None or view.own_commit or not view.is_member or is_mute:
                continue
            if self.holds_commit(view, now_s):
                continue
            if view.is_beside:
                # Who asks for a seat shows the state that the round before it begins with.
                view.proven_seats |= self.view.proven_seats
            idle = self.idlers.unwelcome(view.index)
            seen = Seen(self._suspects, self._left, self._is_past_end, self.rates, idle)
            work = self.audits.work(view.index, mine.work) if self.audits else ()
            body = commit_body(view, mine, seen, work)
            signed = sign_message(self._signer, view.slot(Kind.COMMIT), body)
            view.own_commit = signed.digest
            view.parts[signed.digest] = set(range(view.num_cells))
            yield from self._publish(view, signed, body)

    def _supply(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R3: move bytes towards whoever sums them now, sum, and take the outer step."""
        for view in self._worked_in:
            yield from self._supply_in(view, now_s)

    def _supply_in(self, view: RoundView, now_s: float) -> Iterator[ev.RoundAction]:
        view.start_clock(now_s)  # R2: with a quorum of COMMITs.
        deadline_s = self._deadline.seconds(view.time_outs)
        certified = view.ballots.certified_lists()
        note_lists(view, now_s)
        yield from supply.push_parts(view)
        yield from supply.pull_parts(view, now_s=now_s, deadline_s=deadline_s)
        if not (certified or view.followed or view.ballots.sealed(view.before)):
            return  # Nothing is summed yet.
        yield from supply.measure_slices(view)
        note_grams(view, now_s)
        yield from supply.reduce_slices(view)
        yield from supply.pull_results(view, now_s=now_s, deadline_s=deadline_s)
        if not view.is_beside:
            # A root is over all fragments, so the step waits for that of the round before (R5).
            yield from supply.apply_results(view)

    def _agree(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: HAVE, LIST, VOTE and the report to a new closer, each once per slot."""
        for view in self._worked_in:
            # While no quorum is in reach, the round beside is bound, and no more (R4, R5).
            if not (view.is_beside and self.view.is_provisional):
                yield from self._agree_in(view, now_s)

    def _agree_in(self, view: RoundView, now_s: float) -> Iterator[ev.RoundAction]:
        if self._is_mute_in(view) or view.followed:
            return
        if view.opened_s is not None and view.is_speaker:
            # Before the attempt is given up: who made it end without a seal is told of.
            deadline_s = self._deadline.seconds(view.time_outs)
            note_lapses(view, now_s=now_s, deadline_s=deadline_s)
        may_go_on = view.is_voter and view.attempt < limits.ATTEMPTS_MAX
        if may_go_on and is_given_up(view, self._deadline, now_s=now_s):
            view.time_outs += has_timed_out(view, self._deadline, now_s=now_s)
            self._enter(view, self._next_attempt(view) + view.rare("attempt-skipped"), now_s)
        for said in statements(view, self._deadline, now_s=now_s):
            yield from self._sign(said.kind, said.body, attempt=said.attempt, view=view)

    def _seal(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: SEAL a list certified in the attempt one works in, with its full result in hand.

        In a provisional round PSEAL it, which locks nobody (R4).
        """
        view = self.view
        if not view.is_speaker or self.is_muted:
            return
        kind = Kind.PSEAL if view.is_provisional else Kind.SEAL
        for attempt, digest in view.ballots.certified():
            if attempt < view.attempt or digest not in view.applied:
                continue
            if view.me in view.ballots.of(kind, attempt, view.before):
                continue
            is_bound = view.lock is not None and view.lock[1] != digest and view.lock[0] >= attempt
            if is_bound and kind is Kind.SEAL:
                continue
            value = self._value(view, digest)
            if value is not None and not self.config.rare("seal-later"):
                if attempt > view.attempt:
                    self._enter(view, attempt, now_s)
                if kind is Kind.SEAL:
                    view.lock = (attempt, digest)
                yield from self._sign_seal(kind, value, attempt)

    def _final(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: a quorum of SEALs of one attempt makes the round final."""
        view, branch = self.standing.base, self.standing.branch
        sealed = view.ballots.sealed(view.before)
        if sealed is None:
            return
        if branch and branch[0].value.digest == sealed[0].value:
            yield from self._confirm(certify(branch[0].value, sealed[1]), now_s)
            return
        value = self._value(view, sealed[0].list_digest)
        if value is None:
            return
        if value.digest != sealed[0].value:
            yield from self._diverge("ours would be another: in state, roster or clock")
        else:
            yield from self._adopt(certify(value, sealed[1]), now_s)

    def _provisional(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R4: the PSEALs of all whom the round needs, or others who went on from it, seal it
        provisionally."""
        view, standing = self.view, self.standing
        if not view.is_provisional or view is not standing.top:
            return
        psealed = view.ballots.psealed(view.before)
        if view.followed:
            value = self._value(view, view.followed)
            link = standing.ahead[0]
        elif psealed is not None:
            value = self._value(view, psealed[0].list_digest)
            link = certify(value, psealed[1]) if value is not None else standing.head
        else:
            return
        if value is None or not (view.followed or self._leads_on(value)):
            return  # Of the latter the next attempt makes one that names whoever is left.
        expected = link.value.digest if view.followed else psealed and psealed[0].value
        if value.digest != expected:
            yield from self._diverge("ours would be another: in state, roster or clock")
        else:
            yield from self._advance(link, now_s)

    def _leads_on(self, value: SealValue) -> bool:
        """Whether somebody in reach has a seat in the round that this seal names, and in the one
        that was beside the sealed one (R5)."""
        beside = self._beside
        rosters = (value.roster,) if beside is None else (value.roster, beside.roster)
        return all(self._reach.has_member(roster, self._suspects) for roster in rosters)


def _has_acted(view: RoundView) -> bool:
    """Whether something may be signed in this attempt that is bound to its kind."""
    if view.opened_s is not None or view.attempt > 0:
        return True
    kinds = (Kind.VOTE, Kind.PVOTE, Kind.SEAL, Kind.PSEAL)
    return any(view.ballots.attempts(kind) for kind in kinds)
