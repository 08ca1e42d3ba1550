"""Whom a round waits for beyond its deadline, and for how long ("What a round waits for").

Everybody says with its heartbeat how far it is (`Progress`). While members that the round still
needs move on, its clock stands still: steps and bytes take as long as they take, and a deadline
says how long nothing at all may happen. What is believed is movement: an end that was announced
excuses nobody whose work does not grow, and nobody moves its end by more than half.

Nobody may keep the others waiting for ever by moving slowly. Of the members a quarter, or as many
as may lie, can be late without a say in what is late: the others set the time in which a round is
done. Beyond a third more of it waiting is charged to whom it is for, and each has four such rounds
to spend in an era of 256. Who has spent them is waited for no longer than everybody: until a third
more of that time is over. Pure.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from statistics import median_high

from protocol import limits
from protocol.events import Working
from protocol.frames import Phase, Progress
from protocol.identity import PeerId
from protocol.messages import Have, Kind
from protocol.rounds.proposal import awaited_haves, lacking_senders
from protocol.rounds.reducers import liars, unpack_senders
from protocol.rounds.round_view import RoundView

END_SLACK = 1.5
"""A phase may take so many times what was announced when it began."""

STALL_UNITS = 2.0
"""A step or a cell may take so many times as long as the ones before it, or as announced."""

STALL_BEATS = 4.0
"""So many heartbeats pass at least before work that does not grow has stopped."""

LATE_SHARE = 0.33
"""By so much more time than all but a quarter need a member may be late at nobody's cost."""

CAP_ROUNDS = 4.0
"""For so many times what all but a quarter need a member is waited for beyond that, in an era."""

PATIENCE_ROUNDS = 256
"""An era: so many rounds give back what a member has spent."""

UNIT_LEAST = 0.25
"""Of the least deadline: what a round counts as at least where patience is counted."""

ROUNDS_BEHIND_MAX = 2
"""Whoever is on its way to the round under way may be so many rounds behind."""

PIECES_PER_CELL = 256
"""As so many pieces a cell is counted that is on its way; a piece comes four times a second."""

KEPT_MAX = 4 * limits.SEATS_MAX
"""Courses, and members that were waited for; so many rounds may be under way at most."""


class Stage(IntEnum):
    """What an attempt waits for."""

    PARTS = 1
    HAVES = 2
    RESULTS = 3
    SEALS = 4


@dataclass(frozen=True, slots=True)
class Movement:
    """When work that somebody waits for moved last, and until when that counts."""

    at_s: float
    stops_s: float


@dataclass(slots=True)
class _Course:
    """What one peer does for a round, by its own words: when its work grew last, how long it may
    stand still, and when its phase is over at the latest."""

    said: Progress
    grown_s: float
    stall_s: float
    until_s: float
    commits: int
    """How many COMMITs of the round were here when it last said when it ends."""
    advances: int
    """How often the work that leads to its COMMIT has grown."""

    @property
    def stops_s(self) -> float:
        """When it is worth nothing any more if the work does not grow."""
        return min(self.grown_s + self.stall_s, self.until_s)


