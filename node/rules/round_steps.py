"""How a RoundMachine gets from seal to seal: final ones, provisional ones, and back (R2, R4)."""

from collections.abc import Iterator
from functools import partial

from node import events as ev
from node.rules.ballots import Entry
from node.rules.restart import Restart, own_seal, recall_results
from node.rules.round_state import RoundState
from node.rules.round_view import RoundView
from protocol.identity import PeerId
from protocol.messages import Kind, Seal, SealCertificate, SealValue, decode_message

_NOBODY: frozenset[PeerId] = frozenset()


class RoundSteps(RoundState):
    """See RoundState; these are the steps that the rules take."""

    def reset(
        self,
        head: SealCertificate,
        *,
        now_s: float,
        before: SealValue | None = None,
        results: frozenset[bytes] = frozenset(),
    ) -> None:
        """Go on from a state that was synchronised; forgets the round under way.

        `before` is the seal before it, which nobody asks for with one round in flight (R5).
        `results` names the LISTs whose results are in the store nevertheless.
        """
        self.standing.fall_back()
        self._own_seal = b""
        self.standing.adopt(
            head,
            lambda link: self._new_view(link, link.value, now_s, before=before or link.value),
        )
        if self.standing.base.is_beside:
            self.standing.base.empties()
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
                previous.ballots.add(Entry(*decode_message(data)))
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
        self.standing.base.own_seal = own_seal(restart, self.standing.base.named, me)
        self._own_seal = own_seal(restart, final, me)
        if self.standing.beside is not None:
            self.standing.beside.own_seal = self._own_seal
        for link in restart.branch:
            before = self.standing.top
            before.applied[link.value.list_digest] = link.value.root
            self.standing.advance(
                link, partial(self._new_view, final=before.final, now_s=now_s, before=before.head)
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
        if self.standing.top.is_beside:
            self.standing.top.stands(link.value, now_s)
        self._open_beside(now_s, own_seal)
        named = self.standing.on(link.value.digest)
        if named is not None:
            # The next COMMIT there carries the own SEAL of the seal that names the round (R1).
            named.own_seal = own_seal
            if ended is not None:
                named.ended, ended.ended = ended, None

    def _sign_seal(self, kind: Kind, value: SealValue, attempt: int) -> Iterator[ev.RoundAction]:
        # Not the GRAMs: the result that they led to is on the disk, and they are large.
        proof = (m for m in self.view.ballots.messages() if m.slot.kind is not Kind.GRAM)
        yield ev.RecordProof(tuple(proof))
        body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
        yield from self._sign(kind, body, attempt=attempt, subject=value.before)

    def _adopt(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.RoundAction]:
        """A round is final, and it is not the one of the own branch, if there is one."""
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
        self.idlers.saw(view.head.roster, value.roster, value.round)
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
        if named is not None and not named.own_commit:
            named.own_seal = self._own_seal
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
        """Shown a quorum of SEALs, a member may add its own of that attempt, even of one it has
        left: its next COMMIT must carry it (R1, R2)."""
        sealed = view.ballots.sealed(view.before)
        if sealed is None or view is not self.view or not view.is_member or self.is_muted:
            return
        if view.own_seal_of(value, (Kind.SEAL,)) or value.list_digest not in view.applied:
            return
        attempt = sealed[1][0].slot.attempt
        is_new = view.me not in view.ballots.of(Kind.SEAL, attempt, view.before)
        if is_new and not self.config.rare("late-seal-unsigned"):
            yield from self._sign_seal(Kind.SEAL, value, attempt)

    def _advance(self, link: SealCertificate, now_s: float) -> Iterator[ev.RoundAction]:
        """A round is sealed provisionally: go on behind it, and keep what is final."""
        view, value = self.view, link.value
        attempt = decode_message(link.seals[0])[0].slot.attempt if link.seals else view.attempt
        own, slot = view.own_seal_of(value), (Kind.PSEAL, attempt, view.before)
        may_sign = view.is_speaker and not self.is_muted and view.me not in view.ballots.of(*slot)
        if may_sign and not own:
            # It holds the result like all who sealed: its next COMMIT has to prove that.
            yield from self._sign_seal(Kind.PSEAL, value, attempt)
            own = view.own_seal_of(value)
        if not own:
            # Who follows others has to have the receipts when the round becomes final.
            found = [view.ballots.find(digest) for digest in value.commits]
            yield ev.RecordProof(tuple(entry.message for entry in found if entry))
        was_listed, final = view.is_listed_in(value), view.final
        self.standing.advance(link, lambda one: self._new_view(one, final, now_s, before=view.head))
        shared = self.standing.shared
        if not any(view is one for one in shared):
            view.parts.clear()  # They are not kept; those of rounds that final seals name are.
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
                    view.elect(_NOBODY)
                    if view.opened_s is not None:
                        # PVOTEs of this attempt may be out: a VOTE is of a later one.
                        self._enter(view, view.attempt + 1, now_s)
            if standing.base.is_overlapped:
                self._left_uncommitted()
            self.view, self._agenda.beside = standing.base, standing.beside
            self._agenda.disturb()
            yield ev.FallBack(standing.final, lost)

    def _left_uncommitted(self) -> None:
        """What the trainer gave for rounds that are under way again, and no COMMIT binds, was made
        behind others whose outcome is open again: it gives something else (R6)."""
        for view in self.standing.worked_for:
            if not view.own_commit:
                view.contribution = None

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
        self.view.is_diverged = True
        yield ev.Resync(f"round {self.view.index} is sealed, but {reason}")
