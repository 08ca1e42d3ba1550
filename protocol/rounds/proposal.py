"""What members say about the bytes they hold, and what the closer proposes from it (R2)."""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import (
    Have,
    Held,
    Kind,
    List,
    NewAttempt,
    Seal,
    SignedMessage,
    decode_body,
)
from protocol.rounds.reducers import Slice, liars, pack_senders, unpack_senders
from protocol.rounds.round_view import RoundView

HOLDERS_FRIENDS = 2
"""Where everybody sums so many hold the parts of whoever is listed: of the only copy its holder may
die."""

LIST_AFTER = 1.5
"""The closer waits this many deadlines for HAVEs; reducers sign theirs after one."""

SECOND_LIST_AFTER = 2.0
"""So many where substitutes were called, to hold what too few said that they hold."""

SECOND_CALL_AFTER, SECOND_HAVE_AFTER = 1.1, 1.75
"""So many deadlines after the attempt began substitutes are called, unless all have spoken before;
and say at the latest what they came to hold."""

EMPTY_AFTER_ATTEMPTS = 3
"""From this attempt on a closer that knows of nothing complete lets the round carry."""


BRANCH_TIME_OUTS_MAX = 3
"""A branch whose first LIST led to so many attempts in which nothing moved gives way: whoever has
the bytes may have lost its disk."""


def propose(view: RoundView, *, now_s: float, deadline_s: float) -> List | None:
    """The LIST to propose now, or None while there is reason to wait."""
    if view.attempt > 0 and not view.has_quorum(
        set(view.ballots.of(Kind.NEWATTEMPT, view.attempt))
    ):
        return None
    is_late = now_s >= view.attempt_start_s + LIST_AFTER * deadline_s
    if view.attempt > 0 or view.is_provisional:
        bound = _highest_lock(view)
        if bound is not None:
            return bound
    if view.outcome.is_meeting and not view.is_provisional:
        return None
    if view.outcome.bound and view.times.time_outs < BRANCH_TIME_OUTS_MAX:
        # R4: the branch becomes final round by round, or gives way where its bytes cannot be had.
        body = view.ballots.list_of(view.outcome.bound)
        if body is not None and view.listed(body) is not None:
            return List(commits=body.commits, drifts=body.drifts, certificate=())
        if not is_late:
            return None
    if view.attempt > 0 and not view.rare("closer-free"):
        bound = _already_summed(view)
        if bound is not None:
            return bound
    complete = complete_senders(view)
    has_heard_all = is_late or not awaited_haves(view)
    if has_heard_all and waits_for_second_call(view, complete, now_s=now_s, deadline_s=deadline_s):
        return None
    if is_all_there(view, complete) or (complete and (has_heard_all or view.rare("closer-early"))):
        return _list_of(view, set() if view.rare("closer-carries") else complete)
    if has_heard_all and view.attempt >= EMPTY_AFTER_ATTEMPTS:
        return List(commits=(), drifts=(), certificate=())
    return None


def is_all_there(view: RoundView, complete: Collection[PeerId]) -> bool:
    """Whether a LIST need not wait: who is awaited is complete."""
    return view.awaited.issubset(complete) and _can_sum(view)


def _highest_lock(view: RoundView) -> List | None:
    """The lock of the latest attempt that a voter reports and can prove."""
    best: NewAttempt | None = None
    votes: tuple[SignedMessage, ...] = ()
    for report in view.ballots.bodies(Kind.NEWATTEMPT, NewAttempt, view.attempt).values():
        if report.lock_attempt < 0 or (best and best.lock_attempt >= report.lock_attempt):
            continue
        body = List(commits=report.commits, drifts=report.drifts, certificate=())
        found = view.ballots.certificate(report.lock_attempt, view.ballots.list_digest(body))
        if found:
            best, votes = report, found
    if best is not None:
        # The votes that are here: what a report quotes may be less than a quorum.
        certificate = tuple(vote.encoded for vote in votes)
        return List(commits=best.commits, drifts=best.drifts, certificate=certificate)
    return _lock_heard(view) if view.is_provisional else None


def _lock_heard(view: RoundView) -> List | None:
    """R4: a provisional round takes up the highest lock in reach, reported or heard as a SEAL."""
    for message in view.ballots.locks(view.seals.before):
        seal = decode_body(message)
        assert isinstance(seal, Seal)
        body = view.ballots.list_of(seal.list_digest)
        if body is not None and view.listed(body) is not None:
            return List(commits=body.commits, drifts=body.drifts, certificate=())
    return None