class Patience:
    """What one node knows of the progress of others, and how long it has waited for each.

    Written by the machine of its rounds alone.
    """

    def __init__(self, *, heartbeat_s: float, floor_s: float) -> None:
        self._least_s = STALL_BEATS * heartbeat_s
        self._unit_least_s = UNIT_LEAST * floor_s
        self._courses: dict[tuple[PeerId, int], _Course] = {}
        """By peer and round."""
        self._spent: dict[PeerId, float] = {}
        """By member, in rounds: what was waited for it lately."""
        self._over: set[PeerId] = set()
        """Who has spent all, and waits for it to come back."""
        self._fetch: tuple[tuple[int, int], float, int] = ((-1, 0), 0.0, 0)
        """For which round this node fetches what, since when, and how many cells it had then."""

    # Progress -----------------------------------------------------------------------------------

    def told(self, peer: PeerId, said: Progress, now_s: float, *, commits: int = 0) -> None:
        """A member says how far it is with a round under way, of which so many COMMITs are here.
        What goes back is not heard."""
        course = self._courses.get((peer, said.round))
        advances = (course.advances if course else 0) + (said.phase < Phase.FETCH)
        if course is None or said.phase > course.said.phase:
            until_s = self._until_s(said, now_s)
            fresh = _Course(said, now_s, self._stall_s(said), until_s, commits, advances)
            limits.keep_newest(self._courses, (peer, said.round), fresh, KEPT_MAX)
            return
        if said.phase < course.said.phase or said.done <= course.said.done:
            return
        course.stall_s = max(course.stall_s, STALL_UNITS * (now_s - course.grown_s))
        # With each COMMIT there is more to fetch than when the end was announced.
        is_fetching = said.phase is Phase.FETCH and commits > course.commits
        has_more = is_fetching and said.total > course.said.total
        until_s = self._until_s(said, now_s)
        if course.until_s == math.inf or (has_more and until_s > course.until_s):
            course.until_s, course.commits = until_s, commits
            course.stall_s = max(course.stall_s, self._stall_s(said))
        course.said, course.grown_s, course.advances = said, now_s, advances

    def movement(self, peer: PeerId, view: RoundView, now_s: float) -> Movement | None:
        """How its work for that round moves, or what it does to come to that round; None if it is
        not on its way.

        What led to a COMMIT that is here is over: behind it only what is fetched counts, and not of
        who is in a later attempt, for which it fetches.
        """
        has_committed, found = peer in view.ballots.commits, None
        if not has_committed and peer in view.waits.left_behind_s:
            return None
        behind = 0 if has_committed else ROUNDS_BEHIND_MAX
        for index in range(view.index - behind, view.index + 1):
            course = self._courses.get((peer, index))
            if course is None or (has_committed and course.said.phase < Phase.FETCH):
                continue
            if now_s < course.stops_s:
                found = Movement(course.grown_s, course.stops_s)
        return None if found and has_committed and _is_ahead(view, peer) else found

    def own(self, view: RoundView, work: Working | None, now_s: float) -> tuple[Progress, ...]:
        """How far this node is, for its heartbeat: with training, else with what it gathers."""
        told = None if work is None else _as_told(view, work)
        gathered = self._gathered(view, now_s) or self._fetched(view, now_s)
        said = tuple(one for one in (told, gathered) if one is not None)
        for one in said:
            self.told(view.me, one, now_s, commits=len(view.ballots.commits))
        return said

    def _gathered(self, view: RoundView, now_s: float) -> Progress | None:
        """How many cells are here of those that the own HAVE waits for.

        Where a COMMIT is missing the work that leads to it counts too, as it is heard of here: so
        who has no link to its sender hears that others wait, and for how long they have reason to.
        """
        if not view.own.commit or view.me in view.ballots.of(Kind.HAVE, view.attempt):
            return None
        gathering, done, total = view.gathering(), 0, 0
        for piece in gathering.first_kept:
            for sender, digest, _ in view.commits():
                if sender in view.peers.expected and gathering.holds(piece, sender):
                    total += piece.stop - piece.first
                    done += piece.stop - piece.first - len(view.cells.missing_parts(digest, piece))
        advances, waits = self._awaited_work(view, now_s)
        if done == total and not waits:
            return None  # It has nothing to say of itself.
        said = self._paced(view, Phase.FETCH, done + advances, total + advances + waits, now_s)
        has_all = view.awaited <= view.ballots.commits.keys()
        return said if has_all else replace(said, end_s=0)

    def _awaited_work(self, view: RoundView, now_s: float) -> tuple[int, bool]:
        """How often the work of others has grown that leads to their COMMITs, and whether this
        node waits for any of it still."""
        courses = (self._courses.get((peer, view.index)) for peer in view.members)
        advances = sum(course.advances for course in courses if course is not None)
        missing = view.awaited.difference(view.ballots.commits)
        return advances, any(self.movement(peer, view, now_s) for peer in missing)

    def _fetched(self, view: RoundView, now_s: float) -> Progress | None:
        """How many cells are here of a result that is certified or sealed."""
        total = view.cells.num_cells
        for digest, held in view.cells.results.items():
            if 0 < len(held) < total and view.is_named(digest):
                return self._paced(view, Phase.RESULT, len(held), total, now_s)
        return None

    def _paced(
        self, view: RoundView, phase: Phase, done: int, total: int, now_s: float
    ) -> Progress:
        """With the end that follows from how fast it went until now. A cell takes long on a slow
        line, so what came of the next one counts too."""
        if done < total:
            done = done * PIECES_PER_CELL + min(view.cells.moves, PIECES_PER_CELL - 1)
            total *= PIECES_PER_CELL
        if self._fetch[0] != (view.index, phase):
            self._fetch = ((view.index, phase), now_s, done)
        _, since_s, at_first = self._fetch
        rest_s = (now_s - since_s) * (total - done) / (done - at_first) if done > at_first else 0
        return _progress(view, phase, done, total, rest_s)

    def _stall_s(self, said: Progress) -> float:
        unit_s = said.end_s / max(1, said.total - said.done)
        return max(self._least_s, STALL_UNITS * unit_s)

    def _until_s(self, said: Progress, now_s: float) -> float:
        if not said.end_s:
            return math.inf
        return now_s + END_SLACK * said.end_s + self._least_s

    # Waiting ------------------------------------------------------------------------------------

    def sealed(self, members: Collection[PeerId]) -> None:
        """A round is final: a little of what each has spent comes back. Whoever has spent all of it
        has to wait for all of it."""
        back = CAP_ROUNDS / PATIENCE_ROUNDS
        spent = {peer: rounds - back for peer, rounds in self._spent.items() if rounds > back}
        if len(spent) > KEPT_MAX:
            spent = {peer: rounds for peer, rounds in spent.items() if peer in members}
        self._spent = spent
        self._over.intersection_update(spent)

    def has_spent(self, peer: PeerId) -> bool:
        """Whether a member has spent all that it is waited for, and not all of it is back."""
        return peer in self._over

    def wait(self, view: RoundView, *, now_s: float, deadline_s: float) -> None:
        """Say in the view whether its clock stands still, and for whom it waits no longer."""
        waits, few = view.waits, view.roles.few
        if view.times.opened_s is None:
            return
        _note_left_behind(view, now_s)
        stage, late = self._late(view, now_s, deadline_s / 2)
        moving = {peer: movement for peer, movement in late.items() if movement is not None}
        if len(moving) > few:
            waits.done_s.pop(stage, None)  # Nothing had moved for a deadline; now it goes on.
        else:
            until_s = max(view.times.opened_s, waits.moved_s) + deadline_s
            if len(late) <= few:
                waits.done_s.setdefault(stage, _last_came_s(view, stage, now_s))
            elif now_s >= until_s:
                waits.done_s.setdefault(stage, now_s)
        # What is sealed comes as fast as the line of who takes it, and keeps nobody else waiting.
        is_taken = not view.is_member or view.ballots.sealed(view.seals.before) is not None
        most_s = 0.0 if is_taken else deadline_s
        ends_s = self._charge(view, late, stage, now_s=now_s, most_s=most_s)
        is_held = len(moving) > few or any(now_s < ends_s[peer] for peer in moving)
        held_for = frozenset((peer, peer in view.ballots.commits) for peer in moving if is_held)
        lateness = {(peer, peer in view.ballots.commits) for peer in late}
        if waits.is_held and not waits.held_for <= lateness:
            waits.moved_s = now_s  # What somebody came to has to be heard of by all.
        elif waits.is_held and not is_held:
            # What is due now is late for others only in a while.
            waits.moved_s = max(waits.moved_s, now_s - deadline_s)
        if is_held:
            waits.moved_s = max(waits.moved_s, *(one.at_s for one in moving.values()))
        waits.is_held, waits.held_for = is_held, held_for
        if len(late) <= few and stage < Stage.RESULTS:
            waits.given_up |= {peer for peer, end_s in ends_s.items() if now_s >= end_s}
        looks_s = [*ends_s.values(), *(one.stops_s for one in moving.values())]
        looks_s += [at_s + view.config.relayed_s for at_s in waits.left_behind_s.values()]
        waits.look_s = min((s for s in looks_s if s > now_s), default=math.inf)

    def _late(
        self, view: RoundView, now_s: float, within_s: float
    ) -> tuple[Stage, dict[PeerId, Movement | None]]:
        """Whom the attempt still needs for what comes next, and how each moves; of bytes that come
        here, `within_s`."""
        if view.proposal() is not None:
            return self._late_results(view, now_s, within_s)
        late: dict[PeerId, Movement | None] = {}
        has_said = view.me in view.ballots.of(Kind.HAVE, view.attempt)
        if not has_said:
            # This node as well: where its own trainer is late, it holds the parts of the others.
            for peer in sorted(lacking_senders(view)):
                commit = view.ballots.commits.get(peer)
                if commit is None:
                    late[peer] = self.movement(peer, view, now_s)
                else:
                    late[peer] = _bytes_of(view, commit[0], now_s, within_s)
        if has_said or not view.gathering().first_kept:
            for peer in awaited_haves(view).difference(late):
                late[peer] = _since_commits(view, self.movement(peer, view, now_s))
        return Stage.HAVES if has_said else Stage.PARTS, late

    def _late_results(
        self, view: RoundView, now_s: float, within_s: float
    ) -> tuple[Stage, dict[PeerId, Movement | None]]:
        """Whose results are missing of a LIST that is certified in this attempt, moving or not;
        once all are here, who has not sealed it and fetches them still."""
        late: dict[PeerId, Movement | None] = {}
        certified = (
            digest for attempt, digest in view.ballots.certified() if attempt == view.attempt
        )
        stage = Stage.RESULTS
        for digest in certified:
            missing = view.cells.missing_results(digest)
            if missing:
                late |= dict.fromkeys(_givers_of(view, digest, missing))
                for (subject, source), at_s in view.cells.moved_s.items():
                    if subject == digest and now_s < at_s + within_s:
                        late[source] = Movement(at_s, at_s + within_s)
            else:
                stage = Stage.SEALS
                sealers = view.ballots.of(Kind.SEAL, view.attempt, view.seals.before)
                voters = view.peers.expected.intersection(view.roles.electorate)
                for peer in voters.difference(sealers):
                    late[peer] = self.movement(peer, view, now_s)
        return stage, late

    def _charge(
        self,
        view: RoundView,
        late: Collection[PeerId],
        stage: Stage,
        *,
        now_s: float,
        most_s: float,
    ) -> dict[PeerId, float]:
        """Charge those who were late at the last look with the time since, `most_s` where this node
        did not run for longer; until when each of the late is waited for."""
        waits, started_s = view.waits, view.times.started_s
        done_s = waits.done_s.get(stage)
        if done_s is None:
            waits.charged_s, waits.late = max(now_s, waits.charged_s), frozenset()
            return dict.fromkeys(late, math.inf)
        unit_s = max(done_s - started_s, self._unit_least_s)
        free_s = done_s + LATE_SHARE * (done_s - started_s)
        passed_s = min(most_s, max(0.0, now_s - max(free_s, waits.charged_s)))
        waits.charged_s = max(now_s, waits.charged_s)
        for peer in waits.late if passed_s else ():
            spent = self._spent[peer] = self._spent.get(peer, 0.0) + passed_s / unit_s
            if spent >= CAP_ROUNDS:
                self._spent[peer] = CAP_ROUNDS
                self._over.add(peer)
        waits.late = frozenset(late)
        ends_s = {}
        for peer in late:
            left_s = (CAP_ROUNDS - self._spent.get(peer, 0.0)) * unit_s
            ends_s[peer] = free_s if peer in self._over else max(now_s, free_s) + left_s
        return ends_s


