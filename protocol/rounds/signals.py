"""Signals that are not votes: whom an audit should look at first, by what COMMITs say.

Local and statistical. They choose audits and ban nobody, weigh in no sum and stand in no seal: else
slander by numbers would be the cheapest attack. Two of them follow from what every node has anyway:

* the length of a contribution beside those of the same round (after the penalty of EDiT,
  Cheng et al. 2024): outside three spreads in three of the last ten rounds that list it;
* the very bytes of somebody else: whoever sends them trained nothing.

Neither says "liar": a peer with other data, or one whose work somebody copied, is among them.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Commit

ROUNDS_KEPT = 10
OUTLIERS_MIN = 3
DEVIATION_MAX = 3.0
LISTED_MIN = 4
"""Of fewer there is no telling who is the odd one."""

SPREAD_MIN = 0.05
"""Of logarithms of lengths: honest peers on equal data lie 4.5 % apart (measured), and by
chance all of a round may lie closer."""

_TO_DEVIATION = 1.4826
"""From the median of absolute differences to the standard deviation of a normal distribution."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`score` from 0 to 1, for comparison alone, and what it is made of, in words."""

    score: float
    reasons: tuple[str, ...]


@dataclass(slots=True)
class _Seen:
    """Of one listed contribution: whether its length is odd, whether somebody else sent it too."""

    is_odd: bool
    is_copy: bool


def odd_lengths(listed: Sequence[tuple[PeerId, Commit]]) -> frozenset[PeerId]:
    """Whose contribution is longer or shorter than those of the others by more than three spreads.

    Whoever took fewer steps than most is expected to be shorter: by their share if all steps go the
    same way, by its root if they go any way; nothing in between is odd.
    """
    if len(listed) < LISTED_MIN:
        return frozenset()
    lengths = {peer: _log_length(commit) for peer, commit in listed}
    middle = median(lengths.values())
    spread = _TO_DEVIATION * median(abs(length - middle) for length in lengths.values())
    usual_steps = median(commit.steps for _, commit in listed)
    odd = set()
    for peer, commit in listed:
        share = math.log(max(commit.steps, 1) / max(usual_steps, 1))
        low, high = sorted((share, share / 2)) if share < 0 else (0.0, 0.0)
        away = lengths[peer] - middle
        outside = away - high if away > high else low - away
        if outside > DEVIATION_MAX * max(spread, SPREAD_MIN):
            odd.add(peer)
    return frozenset(odd)


def _log_length(commit: Commit) -> float:
    """The natural logarithm of the contribution's L2 norm; of zeros that of the least float."""
    total = math.fsum(norm * norm for norm in commit.cell_norms)
    return 0.5 * math.log(max(total, 5e-324))


def copies(listed: Sequence[tuple[PeerId, Commit]]) -> frozenset[PeerId]:
    """Who sent the very bytes that somebody else sent; it may be the one that was copied."""
    roots = [commit.root for _, commit in listed]
    return frozenset(peer for peer, commit in listed if roots.count(commit.root) > 1)


class Signals:
    """What the last sealed rounds showed of each peer."""

    def __init__(self) -> None:
        self._round = 0
        self._seen: dict[PeerId, deque[_Seen]] = {}

    def saw(self, round_index: int, listed: Sequence[tuple[PeerId, Commit]]) -> None:
        """A round is final and lists these; a round that was taken in already changes nothing."""
        if round_index <= self._round:
            return
        self._round = round_index
        odd, copied = odd_lengths(listed), copies(listed)
        for peer, _ in listed:
            seen = self._seen.pop(peer, None) or deque(maxlen=ROUNDS_KEPT)
            seen.append(_Seen(peer in odd, peer in copied))
            self._seen[peer] = seen  # The latest last.
        while len(self._seen) > limits.PARTIAL_VIEW_MAX:
            del self._seen[next(iter(self._seen))]

    def of(self, peer: PeerId) -> Suspicion | None:
        """What there is against a peer; None where it was in no round that is known here."""
        seen = self._seen.get(peer)
        if not seen:
            return None
        num_odd, num_copied = sum(s.is_odd for s in seen), sum(s.is_copy for s in seen)
        reasons, score = [], 0.0
        if num_odd >= OUTLIERS_MIN:
            reasons.append(f"length unlike the others' in {num_odd} of {len(seen)} rounds")
            score = num_odd / ROUNDS_KEPT
        if num_copied:
            reasons.append(f"the same bytes as somebody else in {num_copied} of {len(seen)} rounds")
            score = max(score, 0.5 + 0.5 * num_copied / ROUNDS_KEPT)
        return Suspicion(round(score, 3), tuple(reasons))
