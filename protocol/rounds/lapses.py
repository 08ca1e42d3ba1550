"""Who keeps others waiting for what it owes (R8), and how long anybody is waited for.

The first part are pure functions of a RoundView. Behind it stand the learned deadline ("What a
round waits for"), the courtesy of holding a COMMIT for joiners, and the memory of idle keys (R11).

A word that is not said convicts nobody: it may be on its way, or its sender may be cut off from
this node alone. But a peer that owes it costs the round time, and would do so in every round. So
every node tells in its COMMIT of L rounds later who kept it waiting. A member that more voters name
than may lie comes last among reducers and closers for some rounds (`protocol.rounds.roster`).
Nothing else follows from it: no seat is lost, and no vote.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Have, Kind, List, Roster
from protocol.rounds.agreed import owing_sums
from protocol.rounds.proposal import (
    SECOND_CALL_AFTER,
    awaited_haves,
    complete_senders,
    held_throughout,
    is_all_there,
    is_still,
    said_haves,
)
from protocol.rounds.reducers import Slice
from protocol.rounds.roster import blocking
from protocol.rounds.round_config import Rare, never
from protocol.rounds.round_view import RoundView

HAVE_LAPSES_AFTER, LIST_LAPSES_AFTER = 1.25, 2.25
"""HAVEs are due after one deadline, LISTs after one and a half, after two with a second call; what
is on its way has a quarter more."""

LIST_LATE_AFTER = 0.5
"""Where nobody is waited for, a LIST is due at once, and late so many deadlines afterwards; but not
before the time is over in which others have told its closer what it may not have heard itself."""


def note_lapses(view: RoundView, *, now_s: float, deadline_s: float) -> None:
    """Remember who owes a HAVE or a LIST by now, or gave it late; and a closer that left somebody
    out whom it had to list."""
    if ("ready", view.attempt) in view.lapses.looked_at:
        return  # As most often.
    _note_ready(view, now_s)
    if ("list", view.attempt) in view.lapses.looked_at:
        if view.attempt in view.lapses.ready_s or view.has_voted or not view.is_voter:
            view.lapses.looked_at.add(("ready", view.attempt))
        return
    start_s, proposal = view.attempt_start_s, view.proposal()
    if proposal is not None:
        if isinstance(proposal.body, List):
            view.lapses.looked_at.add(("list", view.attempt))
            is_late = now_s >= list_late_s(view, deadline_s)
            if is_late or _leaves_out(view, proposal.body):
                view.lapses.lapsed.add(proposal.message.sender)
            if now_s >= start_s + SECOND_CALL_AFTER * deadline_s:
                # It was waited for, until others had spoken.
                view.lapses.lapsed |= _owed_haves(view, now_s)
        return
    if now_s >= start_s + HAVE_LAPSES_AFTER * deadline_s:
        if is_still(view, now_s=now_s, deadline_s=deadline_s):
            view.lapses.lapsed |= _owed_haves(view, now_s)
        if view.attempt not in view.lapses.to_list:
            view.lapses.to_list[view.attempt] = frozenset(complete_senders(view))
    is_late = now_s >= min(start_s + LIST_LAPSES_AFTER * deadline_s, list_late_s(view, deadline_s))
    closer = view.closer(view.attempt)
    is_owed = is_late and _can_propose(view, complete_senders(view))
    if is_owed and not _may_wait(view, closer, now_s):
        view.lapses.lapsed.add(closer)


def _may_wait(view: RoundView, closer: PeerId, now_s: float) -> bool:
    """Whether a closer may wait for a COMMIT, or for a HAVE whose sender is named for it."""
    return bool((_may_be_awaited(view, now_s) | awaited_haves(view)) - {closer})


def _owed_haves(view: RoundView, now_s: float) -> set[PeerId]:
    """Whose HAVE is late, and who need not wait with it for anybody."""
    awaited, owing = _may_be_awaited(view, now_s), view.gathering().owing_keepers()
    return {peer for peer in awaited_haves(view) & owing if awaited <= {peer}}


def _may_be_awaited(view: RoundView, now_s: float) -> set[PeerId]:
    """For whose COMMIT others may wait though nothing is heard of its work here: until it is left
    behind, and all have heard that."""
    left_behind_s, relayed_s = view.waits.left_behind_s, view.config.relayed_s
    missing = view.awaited_at_first.difference(view.ballots.commits)
    return {peer for peer in missing if now_s < left_behind_s.get(peer, math.inf) + relayed_s}


def _note_ready(view: RoundView, now_s: float) -> None:
    """Remember when all was here for a LIST that need not wait. Whom this node alone has given up
    its closer may still wait for."""
    if view.attempt in view.lapses.ready_s or awaited_haves(view):
        return
    complete = complete_senders(view)
    came = view.awaited_at_first.intersection(view.ballots.commits)
    is_whole = came <= complete and not _may_be_awaited(view, now_s)
    if _can_propose(view, complete) and is_whole and is_all_there(view, complete):
        view.lapses.ready_s[view.attempt] = now_s


def list_late_s(view: RoundView, deadline_s: float) -> float:
    """When a LIST is late although all that it needs is here. By then others have told its closer
    what it may not have heard itself. Infinite while anything is missing, or parts of a COMMIT that
    came behind time here: its closer may have had it before."""
    came = view.waits.given_up.intersection(view.ballots.commits)
    if came and not came <= complete_senders(view):
        return math.inf
    ready_s = view.lapses.ready_s.get(view.attempt, math.inf)
    return ready_s + max(LIST_LATE_AFTER * deadline_s, view.config.relayed_s)


def _leaves_out(view: RoundView, body: List) -> bool:
    """Whether a LIST is without somebody whom its closer had to list."""
    listed = view.listed(body)
    if listed is None or body.certificate or view.own.lock is not None or view.outcome.bound:
        return False
    return bool(_to_list(view) - {sender for sender, _, _ in listed})


def _to_list(view: RoundView) -> AbstractSet[PeerId]:
    """Whom a LIST has to name: senders that were complete by what its closer knew as well.

    What arrives just before a LIST its closer may not have had: a liar that wants the closer to be
    named would tell it to all others. So of a late LIST those senders count that were complete when
    HAVEs became late. An early LIST an honest closer makes only when it has heard all the first
    HAVEs that everybody waits for, so of that those count that are complete by these HAVEs.
    Newcomers do not count, for nobody waits for them.
    """
    found = view.lapses.to_list.get(view.attempt)
    if found is not None:
        return found
    said = view.ballots.bodies(Kind.HAVE, Have, view.attempt)
    awaited = view.gathering().first_keepers - view.roles.set_back
    by_first = complete_senders(view, {p: body for p, body in said.items() if p in awaited})
    return by_first - view.roles.newcomers


def _can_propose(view: RoundView, complete: Collection[PeerId]) -> bool:
    """Whether the closer has what it needs for a LIST of these, as far as this node sees."""
    is_told = not view.attempt or view.has_quorum(
        set(view.ballots.of(Kind.NEWATTEMPT, view.attempt))
    )
    is_bound = bool(view.outcome.bound) or view.outcome.is_meeting
    return is_told and not is_bound and bool(complete)


def owed(view: RoundView) -> set[PeerId]:
    """Who kept this node waiting in a round that is sealed. Besides those noted during the round:
    where there was a second call, reducers that denied to the end what others hold, and senders
    whose parts more voters lacked than may lie; and members that owed a sum."""
    found, short = set(view.lapses.lapsed), set[PeerId]()
    for attempt in view.lapses.second_call_s:
        short |= _withheld(view, attempt)
    for attempt in view.lapses.second_call_s:
        found |= _denied(view, attempt, short)
    return (found | short | _without_sums(view, short)) - view.peers.suspects


def _withheld(view: RoundView, attempt: int) -> set[PeerId]:
    """Senders whose parts, of whatever slices, so many voters lacked at first that one of these
    voters is honest."""
    first, found = view.ballots.bodies(Kind.HAVE, Have, attempt), set[PeerId]()
    # Nobody waits for newcomers and absentees: a HAVE may be signed before their COMMITs are known,
    # or before one that came late.
    not_in_time = view.roles.newcomers | view.roles.absentees | view.lapses.overdue
    for sender in view.ballots.commits.keys() - not_in_time:
        lacked = _lacking(view, first, sender)
        if len(lacked & view.roles.belief.voters) >= max(1, view.roles.belief.words):
            found.add(sender)
    return found


def _denied(view: RoundView, attempt: int, short: AbstractSet[PeerId]) -> set[PeerId]:
    """Reducers that never said, in an attempt with a second call, that they hold parts of a sealed
    contribution. Parts that their sender kept back or gave late do not count."""
    said, found = said_haves(view, attempt), set[PeerId]()
    not_in_time = view.roles.newcomers | view.roles.absentees | view.lapses.overdue
    for sender in _listed(view) - short - not_in_time:
        lacking = _lacking(view, said, sender)
        found |= {peer for peer in lacking if not _may_be_untold(view, peer, attempt, sender)}
    return found


def _may_be_untold(view: RoundView, reducer: PeerId, attempt: int, sender: PeerId) -> bool:
    """Whether a reducer of an open run may have said what it holds before it knew that COMMIT.

    A liar may tell its COMMIT to some peers alone; the last of the others hears of it `relayed_s`
    later. An honest reducer that lacks a COMMIT waits for it to its deadline, so a reducer that
    speaks before that knows whom it denies.
    """
    said_s = view.lapses.said_s.get((attempt, reducer), -math.inf)
    if view.roles.belief.words < 2 or said_s < _begun_s(view) + view.config.overdue_s:
        return False
    return said_s < view.arrivals.commit_s.get(sender, math.inf) + view.config.relayed_s


def _begun_s(view: RoundView) -> float:
    """The earliest time at which the round can have begun for an honest peer.

    It begins with the COMMITs of a quorum. One of these may be this node's own, and b may be of
    liars that told them to that peer alone; the others were told to this node as well.
    """
    voters, commit_s = view.roles.electorate, view.arrivals.commit_s
    num_others = len(voters) - blocking(len(voters), view.config.trust)
    came_s = [commit_s[peer] for peer in voters if peer in commit_s and peer != view.me]
    if 0 < num_others <= len(came_s):
        return sorted(came_s)[num_others - 1]
    return view.times.started_s


def _lacking(view: RoundView, said: Mapping[PeerId, Have], sender: PeerId) -> set[PeerId]:
    """Who was among the first to hold parts of a sender, by the roster alone, and says that it
    lacks some of them."""
    return {
        peer
        for piece in view.slices
        for peer in view.gathering().owing_targets(piece, sender)
        if peer != sender and peer in said and not _holds(view, said[peer], piece, sender)
    }


def _listed(view: RoundView) -> set[PeerId]:
    """Whom the sealed LIST names."""
    sealed = view.ballots.sealed(view.seals.before)
    body = view.ballots.list_of(sealed[0].list_digest) if sealed else None
    return {sender for sender, _, _ in (view.listed(body) if body is not None else None) or ()}


def _without_sums(view: RoundView, short: AbstractSet[PeerId]) -> set[PeerId]:
    """Who said the sum (AGG or GRAM) of a slice of the sealed LIST too late or never, unless it
    lacked parts that their sender kept back."""
    sealed, found = view.ballots.sealed(view.seals.before), set[PeerId]()
    if not sealed or not view.lapses.late_to_sum:
        return found
    digest, kept_back = sealed[0].list_digest, short & _listed(view)
    said = [said_haves(view, attempt) for attempt in view.lapses.second_call_s]
    for piece in view.slices:
        owing = owing_sums(view, piece, view.agg_of(digest, piece).keys())
        if view.config.uses_gram:
            owing |= owing_sums(view, piece, view.gram_of(digest, piece).keys())
        owing &= view.lapses.late_to_sum
        owing |= {peer for peer, first in view.lapses.owed_sums if first == piece.first}
        found |= {
            peer
            for peer in owing
            if all(kept_back <= held_throughout(view, told.get(peer), piece) for told in said)
        }
    return found


def _holds(view: RoundView, body: Have, piece: Slice, sender: PeerId) -> bool:
    return sender in held_throughout(view, body, piece)


# Deadlines ----------------------------------------------------------------------------------------
#
# Learned deadlines: how long a round waits for what is usually there by then.
#
# A quantile of what was seen, times a margin, between a floor and a cap that the manifest gives.

SAMPLES_KEPT = 64
QUANTILE = 0.9
MARGIN = 2.0
"""A peer twice as late as nine of ten arrivals lately is late; below that it is only slow."""

GROWTH = 1.5
GROWTH_STEPS_MAX = 8
"""Each time-out of a round makes its deadline 1.5 times longer (R2), up to 25 times as long. An
attempt that ended because its closer was gone was not too short, and changes nothing."""


class LearnedDeadline:
    """The deadline of one phase, in seconds; fed with how long the phase took."""

    def __init__(self, *, floor_s: float, cap_s: float, rare: Rare = never) -> None:
        self._floor_s = floor_s
        self.cap_s = cap_s
        """No phase is waited for any longer, whatever was learned."""
        self._rare = rare
        self._seen_s: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._base_s = self._learned_s = float(min(floor_s, cap_s))

    def observe(self, duration_s: float) -> None:
        """Learn from one phase that came to its end. Until the round is over nobody waits less for
        it: else all that is due later in an attempt would be due at once."""
        if self._rare("deadline-forgotten"):
            self._seen_s.clear()
        else:
            self._seen_s.append(duration_s)
        learned_s = self._floor_s
        if self._seen_s:
            ordered = sorted(self._seen_s)
            # Of two the longer: a founder's first round, alone, says nothing about lines.
            rank = min(max(int(QUANTILE * (len(ordered) - 1)), 1), len(ordered) - 1)
            learned_s = MARGIN * ordered[rank]
        self._learned_s = float(min(max(learned_s, self._floor_s), self.cap_s))
        self._base_s = max(self._base_s, self._learned_s)

    def round_ended(self) -> None:
        """What was learned counts from here on."""
        self._base_s = self._learned_s

    def seconds(self, time_outs: int = 0) -> float:
        """The deadline after so many time-outs in this round; growth goes beyond the cap."""
        if not time_outs:
            return self._base_s
        return float(self._base_s * GROWTH ** min(time_outs, GROWTH_STEPS_MAX))


# Courtesy -----------------------------------------------------------------------------------------
#
# Joiners of a run with short rounds: a COMMIT is held for them, within bounds.
#
# A joiner learns of a seal, fetches what leads to it and proves its seat on it: six ways over its
# link, and its disk. Where rounds take less than that, the seal it proves itself on is always an
# old one (R11). So whoever is asked for seals, states or steps holds its COMMITs a little, and
# tells at once of the seal that it holds one on. Rounds of `HOLD_S` and longer are never held.
#
# What is held is bounded for all joiners together, however many ask and whatever they do then:
# nobody slows a run by more than `BUDGET_S`, and then by the share `REFILL` of the time.

HOLD_S = 1.0
"""So long after a round began its COMMIT is held at most."""

DEADLINE_SHARE = 0.5
"""Where others are in the round, at most for this part of what they wait for a COMMIT's parts: who
holds it is to be listed nevertheless."""

ASKED_S = 3.0
"""Whoever has not asked for so long, nor told that it is behind, is not catching up any more."""

ROUNDS_BEHIND = 2
"""Who is one round behind takes part in that round, and asks for nothing."""

BUDGET_S = 20.0
REFILL = 0.05

JOINERS_MAX = 64
"""Who is remembered: as many as there are seats."""


@dataclass(slots=True)
class Courtesy:
    """For whom COMMITs are held, and what is left of the time for it; one per RoundMachine."""

    until_s: float = -math.inf
    """Until when a COMMIT is held, or was held last."""
    _asked_s: dict[PeerId, float] = field(default_factory=dict)
    _budget_s: float = BUDGET_S
    _counted_s: float = -math.inf
    """When the budget was looked at last."""

    def asked(self, peer: PeerId, now_s: float) -> None:
        """A linked peer, which may sit here, asks for what one needs that catches up."""
        limits.keep_newest(self._asked_s, peer, now_s, JOINERS_MAX)

    def told(self, peer: PeerId, rounds_behind: int, now_s: float) -> None:
        """Its heartbeat: what it asked for takes long, as long as it is behind."""
        if rounds_behind >= ROUNDS_BEHIND and peer in self._asked_s:
            self._asked_s[peer] = now_s

    def joiners(self, now_s: float) -> frozenset[PeerId]:
        """Who is catching up."""
        for peer in [p for p, at_s in self._asked_s.items() if now_s > at_s + ASKED_S]:
            del self._asked_s[peer]
        return frozenset(self._asked_s)

    def holds(self, view: RoundView, deadline_s: float, now_s: float) -> bool:
        """Whether the own COMMIT of that round, which is ready, is to be held still.

        `deadline_s` is for how long the others wait for parts.
        """
        awaited = self._awaited(view, now_s)
        if view.own.held_until_s is None:
            others = set(view.members) - {view.me}
            most_s = min(HOLD_S, DEADLINE_SHARE * deadline_s) if others else HOLD_S
            grant_s = view.times.started_s + most_s - now_s
            is_granted = bool(awaited) and grant_s > 0.0 and self._spend(grant_s, now_s)
            view.own.held_until_s = now_s + grant_s if is_granted else -math.inf
            self.until_s = max(self.until_s, view.own.held_until_s)
        if now_s >= view.own.held_until_s:
            return False
        if not awaited:
            self._budget_s = min(BUDGET_S, self._budget_s + view.own.held_until_s - now_s)
            view.own.held_until_s = -math.inf
        return bool(awaited)

    def _awaited(self, view: RoundView, now_s: float) -> Collection[PeerId]:
        if not self._asked_s:
            return ()  # As nearly always.
        return self.joiners(now_s) - view.seats.proven - view.member_set - view.peers.convicted

    def _spend(self, wanted_s: float, now_s: float) -> bool:
        if self._counted_s > -math.inf:
            passed_s = max(0.0, now_s - self._counted_s)
            self._budget_s = min(BUDGET_S, self._budget_s + REFILL * passed_s)
        self._counted_s = now_s
        if self._budget_s < wanted_s:
            return False
        self._budget_s -= wanted_s
        return True


# Idlers -------------------------------------------------------------------------------------------
#
# A key that had a seat and never contributed to a round waits longer each time it asks again.
#
# A proof that a state is held can be made for any number of keys by one who holds it. Such a key is
# seated once, is not waited for, and loses its seat; each voter of an open run remembers that by
# itself. Friends make up no keys.

IDLERS_MAX = 4096
"""So many are remembered, the last ones."""

DOUBLINGS_MAX = 12


class Idlers:
    """Of one node: how often each idle key was seated, and until when its next seat waits."""

    def __init__(self) -> None:
        self._known: dict[PeerId, tuple[int, int]] = {}

    def saw(self, before: Roster, after: Roster, round_index: int) -> None:
        """The round was sealed: who has lost its seat without one SEAL that anybody saw."""
        for seat in before.seats:
            if seat.peer in after.member_set:
                if seat.proved >= 0:
                    self._known.pop(seat.peer, None)
                continue
            if seat.proved < 0:
                count, _ = self._known.pop(seat.peer, (0, 0))
                count = min(count + 1, DOUBLINGS_MAX)
                self._known[seat.peer] = (count, round_index + (1 << count))
        while len(self._known) > IDLERS_MAX:
            del self._known[next(iter(self._known))]

    def unwelcome(self, round_index: int) -> frozenset[PeerId]:
        """Who is not named for a seat in that round."""
        if not self._known:
            return frozenset()
        return frozenset(p for p, (_, until) in self._known.items() if round_index <= until)