def _since_commits(view: RoundView, found: Movement | None) -> Movement | None:
    """What moves towards a HAVE: once all COMMITs are here nobody waits for one any more, and what
    was heard before may have been of that."""
    has_all = view.awaited <= view.ballots.commits.keys()
    if found is None or not has_all:
        return found
    came_s = max((view.arrivals.commit_s.get(peer, 0.0) for peer in view.awaited), default=0.0)
    return found if found.at_s > came_s else None


def _is_ahead(view: RoundView, peer: PeerId) -> bool:
    """Whether a member is seen in a later attempt: it says nothing in this one any more."""
    return any(
        attempt > view.attempt and peer in view.ballots.of(kind, attempt)
        for kind in (Kind.NEWATTEMPT, Kind.HAVE, Kind.HOLD)
        for attempt in view.ballots.attempts(kind)
    )


def _note_left_behind(view: RoundView, now_s: float) -> None:
    """Nobody waits alone: whose COMMIT is missing here is given up once most of those who are to
    say what they hold have said it, and it is nothing of that member. A few may have no link to it.
    """
    waits = view.waits
    said = view.ballots.bodies(Kind.HAVE, Have, view.attempt)
    if not said:
        return
    missing = view.awaited_at_first.difference(view.ballots.commits, waits.left_behind_s)
    if not missing:
        return
    held = {
        other: frozenset().union(*(unpack_senders(run.senders, view.members) for run in body.held))
        for other, body in said.items()
    }
    for peer in missing:
        without = {other for other, senders in held.items() if peer not in senders}
        voices = _voices(view) - {peer}
        if len(voices & without) >= _num_needed_without(view, voices):
            waits.left_behind_s[peer] = now_s
            waits.given_up |= {peer}