def _already_summed(view: RoundView) -> List | None:
    """A certified list of an earlier attempt whose whole result is here: the quickest way on."""
    for attempt, digest in view.ballots.certified():
        body = view.ballots.list_of(digest)
        if attempt >= view.attempt or body is None or view.listed(body) is None:
            continue  # Without its COMMITs it cannot be voted for; they may be lost with restarts.
        if not view.cells.missing_results(digest):
            votes = view.ballots.certificate(attempt, digest)
            return List(
                commits=body.commits,
                drifts=body.drifts,
                certificate=tuple(vote.encoded for vote in votes),
            )
    return None


def said_haves(view: RoundView, attempt: int) -> Mapping[PeerId, Have]:
    """What each member said last in an attempt that it holds, ascending."""
    first = view.ballots.bodies(Kind.HAVE, Have, attempt)
    second = view.ballots.bodies(Kind.HOLD, Have, attempt)
    return dict(sorted({**first, **second}.items())) if second else first


def complete_senders(view: RoundView, said: Mapping[PeerId, Have] | None = None) -> set[PeerId]:
    """Senders whose every cell is held by a reducer that says so in this attempt; none convicted.

    In open runs by enough besides the sender (`Belief.holders`), or by all others in reach where
    there are not so many: of the only copy, the word of whoever has it would be all that one has.
    """
    said = said_haves(view, view.attempt) if said is None else said
    if not said:
        return set()
    committed = {sender for sender, _, _ in view.commits() if sender not in view.peers.convicted}
    if view.config.everybody_sums:
        found = whole_holders(view)
        return {s for s in committed if is_held_by_enough(view, s, found.get(s, set()))}
    # By how many they must be held: the sets of those whom so many reducers hold, cell by cell.
    needed = _holders_needed(view)
    num_cells = view.cells.num_cells
    counts_itself = view.copies == 1 or len(view.peers.expected) == 1
    held: list[list[set[PeerId]]] = [[set() for _ in range(num_cells)] for _ in range(needed)]
    for reducer, body in said.items():
        if not view.roles.belief.counts(reducer):
            continue
        for run in body.held:
            senders = unpack_senders(run.senders, view.members)
            if not counts_itself:
                senders -= {reducer}
            for cell in range(run.first, min(run.stop, num_cells)):
                more = senders
                for by_so_many in held:
                    again = more & by_so_many[cell]
                    by_so_many[cell] |= more
                    more = again
    return committed.intersection(*held[-1])


def _holders_needed(view: RoundView) -> int:
    """By how many besides it a sender's parts must be held."""
    return max(1, min(view.roles.belief.holders, len(view.peers.expected) - 1))


# The second call ----------------------------------------------------------------------------------


def short_senders(view: RoundView, complete: Collection[PeerId]) -> set[PeerId]:
    """Who committed and is held by too few, though somebody says that it holds its parts.

    Whether a reducer denies what it has, or was not sent it, no third can tell. So substitutes ask
    for these parts in view of all: after that whoever still lacks them is what is missing. Not for
    who was set back or is not in reach, nor where everybody sums and there is no substitute.
    """
    if view.config.everybody_sums:
        return set()
    committed = {sender for sender, _, _ in view.commits() if sender not in view.peers.convicted}
    not_awaited = view.roles.set_back | view.roles.newcomers | view.peers.suspects
    not_awaited |= view.waits.given_up
    short = committed - set(complete) - not_awaited
    if not short:
        return short
    if awaited_haves(view):
        return short  # Of one who is silent there is no telling what it holds.
    claimed: set[PeerId] = set()
    for body in said_haves(view, view.attempt).values():
        for run in body.held:
            claimed |= unpack_senders(run.senders, view.members)
    return short & claimed


def waits_for_second_call(
    view: RoundView, complete: Collection[PeerId], *, now_s: float, deadline_s: float
) -> bool:
    """Whether a LIST would leave somebody out whom substitutes may still come to hold."""
    if "second-call" in view.config.without:
        return False
    if now_s >= view.attempt_start_s + SECOND_LIST_AFTER * deadline_s:
        return False
    return bool(short_senders(view, complete))


def is_still(view: RoundView, *, now_s: float, deadline_s: float) -> bool:
    """Whether no cells of the round came here lately. While they come lines are slow, and whoever
    says no HAVE yet is probably filling as well: a second copy would only take longer."""
    return now_s >= view.times.progress_s + deadline_s / 2


