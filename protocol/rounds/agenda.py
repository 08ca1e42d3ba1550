"""When the rules of a round are to be asked again: at once, or not before a known time. Pure.

Most messages of a round are one more VOTE or SEAL, after which nobody has anything to do. To ask
all rules after each of them would be most of what a node computes in a round.
"""

import math

from protocol.events import CellsArrived, LocalRoundEvent, SeatChecked, StatusHeard, Tick
from protocol.frames import Bulk
from protocol.messages import Kind
from protocol.rounds.agreement import due_times
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.proposal import lacking_senders
from protocol.rounds.round_view import RoundView
from protocol.rounds.supply import lists_to_sum, retry_times

POLLS_PER_DEADLINE = 4
"""While a round is open, the rules are asked so often though nothing happens."""

IDLE_S = 60.0
ROUNDING_S = 1e-6


def is_idle(event: LocalRoundEvent, view: RoundView, is_early: bool) -> bool:
    """Whether an event that was taken in gives no rule anything to do; `is_early` is of a Tick."""
    match event:
        case Tick():
            return is_early
        case StatusHeard():
            return True  # Unless it is the one that ends the silence, which the machine sees.
        case CellsArrived(subject=subject) if subject == view.own.commit:
            return False  # Back after a restart: they are to be pushed.
        case CellsArrived(bulk=Bulk.RESULT, subject=subject):
            # Whoever sums may have its own sum back after a restart, and pushes it.
            return bool(view.cells.missing_results(subject)) and not view.own_slices()
        case CellsArrived():
            # For a HAVE that waits for nobody else, or for a sum.
            has_said = view.me in view.ballots.of(Kind.HAVE, view.attempt)
            has_said_again = view.me in view.ballots.of(Kind.HOLD, view.attempt)
            if view.attempt in view.lapses.second_call_s and not has_said_again:
                return False  # It may be the last of what is to be said that it is held.
            # Once a few are late alone, it counts for how long.
            lacking = lacking_senders(view) - view.waits.given_up
            is_gathered = not has_said and len(lacking) <= view.roles.few
            return not (is_gathered or lists_to_sum(view))
        case SeatChecked():
            return view.own.contribution is None or bool(view.own.commit)
        case _:
            return False


class Agenda:
    """What one RoundMachine remembers of the last time it asked its rules."""

    def __init__(self, now_s: float) -> None:
        self.wakeup_s = now_s
        self._due_s = now_s
        self._quiet_until_s = now_s
        self._poll_s = IDLE_S
        self._settled: tuple[bytes, int, int] | None = None
        self.beside: RoundView | None = None
        """The round that is under way beside the one it is asked about (R5)."""

    def is_quiet(self, view: RoundView, now_s: float, *, with_pulls: bool = True) -> bool:
        """Whether no rule has more to do than when all were asked last, as far as messages go; or
        none but to ask again for bytes."""
        until_s = self._quiet_until_s if with_pulls else self._due_s
        return self._settled == self._news(view) and now_s < until_s

    def _news(self, view: RoundView) -> tuple[bytes, int, int]:
        return view.basis, view.ballots.news, self.beside.ballots.news if self.beside else 0

    def disturb(self) -> None:
        """Something else than a message has changed the round."""
        self._settled = None

    def settle(
        self,
        view: RoundView,
        deadline: LearnedDeadline,
        *,
        others_s: tuple[float, ...],
        now_s: float,
    ) -> None:
        """All rules were asked until none had more to do; at `others_s` something else is due."""
        deadline_s = deadline.seconds(view.times.time_outs)
        due_s = math.inf
        for time_s in (*others_s, *due_times(view, deadline)):
            if now_s < time_s < due_s:
                due_s = time_s
        # The rules subtract where this adds: due by the one may be a rounding late by the other.
        past_s, quiet_until_s = now_s - ROUNDING_S, due_s
        for time_s in retry_times(view, deadline_s, now_s=past_s):
            if past_s < time_s < quiet_until_s:
                quiet_until_s = time_s
        self._due_s, self._quiet_until_s = due_s, quiet_until_s
        self._poll_s = IDLE_S if view.times.opened_s is None else deadline_s / POLLS_PER_DEADLINE
        self._settled = self._news(view)

    def plan(self, now_s: float) -> None:
        """Set when a Tick is due if nothing happens before."""
        self.wakeup_s = min(self._due_s, now_s + self._poll_s)
