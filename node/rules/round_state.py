"""What a RoundMachine holds, files and signs; the rules over it are in `node.round`."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from node import events as ev
from node.rules.accusing import JUDGED, wrong_sums
from node.rules.admission import (
    attempt_shown,
    breach,
    concerns,
    is_attended,
    is_for_us,
    may_sit_next,
)
from node.rules.agenda import Agenda
from node.rules.agreement import waits_for_seats
from node.rules.ballots import Entry
from node.rules.chain import seal_value
from node.rules.courtesy import Courtesy
from node.rules.deadlines import LearnedDeadline
from node.rules.idlers import Idlers
from node.rules.proofs import Proofs
from node.rules.rates import Rates
from node.rules.reach import Reach
from node.rules.reducers import slices
from node.rules.restart import Restart, refill
from node.rules.round_view import RoundConfig, RoundView
from node.rules.silence import Silence
from node.rules.standing import Standing
from protocol import limits
from protocol.evidence import Evidence, two_messages_evidence
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Agg,
    Body,
    Gram,
    Kind,
    SealCertificate,
    SealValue,
    Seat,
    SignedMessage,
    Slot,
    sign_message,
)

if TYPE_CHECKING:
    from node.rules.auditing import Audits

OVERDUE_AFTER = 0.75
"""In least deadlines from when the round was opened here: behind it a COMMIT may come too late for
somebody's HAVE, whose clock of the round began earlier."""


class RoundState:
    """The rounds that a node knows, and what it said in them.

    `view` is the round it works in: the one that is final next, or provisionally the one behind
    its head (R4). `previous` is the round before the last final seal.
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
        self.audits: Audits | None = None
        """What says of work behind COMMITs, where a whole node is run."""
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

    def meets(self, *, is_behind: bool, is_meeting: bool) -> None:
        """Whether somebody in reach has a later final seal, or a branch that is not known yet."""
        if (is_behind, is_meeting) != (self.is_behind, self.is_meeting):
            self.is_behind, self.is_meeting = is_behind, is_meeting
            self._agenda.disturb()

    def wakeup_s(self) -> float:
        """The monotonic time at which a Tick is due, if no event comes before."""
        return self._agenda.wakeup_s

    def holds_commit(self, view: RoundView, now_s: float) -> bool:
        """Whether the own COMMIT, which is ready, is held for joiners: the first one of a founder
        that waits for them, or one of a short round (R11)."""
        if waits_for_seats(view, self.config, now_s):
            return True
        return self.courtesy.holds(view, self._deadline.seconds(), now_s)

    def ended_on(self, basis: bytes) -> RoundView | None:
        """A round that is sealed, of which what comes late is still told (R1)."""
        for view in self.standing.under_way:
            if view.ended is not None and view.ended.basis == basis:
                return view.ended
        return None

    # Filing -------------------------------------------------------------------------------------

    def hear_late(self, view: RoundView, entry: Entry) -> list[ev.RoundAction]:
        """A COMMIT or SEAL of a round that is sealed: it shows that its sender is there (R1)."""
        message = entry.message
        if not concerns(view, entry):
            return []
        if wrong := breach(view, entry, self.config.clock):
            return [ev.Fault(message.sender, wrong)]
        if view.ballots.add(entry) == "conflict":
            return self._contradicted(view, message)
        return []

    def _hear(self, entry: Entry, now_s: float) -> list[ev.RoundAction]:
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
        elif slot.kind is Kind.LEAVE:
            self._left.add(message.sender)
        if (shown := attempt_shown(view, entry)) > view.attempt:
            self._enter(view, shown, now_s)
            self._agenda.disturb()
        elif view.entered_s == math.inf and is_attended(view):
            view.entered_s = now_s
            self._agenda.disturb()
        elif (view is not self.view and not view.is_beside) or is_for_us(view, entry):
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
            view.committed_s = now_s
        least_s = OVERDUE_AFTER * self.config.deadline_floor_s
        if view.opened_s is not None and now_s >= view.opened_s + least_s:
            view.overdue.add(sender)

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

    def _keep_early(self, entry: Entry) -> bool:
        """What may be of a round whose seal is not here yet; whether it can be filed only then.

        So is a SEAL of the round beside this one (R5): whoever signed it has the seal before it.
        Where there are branches it is filed: that seal may be another one than the next here.
        """
        slot, lag = entry.message.slot, self.config.clock.lag
        on = self.standing.on(slot.basis)
        is_sealed = on is not None and on.is_beside and slot.kind is Kind.SEAL
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

        There is a last one, to which liars may lead: in that it stays.
        """
        view.attempt = min(attempt, limits.ATTEMPTS_MAX)
        view.entered_s = now_s if is_attended(view) else math.inf
        if view.opened_s is None:
            view.opened_s = now_s

    def _settle_silence(self) -> None:
        self._silence.settle(self.view, self.standing.base, self.doubted)

    # Helpers ------------------------------------------------------------------------------------

    def _value(self, view: RoundView, digest: bytes) -> SealValue | None:
        """What the seal of a LIST says, once its result is applied."""
        known = view.values
        if digest not in known or known[digest].root != view.applied.get(digest):
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
        """The round behind `head`; `before` is the seal before that, of genesis genesis. None: the
        round behind that one, beside it (R5)."""
        derived = self.config.derived
        view = RoundView(
            me=self._signer.peer_id,
            head=head.value,
            num_cells=self.config.num_cells(head.value.round + 1 + (before is None)),
            trust=self.config.trust,
            started_s=now_s,
            suspects=self._suspects,
            convicted=self.convicted,
            final=final,
            named_by=before if self.config.clock.lag > 1 else None,
            is_beside=before is None,
            may_branch=self.config.may_branch,
            draw=self.config.rare,
            uses_gram=self.config.uses_gram,
            everybody_sums=self.config.everybody_sums,
            without=self.config.without,
            relayed_s=self.config.relayed_s,
            admission=self.config.clock.admission,
            audits=self.config.audits,
            cut=slices if derived is None else derived.slices,
        )
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
                head, standing.base.final, now_s, before=None
            )
            standing.beside.own_seal = own_seal
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
        filed = view.ballots.add(Entry(message, body), is_own=True)
        # A slot filled twice would convict this node; the rules ask before they sign.
        assert filed == "new", f"{message.slot.kind.name} signed twice in one slot ({filed})"
        yield ev.RecordSlot(message)
        yield ev.Broadcast(message)
        yield from self._compared(view, message.slot)