def call_holders(view: RoundView, *, now_s: float, deadline_s: float) -> None:
    """Once the first HAVEs are here, or late, let the next in rank ask for the parts of senders
    whom too few say that they hold."""
    if (
        view.config.everybody_sums
        or view.times.opened_s is None
        or "second-call" in view.config.without
    ):
        return
    if view.proposal() is not None:
        return
    is_over = now_s >= view.attempt_start_s + SECOND_CALL_AFTER * deadline_s
    is_over = is_over and is_still(view, now_s=now_s, deadline_s=deadline_s)
    if not is_over and awaited_haves(view):
        return
    short = short_senders(view, complete_senders(view))
    if not short:
        return
    view.lapses.second_call_s.setdefault(view.attempt, now_s)
    said, gathering = said_haves(view, view.attempt), view.gathering()
    for piece, keeping in zip(view.slices, gathering.first_keeping, strict=True):
        lacking = sum(
            bool((short - {peer}) - held_throughout(view, said.get(peer), piece))
            for peer in keeping
        )
        gathering.call_to_hold(piece, _num_called(lacking, view.roles.belief.words))


def _num_called(lacking: int, words: int) -> int:
    """How many substitutes are called for a slice whose parts so many reducers lack: of those who
    stand in line as many may lie as are not among these."""
    return min(max(lacking, words - 1), max(1, words)) if lacking else 0


def held_throughout(view: RoundView, body: Have | None, piece: Slice) -> frozenset[PeerId]:
    """Whose parts of a whole slice a HAVE names."""
    found, reached = view.member_set, piece.first
    for run in body.held if body is not None else ():
        if run.stop <= piece.first or run.first >= piece.stop:
            continue
        if run.first > reached:
            break
        found &= unpack_senders(run.senders, view.members)
        reached = run.stop
    return found if reached >= piece.stop else frozenset()


def leaves_out(view: RoundView, body: List, *, is_late: bool) -> bool:
    """Whether a LIST of an open run is without more of those who belong in it than voters may lie,
    so that a lying closer sums itself alone.

    Until it `is_late` for HAVEs all who committed belong in it, and then who is complete by those
    that are here. Who has not heard of one HAVE yet may be wrong, and who wants the run to stand
    still says it to some: so after some attempts any LIST will do, as for a lock that is shown.
    """
    may_lie = liars(len(view.roles.electorate), view.config.trust)
    is_free = bool(body.certificate) or view.attempt >= EMPTY_AFTER_ATTEMPTS
    if not may_lie or is_free or view.own.lock is not None or "inclusion" in view.config.without:
        return False
    listed = {sender for sender, _, _ in view.listed(body) or ()}
    committed = {sender for sender, _, _ in view.commits() if sender not in view.peers.convicted}
    belong = complete_senders(view) if is_late else committed
    return len(belong - listed) > may_lie


def is_held_by_enough(view: RoundView, sender: PeerId, holders: set[PeerId]) -> bool:
    """Where everybody sums: whether the parts of a sender survive, by the words of those in reach
    who hold all of them. Friends: two, the sender itself may be one. In open runs one of them is
    honest, or all others in reach say so.
    """
    others, there = view.peers.expected - {sender}, holders & view.peers.expected
    if view.config.trust == "open" and others:
        return view.roles.belief.is_enough(there - {sender}) or others <= there
    if sender in view.peers.expected and there:
        there.add(sender)
    return len(there) >= min(HOLDERS_FRIENDS, len(view.peers.expected))


def whole_holders(view: RoundView) -> dict[PeerId, set[PeerId]]:
    """Of each sender, who says in this attempt that all its cells are there."""
    found: dict[PeerId, set[PeerId]] = {}
    for holder, body in said_haves(view, view.attempt).items():
        for sender in _whole_senders(view, body):
            found.setdefault(sender, set()).add(holder)
    return found


def _whole_senders(view: RoundView, body: Have) -> frozenset[PeerId]:
    """Whose cells are all named by a HAVE: by runs that follow one another without a gap."""
    found, reached = view.member_set, 0
    for run in body.held:
        if run.first > reached:
            break
        found &= unpack_senders(run.senders, view.members)
        reached = max(reached, run.stop)
    return found if reached >= view.cells.num_cells else frozenset()