def _voices(view: RoundView) -> frozenset[PeerId]:
    """Whose word on what they hold counts, of those who are to say it at first."""
    counts = view.roles.belief.counts
    return frozenset(filter(counts, view.peers.expected & view.gathering().first_keepers))


def _num_needed_without(view: RoundView, voices: frozenset[PeerId]) -> int:
    """How many of them speak without somebody before nobody waits for it: more than half of those
    who are awaited, and so many that one of them is honest."""
    most = len(voices - view.roles.set_back) // 2 + 1
    return max(most, view.roles.belief.words)


def _last_came_s(view: RoundView, stage: Stage, now_s: float) -> float:
    """When the last came of what is here by now, though it may be looked at later."""
    times_s = [view.times.opened_s or 0.0]
    if stage >= Stage.RESULTS:
        times_s.append(now_s)
    elif stage is Stage.HAVES:
        times_s += view.lapses.said_s.values()
    else:
        times_s += [*view.arrivals.commit_s.values(), *view.arrivals.parts_s.values()]
    return min(now_s, max(times_s))


def _givers_of(view: RoundView, digest: bytes, missing: Sequence[int]) -> Iterator[PeerId]:
    """Of whom the missing cells of a result are awaited, ascending: who was asked for those of a
    slice, or else who is the first to sum them, though it be this node."""
    for piece, summing in zip(view.slices, view.gathering().summing, strict=True):
        at = bisect_left(missing, piece.first)
        if at < len(missing) and missing[at] < piece.stop:
            asked = view.cells.asked.get((digest, piece.first))
            yield from summing[:1] if asked is None else (asked.source,)


