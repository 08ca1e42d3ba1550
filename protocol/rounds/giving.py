"""Whom this node gives the state of the run, and how long the run waits for them (R11).

A joiner on a slow line needs minutes for a state. Were the others to go on meanwhile, the state
would be old when it is there, so would be the next one, and a short run would be over. So whoever
gives a state does not go more than one round ahead of it, and does not end the run: it holds its
own COMMIT while the taker makes progress. Progress is what this node sees itself: the taker asks
it for cells, or has read what it sent. What a taker says of itself counts for nothing.

That is for joiners, and one is a joiner until it has SEALed. A member that is late with its own
work, or lost its seat for it, takes what it missed as well: how long rounds wait for members is the
matter of `Patience`, and nothing is held for them besides.

What that may cost is bounded, whatever a taker does: one cap for each taker and era before it has a
seat, and one as a member. The cap is that of the deadline, and among friends what the state takes
on the slowest line that anybody waits for. In open runs, where keys cost nothing, it is one cap for
all of them together, of which a twentieth of the time comes back. And nobody holds its COMMIT
for longer than half a deadline once a quorum has committed: who sees a taker alone is listed with
the others. Pure.
"""

import math
from dataclasses import dataclass, field

from protocol import limits
from protocol.identity import PeerId
from protocol.rounds.lapses import DEADLINE_SHARE
from protocol.rounds.round_view import RoundConfig, RoundView

SLOWEST_LINE = 250_000
"""Bytes per second, 2 Mbit/s: who has a slower line than that comes when it is through."""

STILL_S = 30.0
"""Seconds without progress after which nobody waits for a taker: three of them share a line of 1
Mbit/s, and each reads a cell of a megabyte."""

PROOF_S = 3.0
"""Seconds in which a joiner that has the state proves its seat. An observer never does."""

WORK_TIMES = 2.0
"""A member that has the state while a COMMIT is held for it is awaited for so many times what this
node's work took: it has its own still to do."""

LOOK_S = 1.0
"""Seconds between two looks at the takers while a COMMIT is held."""

AHEAD_MAX = 1
"""Rounds that may be sealed behind the state that is given away: whoever takes it has to fetch
their results as well."""

SHORT_ROUND = 0.25
"""Share of the cap: of a round whose work takes less, the result takes a slow line longer than the
work takes the others. So none of these is sealed meanwhile."""

COMES_BACK = 0.05
"""Open runs: the share of the time that comes back of what was spent on all takers."""

ERA_OF_TAKERS = 256
"""Rounds after which each taker has a whole cap again."""

ROUNDS_MAX = 4
"""Rounds under way of which that is remembered."""

TAKERS_MAX = 64
"""Takers that are remembered: as many as there are seats."""

SPENT_MAX = 1024
"""Takers of whom it is remembered what was spent on them in this era, and peers that SEALed."""


_Account = tuple[PeerId, bool]
"""A taker, and whether it has a seat."""


@dataclass(slots=True)
class _Taker:
    state: int
    """The round of the seal whose state it takes: the newest when it began."""

    moved_s: float
    heard_s: float
    """When something of it was heard last."""
    here_s: float = math.inf
    """When it was as far as this node: then it has what it took, and takes anew if it needs to."""


@dataclass(frozen=True, slots=True)
class Ending:
    """When the run ends, as this node knows: with its round `last`, or with the one under way."""

    last: int
    is_now: bool = False


def taking_cap_s(config: RoundConfig) -> float:
    """What each taker may cost in an era; in open runs all of them together."""
    if config.trust == "open":
        return config.deadline_cap_s
    return config.deadline_cap_s + sum(config.cell_sizes.state) / SLOWEST_LINE


