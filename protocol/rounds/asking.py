"""What was asked for in a round, of whom, and when it is time to ask again. Pure."""

import math
from dataclasses import dataclass, field

from protocol.identity import PeerId

RETRY_GROWTH = 1.5
RETRY_GROWTH_STEPS_MAX = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom some cells were asked of last, when, and how often they were asked for."""

    source: PeerId
    at_s: float
    count: int


@dataclass(slots=True, kw_only=True)
class Asking:
    """`asked` says of whom the cells of a subject from some cell on were asked last, `moved_s` when
    bytes of a subject came from a peer; whoever is among `suspects` is waited for no longer.
    """

    suspects: frozenset[PeerId]
    asked: dict[tuple[bytes, int], Asked] = field(default_factory=dict)
    moved_s: dict[tuple[bytes, PeerId], float] = field(default_factory=dict)

    def rare(self, name: str) -> bool:
        """Whether a rare branch is taken (`protocol.rounds.rare`)."""
        raise NotImplementedError

    def is_moving(self, subject: bytes, source: PeerId, *, now_s: float, within_s: float) -> bool:
        """Whether bytes of a subject came from a peer so lately."""
        return now_s - self.moved_s.get((subject, source), -math.inf) < within_s

    def ask_due_s(self, subject: bytes, first: int, retry_s: float) -> float:
        """When cells may be asked for that were asked for before.

        At once if their source is suspected; else when nothing has come from it for a while, which
        is longer each time: on a slow line a second answer is what delays the first.
        """
        asked = self.asked[subject, first]
        if asked.source in self.suspects:
            return asked.at_s
        moved_s = self.moved_s.get((subject, asked.source), asked.at_s)
        growth = RETRY_GROWTH ** min(asked.count - 1, RETRY_GROWTH_STEPS_MAX)
        return max(asked.at_s, moved_s) + retry_s * growth

    def may_ask(self, subject: bytes, first: int, *, now_s: float, retry_s: float) -> bool:
        """Whether there is no reason to wait before these cells are asked for."""
        is_new = (subject, first) not in self.asked
        return is_new or now_s >= self.ask_due_s(subject, first, retry_s)

    def ask(
        self, subject: bytes, first: int, sources: list[PeerId], *, now_s: float, retry_s: float
    ) -> PeerId | None:
        """Whom to ask for these cells, each source in turn; None while there is reason to wait."""
        asked = self.asked.get((subject, first))
        if not self.may_ask(subject, first, now_s=now_s, retry_s=retry_s):
            return None
        count = 0 if asked is None else asked.count
        source = sources[(count + self.rare("other-source")) % len(sources)]
        self.asked[subject, first] = Asked(source, now_s, count + 1)
        return source