def _bytes_of(view: RoundView, digest: bytes, now_s: float, within_s: float) -> Movement | None:
    """How bytes of that COMMIT's parts come here; None if the last did long ago."""
    moved = (s for (subject, _), s in view.cells.moved_s.items() if subject == digest)
    at_s = max(moved, default=-math.inf)
    return Movement(at_s, at_s + within_s) if now_s < at_s + within_s else None


def _as_told(view: RoundView, work: Working) -> Progress | None:
    """What the trainer says, if it is of a round under way."""
    if work.round < view.index:
        return None
    said = _progress(view, work.phase, work.done, work.total, work.end_s or 0.0)
    return replace(said, round=work.round)


def _progress(view: RoundView, phase: Phase, done: int, total: int, end_s: float) -> Progress:
    total = max(1, total)
    return Progress(
        shard=view.seals.head.shard,
        round=view.index,
        phase=phase,
        done=min(done, total),
        total=total,
        end_s=min(math.ceil(end_s), limits.PHASE_S_MAX),
    )


def parts_s(view: RoundView, now_s: float) -> tuple[float, float] | None:
    """How long the line took for the own parts to all but a few of those who gather them, and how
    long the lines of half the others would take for as many; None where there are none. What is on
    its way took until now at least, but behind a round that lists them.

    Of two each waits for the other, and neither does less for its line. Fewer than half may lie.
    """
    num_cells = _cells_pushed(view)
    took_s, cells_came_s = _own_parts_s(view, num_cells, now_s), _cells_came_s(view)
    if not (view.roles.few and took_s and cells_came_s):
        return None
    own_s = sorted(took_s.values())[max(0, len(took_s) - 1 - view.roles.few)]
    own_cell_s = median_high(took_s[peer] / num_cells[peer] for peer in took_s)
    return own_s, own_s * min(1.0, median_high(cells_came_s) / max(1e-9, own_cell_s))


