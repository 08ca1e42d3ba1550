"""RoundMachine: one shard's rounds, decided purely. Event and monotonic time in, actions out.

    contribution -> COMMIT -> parts to reducers -> HAVE -> LIST -> VOTE -> certificate
                 -> slices summed, AGG, results -> outer step -> SEAL -> quorum -> next round

After every event all rules are asked again until none has more to do, so that no outcome depends
on the order in which messages arrive. Nothing is summed before its LIST is certified; nobody
replaces the anchor before a quorum of equal SEALs of one attempt; whoever is missing is absent,
and nobody waits for the absent longer than a deadline. The rules (R1...) are in
`docs/protocol/rounds.md`.

More than 800 lines, because it is one machine: what it holds, files and signs, its steps from seal
to seal, and the order in which the rules are asked. The rules are in the other modules here.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from protocol import events as ev
from protocol import limits
from protocol.evidence import Evidence, two_messages_evidence
from protocol.frames import Bulk, Progress
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Agg,
    Body,
    Gram,
    Kind,
    Leave,
    Seal,
    SealCertificate,
    SealValue,
    Seat,
    SignedMessage,
    Slot,
    Work,
    decode_message,
    sign_message,
    slice_subject,
)
from protocol.rounds import supply
from protocol.rounds.admission import (
    Proofs,
    attempt_shown,
    breach,
    concerns,
    is_attended,
    is_for_us,
    may_sit_next,
)
from protocol.rounds.agenda import POLLS_PER_DEADLINE, Agenda, is_idle
from protocol.rounds.agreed import JUDGED, note_grams, take_own_sum, wrong_sums
from protocol.rounds.agreement import (
    Seen,
    commit_body,
    due_times,
    has_timed_out,
    is_given_up,
    learn,
    statements,
    waits_for_seats,
)
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.chain import certify, seal_value
from protocol.rounds.giving import Ending, Giving, taking_cap_s
from protocol.rounds.lapses import Courtesy, Idlers, LearnedDeadline, note_lapses
from protocol.rounds.patience import ROUNDS_BEHIND_MAX, Patience
from protocol.rounds.reducers import Rates
from protocol.rounds.restart import Restart, Silence, own_seal, recall_results, refill
from protocol.rounds.round_view import RoundConfig, RoundSeals, RoundTimes, RoundView
from protocol.rounds.standing import Reach, Standing
from protocol.rounds.supply import note_lists

_NOBODY: frozenset[PeerId] = frozenset()

PASSES_MAX = 10_000
"""So often are all rules asked after one event, or two of them go round in circles."""


class WorkRecord(Protocol):
    """SEAM: what audits say of the own work (R10); `protocol.auditing` has the one of nodes."""

    def work(self, round_index: int, done: ev.WorkDone | None) -> tuple[Work, ...]:
        """What the own COMMIT of that round says of the work behind it."""
        ...


class RoundMachine:
    """The rounds of one shard on one node. Not thread-safe; one owner calls `handle`.

    `view` is the round that it works in: the one that becomes final next, or provisionally the one
    behind its head (R4). `previous` is the round before the last final seal.
    """

    def __init__(
        self, config: RoundConfig, signer: Signer, head: SealCertificate, *, now_s: float
    ) -> None:
        self.config = config
        self._signer = signer
        self._deadline = LearnedDeadline(
            floor_s=config.deadline_floor_s, cap_s=config.deadline_cap_s, rare=config.rare
        )
        self._suspects: frozenset[PeerId] = frozenset()
        self.convicted: frozenset[PeerId] = frozenset()
        """Those against whom this node holds evidence."""
        self._left: set[PeerId] = set()
        self._silence = Silence()
        self.rates = Rates()
        self.proofs = Proofs(self.rates)
        self._is_past_end = False
        self.courtesy = Courtesy()
        self.giving = Giving(taking_cap_s(config), is_open=config.trust == "open")
        self.patience = Patience(heartbeat_s=config.heartbeat_s, floor_s=config.deadline_floor_s)
        self.idlers = Idlers()
        self._agenda = Agenda(now_s)
        self._restart: Restart | None = None
        self._reach = Reach(config, signer.peer_id)
        self._own_seal = b""
        """The own SEAL of the last final seal, of whatever attempt; empty if there is none."""
        base = self._new_view(head, head.value, now_s, before=head.value)
        self.standing = Standing(head, [base])
        self._open_beside(now_s, b"")
        self.view = self.standing.base
        self.previous: RoundView | None = None
        self.filed_late: list[SignedMessage] = []
        """Messages of others that were kept until they could be filed, and are told to nobody."""
        self.audits: WorkRecord | None = None
        """What states the work behind the own COMMITs (R10); None without a whole node around."""
        self.doubted: frozenset[PeerId] = frozenset()
        """Who says that it has later seals and has not shown them, as the node's core knows."""
        self.is_held = False
        """Set while a later state is being fetched: this node then only listens."""
        self.is_behind = False
        """Set while somebody in reach has a later final seal: this node then takes that over."""
        self.is_meeting = False
        """Set while somebody in reach is on a branch that is not known yet."""

    # What others may ask ------------------------------------------------------------------------

    @property
    def certificate(self) -> SealCertificate:
        """The last final seal that this node has adopted."""
        return self.standing.final

    @property
    def head(self) -> SealValue:
        """What that seal says."""
        return self.standing.final.value

    @property
    def left(self) -> frozenset[PeerId]:
        """Who said that it leaves, and has not lost its seat since."""
        return frozenset(self._left)

    @property
    def views(self) -> tuple[RoundView, ...]:
        """All rounds that messages and cells are taken for, the one it works in first."""
        previous = () if self.previous is None else (self.previous,)
        if len(self.standing.under_way) == 1:  # As nearly always.
            return (self.view, *previous)
        return (self.view, *self.standing.others(self.view), *previous)

    def has_view(self, view: RoundView) -> bool:
        """Whether that round is still under way."""
        return any(view is other for other in self.standing.under_way)

    @property
    def watched(self) -> tuple[PeerId, ...]:
        """Whose silence matters: the members of the round, and of the seals it stands between."""
        views, view = self.standing.under_way, self.view
        base, top = views[0], views[-1]
        if len(views) == 1 or (view is base and base.member_set == top.member_set):
            return view.members  # As nearly always, and the same object each time.
        return tuple(sorted(base.member_set | top.member_set | view.member_set))

    @property
    def is_muted(self) -> bool:
        """Whether this node fills no slot now.

        It does not know yet where the others are (R3), or what it signed in this round (R12).
        """
        return self._silence.is_on(self.view)

    def _is_mute_in(self, view: RoundView) -> bool:
        """The same of another round under way."""
        return self._silence.is_on(view)

    @property
    def is_asking(self) -> bool:
        """Whether the STATUS of others is waited for."""
        return self._silence.is_asking

    @property
    def has_forgotten(self) -> bool:
        """Whether signatures are lost, so that what this node says of rounds is worth nothing."""
        return self._silence.has_forgotten

    @property
    def may_contradict(self) -> bool:
        """Whether in the round under way it may have signed what it does not remember (R12)."""
        return self._silence.has_lost(self.view)

    def hear_progress(self, peer: PeerId, progress: tuple[Progress, ...], now_s: float) -> None:
        """How far a linked member is, by its heartbeat."""
        under_way = self.standing.under_way
        if not any(peer in view.member_set for view in under_way):
            return
        commits = {view.index: len(view.ballots.commits) for view in under_way}
        last = under_way[-1].index
        first = last - self.config.clock.lag - ROUNDS_BEHIND_MAX
        for said in progress:
            if said.shard == self.head.shard and first < said.round <= last:
                num_commits = commits.get(said.round, 0)
                self.patience.told(peer, said, now_s, commits=num_commits)

    def gave_parts(self, peer: PeerId, commit: bytes, took_s: float) -> None:
        """A peer has own parts, for which the line took so long."""
        for view in self.views:
            if commit == view.own.commit and peer in view.member_set:
                view.arrivals.sent_s[peer] = view.arrivals.sent_s.get(peer, 0.0) + took_s

    def meets(self, *, is_behind: bool, is_meeting: bool) -> None:
        """Whether somebody in reach has a later final seal, or a branch that is not known yet."""
        if (is_behind, is_meeting) != (self.is_behind, self.is_meeting):
            self.is_behind, self.is_meeting = is_behind, is_meeting
            self._agenda.disturb()

    def wakeup_s(self) -> float:
        """The monotonic time at which a Tick is due, if no event comes before."""
        return self._agenda.wakeup_s

    def seats_awaited(self, now_s: float) -> int:
        """For how many joiners more a founder holds its first COMMIT, or will once it is ready."""
        view, config = self.standing.base, self.config
        if not view.is_member or view.own.commit or not waits_for_seats(view, config, now_s):
            return 0
        return config.wait_seats - len(view.seats.proven)

    def holds_commit(self, view: RoundView, now_s: float) -> bool:
        """Whether the own COMMIT, which is ready, is held for joiners: the first one of a founder
        that waits for them, one of a short round, or one that would go too far ahead (R11)."""
        if waits_for_seats(view, self.config, now_s):
            return True
        deadline_s = self._deadline.seconds()
        if self.courtesy.holds(view, deadline_s, now_s):
            return True
        if view.me in self._left:
            return False  # It goes, and hands its vote over.
        return self.giving.holds(view, self._ending(view), deadline_s=deadline_s, now_s=now_s)

    def _ending(self, view: RoundView) -> Ending:
        """When the run ends, if the round lists what its members usually give."""
        clock, mine = self.config.clock, view.own.contribution
        expected = len(view.members) * (mine.tokens if mine is not None else 0)
        has_tokens = 0 < clock.tokens <= view.seals.head.clock.tokens + expected
        return Ending(clock.rounds, is_now=has_tokens or self._is_past_end)

    def ended_on(self, basis: bytes) -> RoundView | None:
        """A round that is sealed, of which what comes late is still told (R1)."""
        for view in self.standing.under_way:
            if view.ended is not None and view.ended.basis == basis:
                return view.ended
        return None

    # Filing -------------------------------------------------------------------------------------

    def hear_late(self, view: RoundView, entry: BallotEntry) -> list[ev.RoundAction]:
        """A COMMIT or SEAL of a round that is sealed: it shows that its sender is there (R1)."""
        message = entry.message
        if not concerns(view, entry):
            return []
        if wrong := breach(view, entry, self.config.clock):
            return [ev.Fault(message.sender, wrong)]
        if view.ballots.add(entry) == "conflict":
            return self._contradicted(view, message)
        return []

    def _hear(self, entry: BallotEntry, now_s: float) -> list[ev.RoundAction]:
        message, slot = entry.message, entry.message.slot
        view = self.standing.on(slot.basis) or self.view
        is_own = message.sender == view.me
        if is_own and not (view.ballots.find(message.digest) or self._is_remembered(message)):
            # Ours, and not in our journal: the disk was rolled back (R12).
            self._silence.rolled_back(slot.round)
        if self._keep_early(entry) or not concerns(view, entry):
            return []
        if wrong := breach(view, entry, self.config.clock):
            return [ev.Fault(message.sender, wrong)]
        if isinstance(entry.body, Agg | Gram) and not view.is_named(entry.body.list_digest):
            view.unlisted.keep(entry)
            return []
        filed = view.ballots.add(entry)
        if filed == "conflict":
            if view.ballots.find(message.digest):
                self._agenda.disturb()  # It was kept: somebody may rest on it.
            return self._contradicted(view, message)
        if filed != "new":
            return []
        if slot.kind is Kind.COMMIT:
            self._note_commit(view, message.sender, now_s)
        elif slot.kind in (Kind.HAVE, Kind.HOLD):
            view.lapses.said_s[slot.attempt, message.sender] = now_s
        elif slot.kind is Kind.LEAVE:
            self._left.add(message.sender)
        if (shown := attempt_shown(view, entry)) > view.attempt:
            self._enter(view, shown, now_s)
            self._agenda.disturb()
        elif view.times.entered_s == math.inf and is_attended(view):
            view.times.entered_s = now_s
            self._agenda.disturb()
        elif (view is not self.view and not view.seals.is_beside) or is_for_us(view, entry):
            self._agenda.disturb()
        if isinstance(entry.body, Seat):
            return [*self.proofs.next(self.standing.under_way)]
        return self._compared(view, slot)

    def _hear_listed(self, now_s: float) -> list[ev.RoundAction]:
        """File the sums that came before the LIST that they are of."""
        actions: list[ev.RoundAction] = []
        for view in self.standing.under_way:
            for entry in view.unlisted.take(view.is_named):
                actions += self._hear(entry, now_s)
                if view.ballots.find(entry.message.digest):
                    self.filed_late.append(entry.message)
        return actions

    def _compared(self, view: RoundView, slot: Slot) -> list[ev.RoundAction]:
        """What follows from one sum more in that slot: those who said another one are convicted."""
        actions: list[ev.RoundAction] = []
        for peer, evidence in wrong_sums(view, slot) if slot.kind in JUDGED else ():
            actions += self._accuse(ev.Fault(peer, f"a wrong {slot.kind.name}"), evidence)
        return actions

    def _note_commit(self, view: RoundView, sender: PeerId, now_s: float) -> None:
        if not view.ballots.of(Kind.LIST, view.attempt):
            view.times.committed_s = now_s
        view.arrivals.commit_s[sender] = now_s
        opened_s = view.times.opened_s
        if opened_s is not None and now_s >= opened_s + self.config.overdue_s:
            view.lapses.overdue.add(sender)

    def _contradicted(self, view: RoundView, message: SignedMessage) -> list[ev.RoundAction]:
        """Two different messages in one slot: the evidence, once per peer."""
        sender = message.sender
        if sender == view.me or sender in self.convicted:
            return []  # Of oneself the others will say it: this key is used twice, or forgot.
        if not may_sit_next(view, sender):
            return []  # Anybody can make up keys that contradict themselves.
        fault = ev.Fault(sender, f"two different {message.slot.kind.name} in one slot")
        return self._accuse(fault, two_messages_evidence(view.ballots.counted(message), message))

    def _accuse(self, fault: ev.Fault, evidence: Evidence | None) -> list[ev.RoundAction]:
        """Evidence convicts; without it there is a fault and no more."""
        if evidence is None or "bans" in self.config.without:
            return [fault]
        self._convict(self.convicted | {fault.peer})
        return [ev.Accuse(evidence), fault]

    def _convict(self, convicted: frozenset[PeerId]) -> None:
        self.convicted = convicted
        for view in self.standing.under_way:
            view.suspect(self._suspects, convicted)
        self._agenda.disturb()

    def _keep_early(self, entry: BallotEntry) -> bool:
        """Keep a message that may be of a round which no seal here names yet, and file it later.
        Returns whether it cannot be filed now.

        A SEAL of the round beside this one (R5) is kept as well: its signer has the seal before
        that round, and this node has not. Where there may be branches such a SEAL is filed at once
        too, for its signer may stand on another seal than the one that comes next here.
        """
        slot, lag = entry.message.slot, self.config.clock.lag
        on = self.standing.on(slot.basis)
        is_sealed = on is not None and on.seals.is_beside and slot.kind is Kind.SEAL
        is_sealed &= not self.config.may_branch
        if on is not None and not is_sealed:
            return False
        top = self.standing.top
        for view in (self.view,) if self.view is top else (self.view, top):
            is_next = slot.round in (view.index + 1, view.index + lag)
            is_next &= slot.kind is Kind.SEAT or may_sit_next(view, entry.message.sender)
            if is_next and not self.config.rare("early-dropped"):
                view.early.keep(entry, rounds=lag)
        return is_sealed

    def _is_remembered(self, message: SignedMessage) -> bool:
        """Whether an own message is of a round that this node has left, and in its journal."""
        if self.standing.has_signed(message):
            return True
        restart = self._restart
        return restart is not None and any(m.digest == message.digest for m in restart.messages)

    def _enter(self, view: RoundView, attempt: int, now_s: float) -> None:
        """Work in a later attempt from now on; a rule reports the lock to its closer.

        Attempt numbers have a largest one, to which liars may lead: the node stays in that one.
        """
        view.attempt = min(attempt, limits.ATTEMPTS_MAX)
        view.times.entered_s = now_s if is_attended(view) else math.inf
        if view.times.opened_s is None:
            view.times.opened_s = now_s

    def _settle_silence(self) -> None:
        self._silence.settle(self.view, self.standing.base, self.doubted)

    # Helpers ------------------------------------------------------------------------------------

    def _value(self, view: RoundView, digest: bytes) -> SealValue | None:
        """What the seal of a LIST says, once its result is applied."""
        known = view.outcome.values
        if digest not in known or known[digest].root != view.outcome.applied.get(digest):
            derived = self.config.derived
            find = seal_value if derived is None else derived.seal_value
            value = find(view, digest, self._signer, self.config.clock)
            if value is not None:
                known[digest] = value
            return value
        return known[digest]

    def _new_view(
        self, head: SealCertificate, final: SealValue, now_s: float, *, before: SealValue | None
    ) -> RoundView:
        """A view of the round after `head`. `before` is the seal before `head`; genesis stands for
        the seal before genesis. If `before` is None, the view is of the round after that round,
        which is beside it (R5)."""
        named_by = before if self.config.clock.lag > 1 else None
        view = RoundView(
            config=self.config,
            me=self._signer.peer_id,
            seals=RoundSeals(head.value, final, named_by=named_by, is_beside=before is None),
            times=RoundTimes(now_s),
        )
        view.suspect(self._suspects, self.convicted)
        if self._restart is not None:
            refill(view, self._restart, now_s=now_s)
        return view

    def _open_beside(self, now_s: float, own_seal: bytes) -> None:
        """R5: with two rounds in flight, open the round after the next one.

        The COMMIT to it will carry this node's SEAL of the current head.
        """
        standing, clock = self.standing, self.config.clock
        head, standing.beside = standing.head, None
        is_last = head.value.clock.ends_run or head.value.round + clock.lag > clock.rounds
        if clock.lag > 1 and not is_last:
            standing.beside = standing.returned(head.value.digest) or self._new_view(
                head, standing.base.seals.final, now_s, before=None
            )
            standing.beside.own.seal = own_seal
        self._agenda.beside = standing.beside

    def _sign(
        self,
        kind: Kind,
        body: Body,
        *,
        attempt: int = 0,
        subject: bytes = b"",
        view: RoundView | None = None,
    ) -> Iterator[ev.RoundAction]:
        view = view or self.view
        slot = view.slot(kind, attempt=attempt, subject=subject)
        body = self.config.bend(slot, body)
        yield from self._publish(view, sign_message(self._signer, slot, body), body)

    def _publish(
        self, view: RoundView, message: SignedMessage, body: Body
    ) -> Iterator[ev.RoundAction]:
        filed = view.ballots.add(BallotEntry(message, body), is_own=True)
        # A slot filled twice would convict this node; the rules ask before they sign.
        assert filed == "new", f"{message.slot.kind.name} signed twice in one slot ({filed})"
        yield ev.RecordSlot(message)
        yield ev.Broadcast(message)
        yield from self._compared(view, message.slot)

    # From seal to seal ---------------------------------------------------------------------------

    def reset(
        self,
        head: SealCertificate,
        *,
        now_s: float,
        before: SealValue | None = None,
        results: frozenset[bytes] = frozenset(),
    ) -> None:
        """Go on from a state that was synchronised; forgets the round under way.

        `before` is the seal before `head`, which is not needed with one round in flight (R5).
        `results` names the LISTs whose results are in the store nevertheless.
        """
        self.standing.fall_back()
        self._own_seal = b""
        self.standing.adopt(
            head,
            lambda link: self._new_view(link, link.value, now_s, before=before or link.value),
        )
        if self.standing.base.seals.is_beside:
            self.standing.base.forget_cells()
        self._go_on(head, b"", now_s)
        self.view, self.previous = self.standing.base, None
        # Who left meanwhile is gone; who came back since has not said that it leaves again.
        self._left.clear()
        self._silence.recall(self.view, now_s=now_s)
        for view in self.views:
            recall_results(view, results)
        self._agenda.disturb()

    def resume(self, restart: Restart, *, now_s: float) -> None:
        """R12: go on where this node went down; called once, before anything is handled."""
        self._restart = restart
        *before, head = restart.chain
        previous: RoundView | None = None
        if before:
            previous = self._new_view(
                before[-1], before[-1].value, now_s, before=before[-2:][0].value
            )
            for data in head.seals:
                # Heard after this node had filed its own: stragglers need them to end the round.
                previous.ballots.add(BallotEntry(*decode_message(data)))
        self.reset(head, now_s=now_s, before=before[-1].value if before else None)
        self.previous = previous
        # What came of that round behind the own SEAL is not in the journal: nothing is told of it.
        self._stand_again(restart, now_s)
        for view in self.views:
            recall_results(view, restart.results)
        self._left |= set(self.view.ballots.of(Kind.LEAVE))
        self._silence.restarted(restart, self.standing.base, now_s=now_s)
        self._settle_silence()

    def _stand_again(self, restart: Restart, now_s: float) -> None:
        """The branch that this node was on; it works on its last final seal until it knows more."""
        me, final = self._signer.peer_id, restart.chain[-1].value
        self.standing.base.own.seal = own_seal(restart, self.standing.base.seals.named, me)
        self._own_seal = own_seal(restart, final, me)
        if self.standing.beside is not None:
            self.standing.beside.own.seal = self._own_seal
        for link in restart.branch:
            before = self.standing.top
            before.outcome.applied[link.value.list_digest] = link.value.root
            self.standing.advance(
                link,
                partial(
                    self._new_view, final=before.seals.final, now_s=now_s, before=before.seals.head
                ),
            )
            self._go_on(link, own_seal(restart, link.value, me), now_s)

    def _go_on(
        self,
        link: SealCertificate,
        own_seal: bytes,
        now_s: float,
        ended: RoundView | None = None,
    ) -> None:
        """R5: the round beside that of this seal stands on it now, and another one is opened.

        `ended` is the round that this seal ends, where it was followed here.
        """
        if self.standing.top.seals.is_beside:
            self.standing.top.stand_on(link.value, now_s)
        self._open_beside(now_s, own_seal)
        named = self.standing.on(link.value.digest)
        if named is not None:
            # The next COMMIT there carries the own SEAL of the seal that names the round (R1).
            named.own.seal = own_seal
            if ended is not None:
                named.ended, ended.ended = ended, None

    def _sign_seal(self, kind: Kind, value: SealValue, attempt: int) -> Iterator[ev.RoundAction]:
        # Not the GRAMs: the result that they led to is on the disk, and they are large.
        proof = (m for m in self.view.ballots.messages() if m.slot.kind is not Kind.GRAM)
        yield ev.RecordProof(tuple(proof))
        body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
        yield from self._sign(kind, body, attempt=attempt, subject=value.before)

    def _adopt(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.RoundAction]:
        """A round is final, and is not the first one of the own branch: that is `_confirm`."""
        yield from self._fall_back(now_s)
        view, value = self.standing.base, certificate.value
        yield from self._late_seal(view, value)
        was_listed, before = view.is_listed_in(value), self.standing.final.value
        self._own_seal = view.own_seal_of(value)
        self.previous = view
        self.standing.adopt(
            certificate, lambda link: self._new_view(link, link.value, now_s, before=before)
        )
        self._go_on(certificate, self._own_seal, now_s, view)
        self.idlers.saw(view.seals.head.roster, value.roster, value.round)
        self.patience.sealed(value.roster.members)
        self._deadline.round_ended()
        self.view = self.standing.base
        for each in self.standing.under_way:
            each.suspect(self._suspects, self.convicted)
        self._left &= set(value.roster.members)
        self._forget_restart()
        yield ev.Adopt(certificate, was_listed, view.is_doubtful(value))
        yield from self._hear_early(view, now_s)

    def _confirm(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.RoundAction]:
        """The first round of the own branch is final, as it stands."""
        view, value = self.standing.base, certificate.value
        yield from self._late_seal(view, value)
        self.previous = view
        self.standing.confirm(certificate)
        self.view, self._own_seal = self.standing.base, view.own_seal_of(value)
        named = self.standing.on(value.digest)
        if named is not None and not named.own.commit:
            named.own.seal = self._own_seal
        self._forget_restart()
        self._agenda.disturb()
        found = [view.ballots.find(digest) for digest in value.commits]
        yield ev.Confirm(certificate, tuple(entry.message for entry in found if entry))

    def confirm(self, chain: list[SealCertificate], now_s: float) -> Iterator[ev.RoundAction]:
        """Final seals that others sent, verified: those that the own branch has are final here."""
        branch = self.standing.branch
        while chain and branch and chain[0].value.digest == branch[0].value.digest:
            yield from self._confirm(chain.pop(0), now_s)

    def _late_seal(self, view: RoundView, value: SealValue) -> Iterator[ev.RoundAction]:
        """A member that is shown a quorum of SEALs may add its own SEAL to their attempt, even if
        it has left that attempt: its next COMMIT must carry such a SEAL (R1, R2)."""
        sealed = view.ballots.sealed(view.seals.before)
        if sealed is None or view is not self.view or not view.is_member or self.is_muted:
            return
        if view.own_seal_of(value, (Kind.SEAL,)) or value.list_digest not in view.outcome.applied:
            return
        attempt = sealed[1][0].slot.attempt
        is_new = view.me not in view.ballots.of(Kind.SEAL, attempt, view.seals.before)
        if is_new and not self.config.rare("late-seal-unsigned"):
            yield from self._sign_seal(Kind.SEAL, value, attempt)

    def _advance(self, link: SealCertificate, now_s: float) -> Iterator[ev.RoundAction]:
        """A round is sealed provisionally: go on behind it, and keep what is final."""
        view, value = self.view, link.value
        attempt = decode_message(link.seals[0])[0].slot.attempt if link.seals else view.attempt
        own, slot = view.own_seal_of(value), (Kind.PSEAL, attempt, view.seals.before)
        may_sign = view.is_speaker and not self.is_muted and view.me not in view.ballots.of(*slot)
        if may_sign and not own:
            # It holds the result like all who sealed: its next COMMIT has to prove that.
            yield from self._sign_seal(Kind.PSEAL, value, attempt)
            own = view.own_seal_of(value)
        if not own:
            # Who follows others has to have the receipts when the round becomes final.
            found = [view.ballots.find(digest) for digest in value.commits]
            yield ev.RecordProof(tuple(entry.message for entry in found if entry))
        was_listed, final = view.is_listed_in(value), view.seals.final
        self.standing.advance(
            link, lambda one: self._new_view(one, final, now_s, before=view.seals.head)
        )
        shared = self.standing.shared
        if not any(view is one for one in shared):
            # They are not kept; those of rounds that final seals name are.
            view.cells.parts.clear()
        self._go_on(link, own, now_s, view)
        self.view = self.standing.top
        for each in self.standing.worked_for:
            each.suspect(self._suspects, self.convicted)
        kept = frozenset(commit.root for one in shared for _, _, commit in one.commits())
        yield ev.Advance(link, was_listed, kept, view.is_doubtful(value))
        yield from self._hear_early(view, now_s)

    def _fall_back(self, now_s: float) -> Iterator[ev.RoundAction]:
        """Give the own branch up; what is final stays."""
        standing = self.standing
        if standing.branch:
            lost = standing.head
            for view in standing.fall_back():
                if view.is_provisional:
                    view.elect_sealers(_NOBODY)
                    if view.times.opened_s is not None:
                        # PVOTEs of this attempt may be out: a VOTE is of a later one.
                        self._enter(view, view.attempt + 1, now_s)
            if standing.base.is_overlapped:
                self._left_uncommitted()
            self.view, self._agenda.beside = standing.base, standing.beside
            self._agenda.disturb()
            yield ev.FallBack(standing.final, lost)

    def _left_uncommitted(self) -> None:
        """Drop contributions to rounds that are under way again, if no COMMIT binds them: they were
        made on top of rounds whose outcome is open again, and the trainer gives new ones (R6)."""
        for view in self.standing.worked_for:
            if not view.own.commit:
                view.own.contribution = None

    def _hear_early(self, view: RoundView, now_s: float) -> Iterator[ev.RoundAction]:
        for entry in view.early.take():
            yield from self._hear(entry, now_s)

    def _forget_restart(self) -> None:
        """What was said before the restart matters while its rounds may come back."""
        restart = self._restart
        if restart is not None and all(
            message.slot.round <= self.head.round for message in restart.messages
        ):
            self._restart = None

    def _diverge(self, reason: str) -> Iterator[ev.RoundAction]:
        self.view.outcome.is_diverged = True
        yield ev.Resync(f"round {self.view.index} is sealed, but {reason}")

    # Sums that this node made --------------------------------------------------------------------

    def _reduced(self, event: ev.Reduced) -> Iterator[ev.RoundAction]:
        view = self.standing.about(event.list_digest)
        if view is None:
            return
        if ("reduce", event.list_digest, event.first, view.me) not in view.cells.requested:
            return  # The round went on while the slice was summed.
        digest, first, stop = event.list_digest, event.first, event.stop
        piece = next(p for p in view.slices if p.first == first)
        is_mute = self._silence.has_lost(view)
        take_own_sum(view, digest, piece, event.root, is_mute=is_mute)
        if is_mute:
            return
        subject = slice_subject(digest, first, stop)
        body = Agg(list_digest=digest, first=first, stop=stop, root=event.root)
        if view.me not in view.ballots.of(Kind.AGG, 0, subject):  # Signed before a restart.
            slot = view.slot(Kind.AGG, subject=subject)
            yield from self._publish(view, sign_message(self._signer, slot, body), body)
        yield from supply.push_results(view, digest, piece)

    def _measured(self, event: ev.Measured) -> Iterator[ev.RoundAction]:
        """R7: say the partial Gram matrix of a slice; with lost signatures it is kept to oneself,
        and a substitute says it (R12)."""
        view = self.standing.about(event.list_digest)
        digest, first, stop = event.list_digest, event.first, event.stop
        if view is None or ("measure", digest, first, view.me) not in view.cells.requested:
            return  # The round went on meanwhile.
        if view.config.everybody_sums:
            view.sums.grams[digest, first] = event.stats  # Nobody else asks for it.
        subject = slice_subject(digest, first, stop)
        is_said = view.config.everybody_sums or view.me in view.ballots.of(Kind.GRAM, 0, subject)
        if not (is_said or self._silence.has_lost(view)):
            body = Gram(list_digest=digest, first=first, stop=stop, stats=event.stats)
            slot = view.slot(Kind.GRAM, subject=subject)
            yield from self._publish(view, sign_message(self._signer, slot, body), body)

    # What the node asks for ----------------------------------------------------------------------

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
            actions, can_be_quiet = self._hear(BallotEntry(event.message, event.body), now_s), True
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
        while not (self.view.outcome.is_diverged or self.is_held):
            passes += 1
            assert passes < PASSES_MAX, "two rules undo what the other did"
            due = self._due(now_s)
            if not due:
                break
            actions += due
        opens_s = self.view.times.started_s + self.config.wait_seats_s
        holds_s = (self.courtesy.until_s, self.giving.until_s)
        others_s = (opens_s, *holds_s, self._reach.due_s, *self._due_beside(now_s))
        self._agenda.settle(self.view, self._deadline, others_s=others_s, now_s=now_s)
        if self.is_held:
            self._agenda.disturb()  # The rules were not asked.
        return actions

    def _due_beside(self, now_s: float) -> Iterator[float]:
        """When the rules are due for the round beside this one (R5)."""
        view = self._beside
        if view is not None:
            deadline_s = self._deadline.seconds(view.times.time_outs)
            yield from due_times(view, self._deadline)
            yield from supply.retry_times(view, deadline_s, now_s=now_s)
            if view.times.opened_s is not None:
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
        if is_elsewhere or (is_overlapped and self.view.seals.head.clock.ends_run):
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
        is_new = view.add_cells(event.bulk, event.subject, event.cells, now_s=now_s)
        if is_new and learn(view, self._deadline, now_s):
            self._agenda.disturb()
        self._settle_silence()

    def _take(self, event: ev.LocalRoundEvent, now_s: float) -> Iterator[ev.RoundAction]:
        match event:
            case ev.Contributed():
                self.standing.top.take_contribution(event)
                if self.standing.beside is not None:
                    self.standing.beside.take_contribution(event)
            case ev.Reduced():
                yield from self._reduced(event)
            case ev.Measured():
                yield from self._measured(event)
            case ev.Applied(list_digest=digest, root=root, base=base):
                view = self.standing.about(digest) or self.view
                if not (view.seals.is_beside or (base and base != view.seals.head.root)):
                    view.outcome.applied[digest] = root
            case ev.SeatChecked(peer=peer, basis=basis, is_proved=is_proved):
                self.proofs.checked(peer, self.standing.on(basis), is_proved)
                yield from self.proofs.next(self.standing.under_way)
            case ev.SuspicionsChanged(suspects=suspects):
                self._suspects = suspects
                for view in self.standing.under_way:
                    view.suspect(suspects, self.convicted)
            case ev.EvidenceHeld(evidence=evidence):
                self._convict(self.convicted | ({e.subject for e in evidence} - {self.view.me}))
            case ev.Woke():
                self._silence.woke()
            case ev.StatusHeard(peer=peer, round=round_index):
                self._silence.status(peer, round_index)
            case ev.StartNow():
                self.config = replace(self.config, wait_seats=0)
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
            is_final_elsewhere = self.is_behind or base.ballots.sealed(base.seals.before)
            if is_final_elsewhere or len(standing.branch) >= limits.BRANCH_ROUNDS_MAX:
                sealers = _NOBODY
        view = standing.top if sealers else standing.base
        view.outcome.bound = b"" if sealers else standing.bound
        view.outcome.is_meeting = self.is_meeting
        view.outcome.followed = standing.followed if sealers else b""
        is_toggled = bool(sealers) != view.is_provisional
        if view is not self.view or sealers != view.ballots.sealers:
            self.view = view
            view.elect_sealers(sealers)
            self._agenda.disturb()
        if is_toggled and _has_acted(view):
            self._enter(view, self._next_attempt(view), now_s)

    def _next_attempt(self, view: RoundView) -> int:
        """The next attempt; of a provisional round the next whose closer is in reach."""
        attempt = view.attempt + 1
        if view.is_provisional:
            span = range(attempt, attempt + len(view.seals.final.roster.seats))
            attempt = next((a for a in span if view.can_close(a)), attempt)
        return attempt

    def _commit(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2, R6: bind the contribution, once, and tell what this node saw."""
        yield from self.proofs.next(self.standing.under_way)
        for view in self._worked_in:
            mine = view.own.contribution
            is_mute = self._is_mute_in(view)
            if mine is None or view.own.commit or not view.is_member or is_mute:
                continue
            if self.holds_commit(view, now_s):
                continue
            if view.seals.is_beside:
                # Who asks for a seat shows the state that the round before it begins with.
                view.seats.proven |= self.view.seats.proven
            idle = self.idlers.unwelcome(view.index)
            seen = Seen(self._suspects, self._left, self._is_past_end, self.rates, idle)
            work = self.audits.work(view.index, mine.work) if self.audits else ()
            body = commit_body(view, mine, seen, work)
            signed = sign_message(self._signer, view.slot(Kind.COMMIT), body)
            view.own.commit = signed.digest
            view.arrivals.commit_s[view.me] = now_s
            view.cells.parts[signed.digest] = set(range(view.cells.num_cells))
            yield from self._publish(view, signed, body)

    def _supply(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R3: move bytes towards whoever sums them now, sum, and take the outer step."""
        for view in self._worked_in:
            yield from self._supply_in(view, now_s)

    def _supply_in(self, view: RoundView, now_s: float) -> Iterator[ev.RoundAction]:
        view.start_clock(now_s)  # R2: with a quorum of COMMITs.
        deadline_s = self._deadline.seconds(view.times.time_outs)
        self.patience.wait(view, now_s=now_s, deadline_s=deadline_s)
        certified = view.ballots.certified_lists()
        note_lists(view, now_s)
        yield from supply.push_parts(view)
        yield from supply.pull_parts(view, now_s=now_s, deadline_s=deadline_s)
        if not (certified or view.outcome.followed or view.ballots.sealed(view.seals.before)):
            return  # Nothing is summed yet.
        yield from supply.measure_slices(view)
        note_grams(view, now_s)
        yield from supply.reduce_slices(view)
        yield from supply.pull_results(view, now_s=now_s, deadline_s=deadline_s)
        if not view.seals.is_beside:
            # A root is over all fragments, so the step waits for that of the round before (R5).
            yield from supply.apply_results(view)

    def _agree(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: HAVE, LIST, VOTE and the report to a new closer, each once per slot."""
        for view in self._worked_in:
            # While no quorum is in reach, the round beside is bound, and no more (R4, R5).
            if not (view.seals.is_beside and self.view.is_provisional):
                yield from self._agree_in(view, now_s)

    def _agree_in(self, view: RoundView, now_s: float) -> Iterator[ev.RoundAction]:
        if self._is_mute_in(view) or view.outcome.followed:
            return
        if view.times.opened_s is not None and view.is_speaker:
            # Before the attempt is given up: who made it end without a seal is told of.
            deadline_s = self._deadline.seconds(max(view.times.time_outs, view.attempt))
            note_lapses(view, now_s=now_s, deadline_s=deadline_s)
        may_go_on = view.is_voter and view.attempt < limits.ATTEMPTS_MAX
        if may_go_on and is_given_up(view, self._deadline, now_s=now_s):
            view.times.time_outs += has_timed_out(view, self._deadline, now_s=now_s)
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
            if attempt < view.attempt or digest not in view.outcome.applied:
                continue
            if view.me in view.ballots.of(kind, attempt, view.seals.before):
                continue
            is_bound = (
                view.own.lock is not None
                and view.own.lock[1] != digest
                and view.own.lock[0] >= attempt
            )
            if is_bound and kind is Kind.SEAL:
                continue
            value = self._value(view, digest)
            if value is not None and not self.config.rare("seal-later"):
                if attempt > view.attempt:
                    self._enter(view, attempt, now_s)
                if kind is Kind.SEAL:
                    view.own.lock = (attempt, digest)
                yield from self._sign_seal(kind, value, attempt)

    def _final(self, now_s: float) -> Iterator[ev.RoundAction]:
        """R2: a quorum of SEALs of one attempt makes the round final."""
        view, branch = self.standing.base, self.standing.branch
        sealed = view.ballots.sealed(view.seals.before)
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
        psealed = view.ballots.psealed(view.seals.before)
        if view.outcome.followed:
            value = self._value(view, view.outcome.followed)
            link = standing.ahead[0]
        elif psealed is not None:
            value = self._value(view, psealed[0].list_digest)
            link = certify(value, psealed[1]) if value is not None else standing.head
        else:
            return
        if value is None or not (view.outcome.followed or self._leads_on(value)):
            return  # It names nobody in reach (R4): the next attempt makes a seal that does.
        expected = link.value.digest if view.outcome.followed else psealed and psealed[0].value
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
    """Whether something may have been signed that says whether this attempt is provisional or not:
    then the round may change its kind only with a new attempt (R4)."""
    if view.times.opened_s is not None or view.attempt > 0:
        return True
    kinds = (Kind.VOTE, Kind.PVOTE, Kind.SEAL, Kind.PSEAL)
    return any(view.ballots.attempts(kind) for kind in kinds)