@dataclass(slots=True)
class Giving:
    """One per RoundMachine. `cap_s` is what each taker may cost in an era."""

    cap_s: float
    is_open: bool = False
    until_s: float = -math.inf
    """When the rules are to look again whether a COMMIT is held."""

    _takers: dict[PeerId, _Taker] = field(default_factory=dict)
    _spent_s: dict[_Account, float] = field(default_factory=dict)
    _spent_era: int = 0
    _all_s: float = 0.0
    """Spent on all takers of an open run, less what came back."""
    _sealed: dict[PeerId, int] = field(default_factory=dict)
    """Whose SEAL a roster has shown, and the last round with that roster: these join no more."""
    _took_s: dict[bytes, float] = field(default_factory=dict)
    """By basis, what the own work of a round took."""
    _held: bytes = b""
    """The basis of the round whose COMMIT was held at the last look, and for whom."""
    _held_for: frozenset[_Account] = frozenset()
    _looked_s: float = -math.inf
    _noted: bytes = b""
    """The basis of the round whose roster was noted last."""

    def gave(self, peer: PeerId, newest: int, now_s: float) -> None:
        """A peer that may sit here asks for seals, or for cells of a state or sealed result, or has
        read some. `newest` is the round of the last seal."""
        taker = self._takers.get(peer)
        if taker is None or taker.here_s < math.inf:
            limits.keep_newest(self._takers, peer, _Taker(newest, now_s, now_s), TAKERS_MAX)
        else:
            taker.moved_s = taker.heard_s = now_s

    def told(self, peer: PeerId, rounds_behind: int, now_s: float) -> None:
        """Its heartbeat: whether it is as far as this node."""
        taker = self._takers.get(peer)
        if taker is None:
            return
        taker.heard_s = now_s
        if rounds_behind <= 0:
            taker.here_s = min(taker.here_s, now_s)

    def left(self, peer: PeerId) -> None:
        """Its link is gone; what was spent on it is remembered."""
        self._takers.pop(peer, None)

    def is_giving(self, now_s: float, *, ended_s: float) -> bool:
        """Whether somebody makes progress who is not as far as this node, whose run ended then:
        that it stays for a taker counts as what the taker cost before."""
        return any(
            taker.here_s == math.inf
            and now_s < taker.moved_s + STILL_S
            and self._spent_s.get((peer, False), 0.0) + now_s - ended_s < self.cap_s
            for peer, taker in self._takers.items()
        )

    def num_held_for(self, basis: bytes) -> int:
        """For how many takers the COMMIT of that round was held at the last look."""
        return len(self._held_for) if self._held == basis else 0

    def holds(self, view: RoundView, ending: Ending, *, deadline_s: float, now_s: float) -> bool:
        """Whether the own COMMIT of that round, which is ready, is to be held still."""
        self._note_sealers(view)
        if not (self._takers or self._held):
            return False  # As nearly always.
        self._charge(view, now_s)
        if view.basis not in self._took_s:
            took_s = now_s - view.times.started_s
            limits.keep_newest(self._took_s, view.basis, took_s, ROUNDS_MAX)
        awaited = frozenset(p for p in self._takers if self._is_awaited(p, view, ending, now_s))
        opened_s = view.times.opened_s
        if opened_s is not None and now_s >= opened_s + DEADLINE_SHARE * deadline_s:
            awaited = frozenset()
        if awaited:
            members = view.member_set
            self._held = view.basis
            self._held_for = frozenset((peer, peer in members) for peer in awaited)
            self.until_s = now_s + LOOK_S
            if opened_s is not None:
                self.until_s = min(self.until_s, opened_s + DEADLINE_SHARE * deadline_s)
        elif self._held == view.basis:
            self._held, self._held_for = b"", frozenset()
        return bool(awaited)

    def _note_sealers(self, view: RoundView) -> None:
        """Once a round, whoever takes anything: a member may take first when its seat is lost."""
        if view.basis == self._noted:
            return
        self._noted = view.basis
        for seat in view.roster.seats:
            if seat.proved >= 0:
                limits.keep_newest(self._sealed, seat.peer, view.index, SPENT_MAX)

    def _charge(self, view: RoundView, now_s: float) -> None:
        """Count what passed since the last look, if a COMMIT was held then."""
        era = view.index // ERA_OF_TAKERS
        if era != self._spent_era:
            self._spent_era = era
            self._spent_s.clear()
        passed_s = max(0.0, now_s - self._looked_s) if self._looked_s > -math.inf else 0.0
        self._all_s = max(0.0, self._all_s - COMES_BACK * passed_s)
        self._looked_s = now_s
        if not self._held:
            return
        # A round may have ended without the own COMMIT: from then on nothing was held.
        held_s = min(passed_s, LOOK_S)
        self._all_s += held_s
        for account in self._held_for:
            spent_s = self._spent_s.get(account, 0.0) + held_s
            limits.keep_newest(self._spent_s, account, spent_s, SPENT_MAX)

    def _is_awaited(self, peer: PeerId, view: RoundView, ending: Ending, now_s: float) -> bool:
        taker, is_member = self._takers[peer], peer in view.member_set
        took_s = self._took_s[view.basis]
        free = taker.state + (0 if took_s < SHORT_ROUND * self.cap_s else AHEAD_MAX)
        if not is_member:
            # Who has its seat with the last seal contributes to nothing: so with the one before.
            free = min(free, view.index - 1 if ending.is_now else ending.last - 2)
        if view.index <= free or self._is_spent(peer, is_member=is_member):
            return False
        if view.index < self._sealed.get(peer, -ERA_OF_TAKERS) + ERA_OF_TAKERS:
            return False  # It joins no more: it is late with its own work.
        if peer in view.seats.proven or peer in view.peers.convicted.union(view.ballots.commits):
            return False
        if now_s > taker.heard_s + view.config.grace_s:
            return False  # It is silent for as long as makes a member suspected.
        if taker.here_s < math.inf and is_member:
            # Who was here before this node was ready works at its usual pace.
            was_late = taker.here_s > view.times.started_s + took_s
            return was_late and now_s < taker.here_s + max(PROOF_S, WORK_TIMES * took_s)
        if taker.here_s < math.inf:
            return now_s < taker.here_s + PROOF_S
        return now_s < taker.moved_s + STILL_S

    def _is_spent(self, peer: PeerId, *, is_member: bool) -> bool:
        if self.is_open:
            return self._all_s >= self.cap_s
        return self._spent_s.get((peer, is_member), 0.0) >= self.cap_s