def _cells_pushed(view: RoundView) -> Counter[PeerId]:
    """How many own cells were sent unasked, by to whom. Whoever was called in later asked for
    others of them, and shows nothing that can be compared."""
    found = Counter[PeerId]()
    for piece in view.slices:
        for peer in view.members:
            if ("part", view.own.commit, piece.first, peer) in view.cells.requested:
                found[peer] += piece.stop - piece.first
    return found


def _own_parts_s(
    view: RoundView, pushed_to: Collection[PeerId], now_s: float
) -> dict[PeerId, float]:
    """How long the line took for the own parts, by to whom they were sent unasked."""
    committed_s = view.arrivals.commit_s.get(view.me)
    if committed_s is None:
        return {}
    sent_s = view.arrivals.sent_s
    found = {peer: sent_s[peer] for peer in pushed_to if peer in sent_s}
    sealed = view.ballots.sealed(view.seals.before)
    listed = view.ballots.list_of(sealed[0].list_digest) if sealed else None
    if listed is not None and view.own.commit in listed.commits and found:
        return found  # Who is past the round needs no parts any more.
    return dict.fromkeys(pushed_to, max(0.0, now_s - committed_s)) | found


def _cells_came_s(view: RoundView) -> list[float]:
    """How long a cell took of each of the others whose parts came here.

    What was there before this node was in the round came in no time, and says nothing.
    """
    arrivals, gathering = view.arrivals, view.gathering()
    found = []
    for peer, digest, _ in view.commits():
        num_cells = sum(
            piece.stop - piece.first
            for piece in gathering.first_kept
            if gathering.holds(piece, peer)
        )
        committed_s = arrivals.commit_s.get(peer, 0.0)
        is_timed = digest in arrivals.parts_s and committed_s > view.times.started_s
        if peer != view.me and num_cells and is_timed:
            found.append(max(0.0, arrivals.parts_s[digest] - committed_s) / num_cells)
    return found


@dataclass(frozen=True, slots=True)
class WholeRound:
    """How long all steps of a round take the fastest and the slowest of the members, up to their
    COMMITs; of one member both are the same."""

    fastest_s: float
    slowest_s: float
    own_s: float | None = None
    """Likewise this node, if it committed."""


class WholeRounds:
    """What whole rounds take, by the COMMITs of one round after the other."""

    def __init__(self, inner_steps: int) -> None:
        self._inner_steps = inner_steps
        self._basis = b""
        """What names the round that was looked at last."""
        self._came_s: Mapping[PeerId, float] = {}
        """When its COMMITs came; what still comes of it is filed there too."""

    def see(self, view: RoundView) -> WholeRound | None:
        """A round that is sealed, each COMMIT to it as of all steps; None if too few are here, or
        it was seen before.

        In open runs voters count alone, and of them as many are left out at either end as may
        lie: they would have all others take few steps, or be told that all wait for somebody.
        """
        if view.basis == self._basis:
            return None
        before_s = self._came_s
        self._basis, self._came_s = view.basis, view.arrivals.commit_s
        took_s: dict[PeerId, float] = {}
        for peer, came_s in view.arrivals.commit_s.items():
            commit = view.ballots.commits.get(peer)
            if commit is None or peer not in view.member_set or not commit[1].steps:
                continue
            began_s = view.times.started_s
            if view.is_overlapped and before_s.get(peer, came_s) < came_s:
                # A round is under way before whoever is slow has handed the one before in.
                began_s = max(began_s, before_s[peer])
            if came_s <= began_s:
                continue  # What was there before this node was in the round says nothing.
            took_s[peer] = (came_s - began_s) * self._inner_steps / commit[1].steps
        peers = view.roles.electorate if view.config.trust == "open" else view.members
        ranked_s = sorted(took_s[peer] for peer in peers if peer in took_s)
        left_out = liars(len(peers), view.config.trust)
        if len(ranked_s) <= left_out:
            return None
        fastest_s = ranked_s[left_out]
        slowest_s = max(fastest_s, ranked_s[-1 - left_out])
        return WholeRound(fastest_s, slowest_s, took_s.get(view.me))
