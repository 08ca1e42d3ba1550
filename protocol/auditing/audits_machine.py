"""Audits (R10): whose work this node runs again, what it says of it, and what the words of all come
to. Pure.

    seal r + 1 --> beacon of r --> tasks --> states asked for --> Rerun --> VERDICT, if wrong
    anybody's VERDICT against work --> a task of every voter of its class --> words --> evidence

A word against work is nothing by itself: b + 1 voters who found the same are, for one of them is
honest (`protocol.rounds.reducers`). Time is counted in seals, so that a swarm that stands still
accuses nobody. Rounds that were sealed before this process began are not judged here: what was said
of them is not in the journal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from protocol import events as ev
from protocol import limits
from protocol.auditing.audit_rounds import (
    AuditedRound,
    Drawn,
    Onion,
    Rounds,
    drawn,
    is_accused,
    may_see,
    shown_segments,
)
from protocol.errors import ProofError
from protocol.evidence import (
    may_be_accused,
    two_messages_evidence,
    two_retracts_evidence,
    words_needed,
    wrong_verdict_evidence,
    wrong_work_evidence,
)
from protocol.frames import Bulk
from protocol.grid import EMPTY_ROOT
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import (
    Body,
    Commit,
    Kind,
    Outcome,
    Retract,
    SealValue,
    SignedMessage,
    Verdict,
    Work,
    segment_subject,
    sign_message,
)
from protocol.rounds.round_config import RoundConfig
from protocol.rounds.round_view import RoundView
from protocol.rounds.seating import answerable
from protocol.rounds.signals import Signals
from protocol.segments import STATE, WorkKind, encoded_end, trained_end

Key = tuple[bytes, int]
"""A COMMIT and one segment of the work behind it."""

# Audit words --------------------------------------------------------------------------------------
#
# What the words of voters on audited work come to (R10).

REFUTED_MAX, REFUTED_ROUNDS = 3, 20
"""Who said of the work of so many peers that it could not be opened, and b + 1 voters opened it, in
so many rounds, loses its seat: it makes others work for nothing, or has no line. Of more than may
lie at least: else liars, who show their work to all others, would take any seat they like."""

SHUT_ROUNDS = 64
"""So long nobody names a peer for a seat whose work could not be opened."""

"""COMMIT digest and segment."""


class Judge:
    """Counts words, and keeps what followed from them."""

    def __init__(self, me: PeerId, *, without: frozenset[str]) -> None:
        self._me, self._without = me, without
        self.accused: set[PeerId] = set()
        """Against whom there is evidence, or would be if it could travel."""
        self.shunned: frozenset[PeerId] = frozenset()
        """Who is suspected for not opening its work, until it has no seat any more."""
        self._shut: dict[PeerId, int] = {}
        """Who lost its seat for that, and in which round."""
        self._refuted: dict[PeerId, dict[PeerId, int]] = {}
        """Whose work each could not open though others could, and in which round last."""
        self._retracts: dict[PeerId, SignedMessage] = {}

    def retracted(self, message: SignedMessage) -> Iterator[ev.RoundAction]:
        """Somebody takes back what it contributed: that costs the seat, and twice is a ban."""
        peer, before = message.sender, self._retracts.get(message.sender)
        self._retracts[peer] = message
        self.shunned |= {peer} - {self._me}
        if before is None or peer in self.accused or "bans" in self._without:
            return
        if 0 < abs(message.slot.round - before.slot.round) <= limits.RETRACT_ROUNDS:
            self.accused.add(peer)
            yield ev.Accuse(two_retracts_evidence(before, message))

    def is_contradiction(self, said: SignedMessage, message: SignedMessage) -> bool:
        """Whether a second word on a segment is another one, in the same slot, of somebody who is
        not accused yet."""
        is_other = said.digest != message.digest and said.slot == message.slot
        return is_other and message.sender not in self.accused

    def contradicted(self, said: SignedMessage, message: SignedMessage) -> Iterator[ev.RoundAction]:
        """Two words in one slot, both signed: some were to be told one thing, some another."""
        if "bans" not in self._without:
            self.accused.add(message.sender)
            yield ev.Accuse(two_messages_evidence(said, message))

    def sealed(
        self, value: SealValue, strayed: frozenset[PeerId], convicted: frozenset[PeerId]
    ) -> None:
        """A round is final; these peeled a wrong layer in it."""
        self.accused |= convicted
        shunned = (self.shunned | strayed) - {self._me}
        self.shunned = shunned & value.roster.member_set
        self._shut |= dict.fromkeys(sorted(shunned - self.shunned), value.round)
        self._shut = {p: r for p, r in self._shut.items() if r > value.round - SHUT_ROUNDS}
        oldest = value.round - REFUTED_ROUNDS
        refuted = {
            peer: {other: index for other, index in others.items() if index > oldest}
            for peer, others in self._refuted.items()
        }
        self._refuted = {peer: others for peer, others in refuted.items() if others}

    def is_shut(self, peer: PeerId) -> bool:
        """Whether a peer gets no seat now."""
        return peer in self._shut

    def judge(self, on: AuditedRound, key: Key) -> Iterator[ev.RoundAction]:
        """What follows from equal words of so many voters that one of them is honest."""
        if key[0] in on.retracted:
            return
        words, (commit, _) = on.words[key], on.commits[key[0]]
        needed = words_needed(len(on.named.roster.voters))
        groups: dict[Verdict, list[PeerId]] = {}
        for peer, (_, verdict) in sorted(words.items()):
            groups.setdefault(verdict, []).append(peer)
        for verdict, peers in groups.items():
            if len(peers) < needed:
                continue
            others = tuple(words[peer][0] for peer in peers[:needed])
            if verdict.outcome is Outcome.WRONG:
                yield from self._convict(on, commit.sender, verdict, others, commit)
            elif verdict.outcome is Outcome.UNOPENED:
                self.shunned |= {commit.sender} - {self._me}
            else:
                yield from self._refute(on, key, verdict, others)

    def _refute(
        self, on: AuditedRound, key: Key, verdict: Verdict, others: tuple[SignedMessage, ...]
    ) -> Iterator[ev.RoundAction]:
        """The work is right: who said otherwise lied, and who could not open it had a bad line, or
        was not shown it."""
        owner, _ = on.commits[key[0]]
        most = max(REFUTED_MAX, words_needed(len(on.named.roster.voters)))
        for peer, (said, other) in sorted(on.words[key].items()):
            if other.outcome is Outcome.WRONG:
                yield from self._convict(on, peer, verdict, others, said)
            elif other.outcome is Outcome.UNOPENED:
                unopened = self._refuted.setdefault(peer, {})
                unopened[owner.sender] = on.round
                if len(unopened) >= most:
                    self.shunned |= {peer} - {self._me}

    def _convict(
        self,
        on: AuditedRound,
        peer: PeerId,
        verdict: Verdict,
        others: tuple[SignedMessage, ...],
        said: SignedMessage,
    ) -> Iterator[ev.RoundAction]:
        is_known = peer in self.accused or peer == self._me or "bans" in self._without
        if is_known or not may_be_accused(on.named, peer):
            return
        is_work = verdict.outcome is Outcome.WRONG
        make = wrong_work_evidence if is_work else wrong_verdict_evidence
        self.accused.add(peer)
        try:
            yield ev.Accuse(make(on.named, said, verdict, others))
        except ProofError:
            self.shunned |= {peer}  # Too large to travel: then it costs the seat.
        yield ev.Fault(peer, "wrong work" if is_work else "a wrong VERDICT")


# Audits machine -----------------------------------------------------------------------------------

AUDIT_KINDS = frozenset({Kind.VERDICT, Kind.RETRACT})
"""Messages about rounds that are sealed already."""

OPENS_WITHIN = 2
"""Seals until work that nobody served counts as unopened."""

"""COMMIT digest and segment."""


def end_of(commit: Commit, segment: int) -> bytes:
    """What names the end of a segment, by what its COMMIT says; the last one is the encoding."""
    work = commit.work[0]
    if segment + 2 < len(work.trace):
        return work.trace[segment + 1]
    if segment + 2 == len(work.trace):
        return trained_end(work.trace[-1], work.after)
    return encoded_end(commit.root, commit.residual_after)


@dataclass(slots=True)
class _Task:
    """Work to be run again; `since` is the seal at which it was asked for first."""

    round: int
    since: int
    needs: dict[bytes, WorkKind]
    is_running: bool = False
    is_over: bool = False
    found: bytes = b""
    is_told: bool = True
    """Else what was found is said with the next seal: so long its owner may take it back."""
    sources: dict[PeerId, None] = field(default_factory=dict)


class Audits:
    """One node's audits over one shard."""

    def __init__(
        self, manifest: RunManifest, config: RoundConfig, signer: Signer, head: SealValue
    ) -> None:
        self._law, self._admission = manifest.audits, manifest.admission
        self._config, self._signer = config, signer
        self._me = signer.peer_id
        self.is_on = manifest.audits.rate > 0.0
        self.device = config.device
        """Its class: what its trainer says, once that is up."""
        self._layout = layout = manifest.layout(0)
        self._samples_each = config.clock.samples_each
        self._onion = Onion(signer, manifest.digest) if self.is_on else None
        self._rounds = Rounds(head, layout.num_fragments)
        self._signals = Signals()
        self._tasks: dict[Key, _Task] = {}
        self._held: dict[bytes, set[int]] = {}
        self._judge = Judge(signer.peer_id, without=config.without)

    # What others may ask ------------------------------------------------------------------------

    @property
    def shunned(self) -> frozenset[PeerId]:
        """Who is suspected, until it has no seat any more: its work could not be opened."""
        return self._judge.shunned

    def is_shut(self, peer: PeerId) -> bool:
        """Whether a peer gets no seat now, for its work could not be opened."""
        return self._judge.is_shut(peer)

    def work(self, round_index: int, done: ev.WorkDone | None) -> tuple[Work, ...]:
        """What the own COMMIT of that round says of the work behind it."""
        if self._onion is None:
            return ()
        assert done is not None, "a run with audits, and a trainer that keeps no trace"
        return (
            Work(
                onion=self._onion.layer(round_index),
                device=self.device,
                trace=done.trace,
                before=done.before,
                after=done.after,
            ),
        )

    def kinds(self, subject: bytes) -> frozenset[WorkKind]:
        """What a subject that is asked for is; nothing of another one. Two where a liar gives a
        residual of somebody else's as its state: the cells say which."""
        tasks = (task for task in self._tasks.values() if not task.is_over)
        return frozenset(task.needs[subject] for task in tasks if subject in task.needs)

    def may_open(self, peer: PeerId, subject: bytes) -> bool:
        """Whether a peer may be shown that state or residual now: see
        `protocol.auditing.audit_rounds`."""
        return self.is_on and may_see(self._rounds, self._law, self._me, peer, subject)

    @property
    def shown_segments(self) -> dict[int, frozenset[int]]:
        """By round the segments of own work that somebody may be shown yet: see
        `protocol.auditing.audit_rounds`."""
        return shown_segments(self._rounds, self._law, self._me)

    @property
    def classes(self) -> dict[PeerId, str]:
        """The device class of everybody whom the last seal lists; none without audits."""
        if (newest := self._rounds.newest) is None:
            return {}
        return {m.sender: newest.class_of(m.sender) for m, _ in newest.listed()}

    @property
    def answerable(self) -> frozenset[PeerId]:
        """Those of them whom audits of their training may convict: see
        `protocol.rounds.seating`."""
        if (newest := self._rounds.newest) is None:
            return frozenset()
        return answerable(newest.named.roster, list(self.classes.items()))

    @property
    def subjects(self) -> frozenset[bytes]:
        """All states and residuals that may still be needed here."""
        return frozenset(subject for task in self._tasks.values() for subject in task.needs)

    # Events -------------------------------------------------------------------------------------

    def sealed(
        self, view: RoundView, value: SealValue, convicted: frozenset[PeerId]
    ) -> Iterator[ev.RoundAction]:
        """A round is final: the one before it can be audited now."""
        if not self.is_on:
            return
        before = self._rounds.newest
        fresh, strayed = self._rounds.sealed(view, value)
        self._judge.sealed(value, strayed, convicted)
        if fresh is None:
            self._tasks.clear()
            return
        self._signals.saw(value.round, [(m.sender, c) for m, c in fresh.listed()])
        if before is not None and before.round == value.round - 1:
            yield from self._draw(before, fresh)
        yield from self._go_on(value.round)

    def _draw(self, before: AuditedRound, fresh: AuditedRound) -> Iterator[ev.RoundAction]:
        barred = frozenset(self._judge.accused | self.shunned)
        suspected = frozenset(
            m.sender
            for m, _ in before.listed()
            if (against := self._signals.of(m.sender)) is not None and against.score
        )
        draw = Drawn(self._law, self._admission, suspected=suspected, barred=barred)
        for key in drawn(draw, before, fresh.beacon, self._me):
            yield from self._open(key, before, fresh.round)
        for key in list(before.words):
            yield from self._dispute(before, key)

    def takes(self, message: SignedMessage, body: Body) -> bool:
        """Whether a message, its signature aside, is news about a round that is judged here."""
        on = self._rounds.of(message.slot)
        if on is None or not self.is_on:
            return False
        if isinstance(body, Retract):
            found = on.commits.get(body.commit)
            is_own = found is not None and found[0].sender == message.sender
            return is_own and body.commit not in on.retracted
        if not isinstance(body, Verdict):
            return False
        if (said := on.said(message.sender, body)) is not None:
            return self._judge.is_contradiction(said, message)
        return self._fits(on, message.sender, body) and on.has_room(message.sender)

    def _fits(self, on: AuditedRound, sender: PeerId, body: Verdict) -> bool:
        found = on.commits.get(body.commit)
        if found is None or body.segment > self._law.segments:
            return False
        message, commit = found
        is_end = body.found == end_of(commit, body.segment)
        is_sound = body.outcome is Outcome.UNOPENED or is_end == (body.outcome is Outcome.RIGHT)
        return is_sound and sender in on.named.roster.voter_set and sender != message.sender

    def heard(self, message: SignedMessage, body: Body) -> Iterator[ev.RoundAction]:
        """Take in what `takes` let pass and its sender signed."""
        on = self._rounds.of(message.slot)
        assert on is not None
        if isinstance(body, Retract):
            on.retracted.add(body.commit)
            yield from self._judge.retracted(message)
            return
        assert isinstance(body, Verdict)
        if (said := on.said(message.sender, body)) is not None:
            yield from self._judge.contradicted(said, message)
            return
        key = (body.commit, body.segment)
        on.words.setdefault(key, {})[message.sender] = (message, body)
        yield from self._judge.judge(on, key)
        if body.outcome is not Outcome.RIGHT:
            yield from self._dispute(on, key)

    def cells_came(self, subject: bytes, cells: tuple[int, ...]) -> Iterator[ev.RoundAction]:
        """Cells of work that were asked for are here, and verified."""
        if not self.kinds(subject):
            return
        self._held.setdefault(subject, set()).update(cells)
        for key, task in list(self._tasks.items()):
            if subject in task.needs:
                yield from self._run(key, task)

    def reran(self, event: ev.Reran) -> Iterator[ev.RoundAction]:
        """A segment was run again. Work that seems wrong is run twice before anybody hears of it:
        memory errs, too."""
        key = (event.commit_digest, event.segment)
        task = self._tasks.get(key)
        if task is None or task.is_over:
            return
        on = self._rounds.at(task.round)
        task.is_running = False
        task.is_over = on is None or not event.found
        if on is None:
            return
        message, commit = on.commits[event.commit_digest]
        is_right = event.found == end_of(commit, event.segment)
        if message.sender == self._me:
            task.is_over = True
            if not is_right:
                yield from self._retract(on, message)
            return
        if task.is_over:
            return
        if not is_right and task.found != event.found:
            task.found = event.found
            yield from self._run(key, task)
            return
        task.is_over, task.found = True, event.found
        if key in on.words:
            yield from self._tell(on, key, task)
        elif not is_right:
            yield from self._say(on, key, Outcome.WRONG, event.found)

    def _tell(self, on: AuditedRound, key: Key, task: _Task) -> Iterator[ev.RoundAction]:
        """What was found, now that somebody has said that it is wrong; that it is, a seal later."""
        if task.found == end_of(on.commits[key[0]][1], key[1]):
            yield from self._say(on, key, Outcome.RIGHT, task.found)
        else:
            task.is_told = False

    def _retract(self, on: AuditedRound, commit: SignedMessage) -> Iterator[ev.RoundAction]:
        """Take back what one's own machine finds wrong, or cannot show; not twice in a while. Who
        does not know what it signed before this process began does not at all."""
        if "retract" in self._config.without or not self._rounds.may_retract(on.round):
            return
        self._rounds.retracted = on.round
        body = Retract(commit=commit.digest)
        message = sign_message(self._signer, replace(commit.slot, kind=Kind.RETRACT), body)
        yield ev.Broadcast(message)
        yield from self.heard(message, body)

    # Tasks --------------------------------------------------------------------------------------

    def _open(self, key: Key, on: AuditedRound, now: int) -> Iterator[ev.RoundAction]:
        if key not in self._tasks:
            message, commit = on.commits[key[0]]
            self._tasks[key] = _Task(on.round, now, self._needs(commit, key[1], on.round))
            self._tasks[key].sources[message.sender] = None
            yield from self._ask(key, self._tasks[key])

    def _needs(self, commit: Commit, segment: int, round_index: int) -> dict[bytes, WorkKind]:
        """The subjects that a segment begins with, and what each is."""
        work, fragment = commit.work[0], self._layout.fragment_of(round_index)
        if segment < self._law.segments:
            return {work.trace[segment]: STATE}
        needs = {work.trace[segment]: WorkKind("weights", fragment)}
        if commit.residual_before != EMPTY_ROOT:
            needs[commit.residual_before] = WorkKind("residual", fragment)
        return needs

    def _lacking(self, subject: bytes, kind: WorkKind) -> list[int]:
        held = self._held.get(subject, set())
        return sorted(set(kind.cells(self._layout, self._config.moments)) - held)

    def _ask(self, key: Key, task: _Task) -> Iterator[ev.RoundAction]:
        """Ask whoever may have it for what is not here."""
        missing = False
        for subject, kind in task.needs.items():
            cells = self._lacking(subject, kind)
            missing |= bool(cells)
            for source in task.sources:
                for first in range(0, len(cells), limits.WANT_CELLS_MAX):
                    asked = tuple(cells[first : first + limits.WANT_CELLS_MAX])
                    yield ev.Pull(source, Bulk.WORK, subject, asked)
        if not missing:
            yield from self._run(key, task)

    def _run(self, key: Key, task: _Task) -> Iterator[ev.RoundAction]:
        """Once all is here that it begins with."""
        on = self._rounds.at(task.round)
        is_whole = not any(self._lacking(*need) for need in task.needs.items())
        if on is None or task.is_over or task.is_running or not is_whole:
            return
        task.is_running = True
        message, commit = on.commits[key[0]]
        yield ev.Rerun(
            commit_digest=key[0],
            sender=message.sender,
            commit=commit,
            round=task.round,
            segment=key[1],
            lease=on.lease_of(message.sender, self._samples_each),
            inherited=on.inherited[message.sender],
            since=on.since.get(message.sender, 0),
            step=on.named.clock.step,
        )

    def _go_on(self, now: int) -> Iterator[ev.RoundAction]:
        """With each seal: ask again for what is late, give up what is too late, forget the old."""
        for key, task in list(self._tasks.items()):
            on = self._rounds.at(task.round)
            if on is None:
                del self._tasks[key]
            elif not task.is_told:
                task.is_told = True
                yield from self._say(on, key, Outcome.WRONG, task.found)
            elif not (task.is_over or task.is_running):
                if now >= task.since + OPENS_WITHIN:
                    task.is_over = True
                    yield from self._say(on, key, Outcome.UNOPENED, b"")
                elif now > task.since:
                    yield from self._ask(key, task)
        kept = self.subjects
        self._held = {subject: cells for subject, cells in self._held.items() if subject in kept}

    def _dispute(self, on: AuditedRound, key: Key) -> Iterator[ev.RoundAction]:
        """Somebody says that work is wrong: whoever may know runs that segment, and says so."""
        if not is_accused(self._rounds, self._law, on, key):
            return
        message, commit = on.commits[key[0]]
        is_of_class = key[1] == self._law.segments or commit.work[0].device == self.device
        if message.sender == self._me and key not in self._tasks:
            self._tasks[key] = _Task(on.round, on.round, {})  # All is here, or lost.
            yield from self._run(key, self._tasks[key])
        if message.sender == self._me or self._me in on.words[key] or not is_of_class:
            return
        if self._me not in on.named.roster.voter_set or message.sender in self._judge.accused:
            return
        task = self._tasks.get(key)
        if task is not None and task.is_over and task.found:
            yield from self._tell(on, key, task)
            return
        newest = self._rounds.newest
        assert newest is not None
        yield from self._open(key, on, newest.round)
        task = self._tasks[key]
        fresh = [p for p, (_, v) in on.words[key].items() if v.outcome is not Outcome.UNOPENED]
        if not task.is_over and not task.sources.keys() >= set(fresh):
            task.sources |= dict.fromkeys(fresh)
            yield from self._ask(key, task)

    # Words --------------------------------------------------------------------------------------

    def _say(
        self, on: AuditedRound, key: Key, outcome: Outcome, found: bytes
    ) -> Iterator[ev.RoundAction]:
        commit, _ = on.commits[key[0]]
        barred = {self._me} | self._judge.accused
        may_speak = self._me in on.named.roster.voter_set and commit.sender not in barred
        if not may_speak or self._me in on.words.get(key, {}) or key[0] in on.retracted:
            return
        body = Verdict(commit=key[0], segment=key[1], outcome=outcome, found=found)
        slot = replace(commit.slot, kind=Kind.VERDICT, subject=segment_subject(*key))
        message = sign_message(self._signer, slot, body)
        yield ev.Broadcast(message)
        yield from self.heard(message, body)