def _can_sum(view: RoundView) -> bool:
    """Where everybody sums: whether a quorum has all that it needs for it, so that who lacks parts
    still is waited for no longer."""
    if not view.config.everybody_sums:
        return True
    found = whole_holders(view)
    nobody: set[PeerId] = set()
    ready = set.intersection(*(found.get(peer, nobody) for peer in view.peers.expected))
    return view.has_quorum(ready)


def awaited_haves(view: RoundView) -> frozenset[PeerId]:
    """Reducers whose HAVE this node expects in this attempt, and that is not here yet; not who was
    set back."""
    awaited = view.peers.expected & view.gathering().first_keepers
    return awaited.difference(view.roles.set_back, view.ballots.of(Kind.HAVE, view.attempt))


def held_runs(view: RoundView) -> Iterator[Held]:
    """The body of a HAVE or HOLD: per run of the cells that this node is to hold, whose parts it
    has.

    Only of those: a sender holds all its own parts, and would else be complete by its own word.
    Yields at most HAVE_RUNS_MAX: senders of every other cell only can make more, and what is not
    said is not listed.
    """
    runs = (run for piece in view.kept_slices() for run in _runs_in(view, piece))
    return islice(runs, limits.HAVE_RUNS_MAX)


def _runs_in(view: RoundView, piece: Slice) -> Iterator[Held]:
    commits = [(sender, digest) for sender, digest, _ in view.commits()]
    first, current = piece.first, b""
    for cell in range(piece.first, piece.stop):
        senders = {s for s, digest in commits if cell in view.cells.parts.get(digest, ())}
        bits = pack_senders(senders, view.members) if senders else b""
        if bits != current:
            if current:
                yield Held(first=first, stop=cell, senders=current)
            first, current = cell, bits
    if current:
        yield Held(first=first, stop=piece.stop, senders=current)


def is_hopeless(view: RoundView, *, now_s: float, deadline_s: float) -> bool:
    """Whether this node is the closer, all reducers have spoken, and nobody is complete.

    A reducer died, and was suspected too late for the HAVEs of this attempt: on to the next one,
    in which substitutes speak. After some attempts the closer lets the round carry instead: where
    payloads are lost with the disks they were on, no attempt will ever find one complete.
    """
    if view.closer(view.attempt) != view.me or view.proposal() is not None:
        return False
    if view.attempt >= EMPTY_AFTER_ATTEMPTS or view.outcome.bound or view.outcome.is_meeting:
        return False
    has_spoken = bool(view.ballots.of(Kind.HAVE, view.attempt)) and not awaited_haves(view)
    complete = complete_senders(view) if has_spoken else {view.me}
    times = {"now_s": now_s, "deadline_s": deadline_s}
    return not (complete or waits_for_second_call(view, complete, **times))


def holds_all_expected(view: RoundView) -> bool:
    """Whether every member that is awaited has committed and all its parts of the own slices are
    here."""
    return lacking_senders(view) <= view.waits.given_up


def lacking_senders(view: RoundView) -> set[PeerId]:
    """Of whom the COMMIT or parts of the own slices are missing."""
    gathering = view.gathering()
    lacking = set(view.awaited_at_first.difference(view.ballots.commits))
    for piece in gathering.first_kept:
        for sender, digest, _ in view.commits():
            if sender in lacking or sender not in view.peers.expected:
                continue
            if gathering.holds(piece, sender) and view.cells.missing_parts(digest, piece):
                lacking.add(sender)
    return lacking


def lock_report(view: RoundView) -> NewAttempt:
    """The body of a NEWATTEMPT: the lock with its certificate, or the results still missing."""
    if view.own.lock is not None:
        locked = view.ballots.list_of(view.own.lock[1])
        assert locked is not None, "locked on a LIST that is not in the ballots"
        return NewAttempt(
            lock_attempt=view.own.lock[0],
            commits=locked.commits,
            drifts=locked.drifts,
            certificate=tuple(vote.encoded for vote in view.ballots.certificate(*view.own.lock)),
            missing=(),
        )
    certified = [digest for _, digest in view.ballots.certified()]
    missing = view.cells.missing_results(certified[0]) if certified else ()
    return NewAttempt(lock_attempt=-1, commits=(), drifts=(), certificate=(), missing=missing)


def _list_of(view: RoundView, senders: set[PeerId]) -> List:
    digests = tuple(digest for sender, digest, _ in view.commits() if sender in senders)
    return List(commits=digests, drifts=(), certificate=())
