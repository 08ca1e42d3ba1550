"""Peers that do wrong again and again are left alone for a while: strikes lead to a pause.

Pure. A pause is this node's own business: nobody is told, and nothing is proven by it. Evidence and
bans are something else.
"""

from collections.abc import Collection
from dataclasses import dataclass

from protocol.identity import PeerId

STRIKES_MAX = 10
"""At once; an honest peer may be wrong now and then, when it hears of a change too late."""

FORGOTTEN_S = 6.0
"""A strike is forgotten after so long: what goes on for ever at a tenth of a second's work each
minute needs no pause."""

PAUSE_S, PAUSE_S_MAX = 5.0, 600.0
"""The first pause costs a round or two; each further one is twice as long as the one before."""

GOOD_S = 1800.0
"""After so long without a strike, the next pause is a first one again."""

PEERS_MAX = 256
"""Peers that are remembered. Keys cost nothing, so a liar may come under many names."""


@dataclass(slots=True)
class _Record:
    """`level` counts the strikes that were not forgotten at `at_s`."""

    level: float
    at_s: float
    pause_s: float = PAUSE_S
    paused_until_s: float = float("-inf")


class Strikes:
    """Counts the strikes of each peer. Times are monotonic seconds, never going back."""

    def __init__(self) -> None:
        self._records: dict[PeerId, _Record] = {}
        self._banned: frozenset[PeerId] = frozenset()

    def ban(self, banned: Collection[PeerId]) -> tuple[PeerId, ...]:
        """Those whom the last seal bans are left alone for good; whom of them it is news of."""
        new = tuple(sorted(set(banned) - self._banned))
        self._banned = frozenset(banned)
        return new

    def strike(self, peer: PeerId, now_s: float) -> float:
        """Count a strike; how long the pause is that begins with it, 0 if none does.

        What a peer does in its pause is not counted: it was under way when the pause began.
        """
        record = self._records.pop(peer, None) or _Record(0.0, now_s)
        self._forget_one()
        self._records[peer] = record  # The latest last.
        if now_s < record.paused_until_s:
            return 0.0
        if now_s - max(record.at_s, record.paused_until_s) > GOOD_S:
            record.pause_s = PAUSE_S
        record.level = max(0.0, record.level - (now_s - record.at_s) / FORGOTTEN_S) + 1.0
        record.at_s = now_s
        # Of ten within seconds the first is half forgotten with the last, and they are ten.
        if record.level <= STRIKES_MAX - 1:
            return 0.0
        pause_s = record.pause_s
        record.level, record.paused_until_s = 0.0, now_s + pause_s
        record.pause_s = min(2.0 * pause_s, PAUSE_S_MAX)
        return pause_s

    def is_paused(self, peer: PeerId, now_s: float) -> bool:
        """Whether a peer is to be left alone now."""
        if peer in self._banned:
            return True
        record = self._records.get(peer)
        return record is not None and now_s < record.paused_until_s

    def _forget_one(self) -> None:
        """Make room: the one that struck longest ago, of those never paused if there are any."""
        if len(self._records) < PEERS_MAX:
            return
        small = (peer for peer, record in self._records.items() if record.pause_s == PAUSE_S)
        del self._records[next(small, next(iter(self._records)))]
