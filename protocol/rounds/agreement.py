"""What a member has to say in the attempt it works in (R2): HAVE, HOLD, LIST, VOTE, NEWATTEMPT.

Pure functions of a RoundView; the machine signs what they return, once per slot. They are not asked
while the node must not sign (`RoundMachine.is_muted`: after a sleep R3, after a restart R12).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf

from protocol import limits
from protocol.events import Contributed
from protocol.identity import PeerId
from protocol.messages import Body, Commit, Have, Kind, List, Vote, Work
from protocol.rounds.lapses import (
    HAVE_LAPSES_AFTER,
    LIST_LAPSES_AFTER,
    LearnedDeadline,
    list_late_s,
    owed,
)
from protocol.rounds.proposal import (
    LIST_AFTER,
    SECOND_CALL_AFTER,
    SECOND_HAVE_AFTER,
    SECOND_LIST_AFTER,
    complete_senders,
    held_runs,
    holds_all_expected,
    is_hopeless,
    leaves_out,
    lock_report,
    propose,
    short_senders,
    waits_for_second_call,
)
from protocol.rounds.reducers import Rates, Slice, pack_senders
from protocol.rounds.round_view import RoundConfig, RoundView
from protocol.rounds.seating import in_turn
from protocol.rounds.supply import has_lost_parts

TIME_OUT_AFTER = 3.0
"""An attempt is given up after this many deadlines without progress: HAVE takes one, LIST half a
one more, and the result has as long again to arrive."""


@dataclass(frozen=True, slots=True)
class DueStatement:
    """A body to be signed in a slot of this round."""

    kind: Kind
    body: Body
    attempt: int = 0
    subject: bytes = b""


def statements(
    view: RoundView, deadline: LearnedDeadline, *, now_s: float
) -> Iterator[DueStatement]:
    """All that is due now, in the order of the protocol."""
    if view.times.opened_s is None or not view.is_speaker:
        return
    deadline_s = deadline.seconds(view.times.time_outs)
    if view.is_member:
        yield from _have(view, deadline, now_s)
        yield from _hold(view, now_s=now_s, deadline_s=deadline_s)
    if view.is_voter:
        yield from _list(view, deadline, now_s)
        yield from _vote(view, deadline, now_s)
        yield from _report(view)


def _have(view: RoundView, deadline: LearnedDeadline, now_s: float) -> Iterator[DueStatement]:
    """At its deadline, or when nobody is missing, a reducer says what it holds."""
    assert view.times.opened_s is not None
    if not view.gathering().first_kept or view.me in view.ballots.of(Kind.HAVE, view.attempt):
        return
    is_complete = holds_all_expected(view)
    is_late = now_s >= view.attempt_start_s + deadline.seconds(view.times.time_outs)
    if not (is_complete or is_late or view.rare("have-early")):
        return
    if is_complete and view.attempt == 0 and not view.arrivals.is_timed:
        view.arrivals.is_timed = True
        if not _from_others(view):
            deadline.observe(_phase_s(view, [digest for _, digest, _ in view.commits()], now_s))
    elif view.attempt == 0:
        view.arrivals.awaited_commits = frozenset(digest for _, digest, _ in view.commits())
        first = _first_to_sum(view)
        lacking = (
            digest
            for digest in view.arrivals.awaited_commits
            if view.cells.lacks_part(digest, first)
        )
        view.arrivals.late_s = dict.fromkeys(lacking, inf)
    yield DueStatement(Kind.HAVE, Have(held=tuple(held_runs(view))), view.attempt)


def _hold(view: RoundView, *, now_s: float, deadline_s: float) -> Iterator[DueStatement]:
    """HOLD, where substitutes were called (R2): what this node holds by now, if that is more than
    it said in its HAVE.

    It is said as soon as the node lacks no parts that too few hold, at the latest in time for the
    LIST.
    """
    if view.attempt not in view.lapses.second_call_s:
        return
    said = view.ballots.of(Kind.HAVE, view.attempt).get(view.me)
    kept = view.kept_slices()
    if not kept or view.me in view.ballots.of(Kind.HOLD, view.attempt):
        return
    if said is None and view.gathering().first_kept:
        return  # The first one is still to come.
    held = Have(held=tuple(held_runs(view)))
    if not held.held or (said is not None and held == said.body):
        return
    gathering, short = view.gathering(), short_senders(view, complete_senders(view))
    is_lacking = any(
        view.cells.missing_parts(digest, piece)
        for sender, digest, _ in view.commits()
        if sender in short
        for piece in kept
        if gathering.holds(piece, sender)
    )
    if not is_lacking or now_s >= view.attempt_start_s + SECOND_HAVE_AFTER * deadline_s:
        yield DueStatement(Kind.HOLD, held, view.attempt)


def learn(view: RoundView, deadline: LearnedDeadline, now_s: float) -> bool:
    """Learn once per round how long parts took; returns whether this call did so.

    What counts are the parts of the slices that this node is the first to sum. They are those of
    all who are awaited, or, if this node said its first HAVE without some of them, those of the
    COMMITs that it knew by then. (Otherwise a swarm whose lines are slower than its deadline would
    never find out.)

    A few must not choose how long all wait: a quarter of the members, or as many as may lie. So
    three things teach nothing: parts that others gave in the place of their sender; COMMITs that
    came after the HAVE, unless more than a few did; and the parts of a few that were the last.
    """
    if view.arrivals.is_timed or view.times.opened_s is None:
        return False
    wanted = view.arrivals.awaited_commits
    if not wanted and view.ballots.commits.keys() >= view.awaited:
        wanted = frozenset(digest for _, digest, _ in view.commits())
    first = _first_to_sum(view) if wanted else []
    if not first:
        return False
    for digest in view.arrivals.late_s:
        if not view.cells.lacks_part(digest, first):
            view.arrivals.late_s[digest] = min(view.arrivals.late_s[digest], now_s)
    if any(view.cells.lacks_part(digest, first) for digest in wanted):
        return False
    if view.arrivals.awaited_commits and not view.arrivals.late_s:
        # COMMITs alone were late: of more than a few, or it is no reason to wait longer.
        num_late = len(view.ballots.commits) - len(view.arrivals.awaited_commits)
        if num_late <= view.roles.few:
            return False
        deadline.observe(now_s - view.times.opened_s)
    elif not (view.arrivals.late_s and view.arrivals.late_s.keys() <= _from_others(view)):
        deadline.observe(_phase_s(view, wanted, now_s))
    view.arrivals.is_timed = True
    return True


def _phase_s(view: RoundView, digests: Collection[bytes], now_s: float) -> float:
    """In what time the parts of these COMMITs were here, but for the last few that came."""
    assert view.times.opened_s is not None
    arrivals, from_others = view.arrivals, _from_others(view)
    took_s = sorted(
        arrivals.late_s.get(digest, arrivals.parts_s.get(digest, now_s)) - view.times.opened_s
        for digest in digests
        if digest != view.own.commit and digest not in from_others
    )
    return max(0.0, took_s[max(0, len(took_s) - 1 - view.roles.few)]) if took_s else 0.0


def _first_to_sum(view: RoundView) -> list[Slice]:
    """The slices whose parts tell this node how long lines take."""
    if view.config.everybody_sums:
        return view.own_slices()
    return [piece for piece in view.slices if piece.reducers[0] == view.me]


def _from_others(view: RoundView) -> set[bytes]:
    """COMMITs of which others gave parts in the place of their sender."""
    found = set[bytes]()
    for digest, source in view.cells.moved_s:
        commit = view.ballots.commit_of(digest)
        if commit is not None and commit[0] != source:
            found.add(digest)
    return found


def _list(view: RoundView, deadline: LearnedDeadline, now_s: float) -> Iterator[DueStatement]:
    """The closer of the attempt proposes, once."""
    if view.closer(view.attempt) != view.me or view.proposal() is not None:
        return
    body = propose(view, now_s=now_s, deadline_s=deadline.seconds(view.times.time_outs))
    if body is not None:
        yield DueStatement(Kind.LIST, body, view.attempt)


def _vote(view: RoundView, deadline: LearnedDeadline, now_s: float) -> Iterator[DueStatement]:
    """One VOTE per attempt, never of an attempt that was left, never against the lock.

    In a provisional round a PVOTE, which no lock forbids; but whoever holds one waits for a closer
    that takes it up (R4).
    """
    kind, proposal = Kind.PVOTE if view.is_provisional else Kind.VOTE, view.proposal()
    if proposal is None or view.me in view.ballots.of(kind, view.attempt):
        return
    body = proposal.body
    assert isinstance(body, List)
    digest = view.ballots.list_digest(body)
    deadline_s = deadline.seconds(view.times.time_outs)
    is_late = now_s >= view.attempt_start_s + LIST_AFTER * deadline_s
    complete = complete_senders(view) if is_late else set()
    is_late &= not waits_for_second_call(view, complete, now_s=now_s, deadline_s=deadline_s)
    if not _is_valid(view, body) or leaves_out(view, body, is_late=is_late):
        return
    if _may_vote(view, digest) and not view.config.rare("vote-later"):
        yield DueStatement(kind, Vote(list_digest=digest), view.attempt)


def _is_valid(view: RoundView, body: List) -> bool:
    """Known COMMITs of members by ascending sender, each once; drifts come with branches (R4)."""
    listed = view.listed(body)
    if listed is None or body.drifts:
        return False
    senders = [sender for sender, _, _ in listed]
    return senders == sorted(set(senders))


def _may_vote(view: RoundView, digest: bytes) -> bool:
    """Not locked, locked on this, or shown a certificate for this from a later attempt."""
    if view.own.lock is None or view.own.lock[1] == digest:
        return True
    return any(
        attempt > view.own.lock[0] and view.ballots.certificate(attempt, digest)
        for attempt in view.ballots.attempts(Kind.VOTE)
    )


def _report(view: RoundView) -> Iterator[DueStatement]:
    """NEWATTEMPT: after it has entered a later attempt, a voter tells its closer its lock."""
    if view.attempt and view.me not in view.ballots.of(Kind.NEWATTEMPT, view.attempt):
        yield DueStatement(Kind.NEWATTEMPT, lock_report(view), view.attempt)


def waits_for_seats(view: RoundView, config: RoundConfig, now_s: float) -> bool:
    """Whether a founder holds its first COMMIT for joiners that are still to prove their seats."""
    is_waiting = view.index == 1 and len(view.seats.proven) < config.wait_seats
    return is_waiting and now_s < view.times.started_s + config.wait_seats_s


@dataclass(frozen=True, slots=True)
class Seen:
    """What this node saw since its last COMMIT: whom it suspects, who said that it leaves,
    whether the date is past at which the run is to stop, and what it measured (R8)."""

    suspects: frozenset[PeerId]
    left: set[PeerId]
    is_past_end: bool
    rates: Rates
    unwelcome: frozenset[PeerId] = frozenset()
    """Who had a seat lately and never contributed: it is not named for another one yet (R11)."""


def commit_body(
    view: RoundView, mine: Contributed, seen: Seen, work: tuple[Work, ...] = ()
) -> Commit:
    """R2, R6: what binds the contribution, and what this node saw since the last COMMIT (R1)."""
    members = set(view.members)
    banned = view.peers.convicted & members
    joining = view.seats.proven - members
    if view.config.trust == "open" and "links" not in view.config.without:
        joining = (joining & set(seen.rates.linked)) - seen.unwelcome
    ended = view.ended
    return Commit(
        root=mine.root,
        cell_norms=mine.cell_norms,
        tokens=mine.tokens,
        samples=mine.samples,
        steps=mine.steps,
        base=view.basis,
        residual_before=mine.residual_before,
        residual_after=mine.residual_after,
        seal=view.own.seal,
        joins=tuple(sorted(in_turn(view.index, joining)[: limits.SEATS_MAX])),
        suspects=tuple(sorted((seen.suspects & members) - banned - {view.me})),
        gone=tuple(sorted(seen.left & members)),
        bans=tuple(sorted(banned)),
        is_past_end=seen.is_past_end,
        seen=seen.rates.report(view.members, view.me),
        work=work,
        committed=pack_senders(set(ended.ballots.commits), view.members) if ended else b"",
        sealed=pack_senders(ended.sealers_of(view.seals.named), view.members) if ended else b"",
        lapsed=pack_senders(owed(ended) - {view.me}, view.members) if ended else b"",
    )


def time_out_s(view: RoundView, deadline: LearnedDeadline) -> float:
    """When the attempt is given up; stands still while listed bytes arrive."""
    deadline_s = deadline.seconds(view.times.time_outs)
    return max(
        view.attempt_start_s + TIME_OUT_AFTER * deadline_s,
        view.times.progress_s + deadline_s,
    )


def has_timed_out(view: RoundView, deadline: LearnedDeadline, *, now_s: float) -> bool:
    """Whether nothing moved for long, or the LIST is late although all that it needs was there.

    A LIST that this voter can never vote for in this attempt counts as no LIST. But others may have
    voted for it by what they knew then: if anything is certified in this attempt, it goes on.
    """
    if now_s >= time_out_s(view, deadline):
        return True
    if not view.lapses.ready_s or now_s < list_late_s(view, deadline.seconds(view.times.time_outs)):
        return False
    proposal = view.proposal()
    if proposal is None:
        return True
    if view.has_voted or any(attempt == view.attempt for attempt, _ in view.ballots.certified()):
        return False
    return isinstance(proposal.body, List) and leaves_out(view, proposal.body, is_late=True)


def is_given_up(view: RoundView, deadline: LearnedDeadline, *, now_s: float) -> bool:
    """Whether to give the attempt up (R2, rule 10)."""
    if view.times.opened_s is None or _waits_for_seal_before(view):
        return False
    has_list = view.proposal() is not None
    closer_is_gone = not has_list and not view.can_close(view.attempt)
    times = {"now_s": now_s, "deadline_s": deadline.seconds(view.times.time_outs)}
    has_timed = has_timed_out(view, deadline, now_s=now_s)
    is_due = closer_is_gone or has_timed or is_hopeless(view, **times)
    if is_due or (has_list and _leaves_early(view)):
        return True
    return has_list and bool(view.peers.suspects) and has_lost_parts(view)


def _waits_for_seal_before(view: RoundView) -> bool:
    """R5: whether all is done that can be before the seal of the round before is here."""
    if not view.seals.is_beside:
        return False
    certified = (digest for attempt, digest in view.ballots.certified() if attempt == view.attempt)
    bodies = ((digest, view.ballots.list_of(digest)) for digest in certified)
    return any(
        body is not None and not (body.commits and view.cells.missing_results(digest))
        for digest, body in bodies
    )


def _leaves_early(view: RoundView) -> bool:
    """Whether an attempt that goes well is given up all the same; in simulated worlds only."""
    if view.rare("left-at-list"):
        return True
    if view.has_voted and view.rare("left-at-vote"):
        return True
    has_sealed = view.own.lock is not None and view.own.lock[0] == view.attempt
    return has_sealed and view.rare("left-at-seal")


def due_times(view: RoundView, deadline: LearnedDeadline) -> list[float]:
    """When something may fall due without anything being heard."""
    if view.times.opened_s is None:
        return []
    start_s, deadline_s = view.attempt_start_s, deadline.seconds(view.times.time_outs)
    return [
        start_s + deadline_s / 2,
        start_s + deadline_s,
        start_s + SECOND_CALL_AFTER * deadline_s,
        start_s + HAVE_LAPSES_AFTER * deadline_s,
        start_s + LIST_AFTER * deadline_s,
        start_s + SECOND_HAVE_AFTER * deadline_s,
        start_s + SECOND_LIST_AFTER * deadline_s,
        start_s + LIST_LAPSES_AFTER * deadline_s,
        view.waits.look_s,
        list_late_s(view, deadline_s) if view.lapses.ready_s else inf,
        time_out_s(view, deadline),
    ]
