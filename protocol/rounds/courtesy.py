"""Joiners of a run with short rounds: a COMMIT is held for them, within bounds. Pure.

A joiner learns of a seal, fetches what leads to it and proves its seat on it: six ways over its
link, and its disk. Where rounds take less than that, the seal it proves itself on is always an
old one (R11). So whoever is asked for seals, states or steps holds its COMMITs a little, and tells
at once of the seal that it holds one on. Rounds of `HOLD_S` and longer are never held.

What is held is bounded for all joiners together, however many ask and whatever they do then:
nobody slows a run by more than `BUDGET_S`, and then by the share `REFILL` of the time.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.rounds.round_view import RoundView

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
        self._asked_s.pop(peer, None)
        self._asked_s[peer] = now_s
        if len(self._asked_s) > JOINERS_MAX:
            del self._asked_s[next(iter(self._asked_s))]  # Dicts keep their order.

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
        if view.held_until_s is None:
            others = set(view.members) - {view.me}
            most_s = min(HOLD_S, DEADLINE_SHARE * deadline_s) if others else HOLD_S
            grant_s = view.started_s + most_s - now_s
            is_granted = bool(awaited) and grant_s > 0.0 and self._spend(grant_s, now_s)
            view.held_until_s = now_s + grant_s if is_granted else -math.inf
            self.until_s = max(self.until_s, view.held_until_s)
        if now_s >= view.held_until_s:
            return False
        if not awaited:
            self._budget_s = min(BUDGET_S, self._budget_s + view.held_until_s - now_s)
            view.held_until_s = -math.inf
        return bool(awaited)

    def _awaited(self, view: RoundView, now_s: float) -> Collection[PeerId]:
        if not self._asked_s:
            return ()  # As nearly always.
        return self.joiners(now_s) - view.proven_seats - view.member_set - view.convicted

    def _spend(self, wanted_s: float, now_s: float) -> bool:
        if self._counted_s > -math.inf:
            passed_s = max(0.0, now_s - self._counted_s)
            self._budget_s = min(BUDGET_S, self._budget_s + REFILL * passed_s)
        self._counted_s = now_s
        if self._budget_s < wanted_s:
            return False
        self._budget_s -= wanted_s
        return True
