"""Which linked peer is asked for the chain (R11): each says how far it is, a chain proves it. Pure.

Whoever says that it is far ahead and gives no link that holds costs nobody more than some moments:
it rests, longer each time, and what it says is doubted until it proves it. Whoever gives less than
it was asked for is no liar, for its line may be slow: but it is asked behind those who gave more.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.events import CoreAction, Send, SendChain
from protocol.frames import Chain
from protocol.identity import PeerId
from protocol.messages import SealCertificate

DOUBT_AFTER = 3
"""So often a source may give nothing: its line may be slow, or it is busy."""

REST_S, REST_S_MAX = 10.0, 600.0
"""So long a doubted source is not asked again; twice as long each time."""

DOUBTED_MAX = 1024
"""Peers that are remembered for having given nothing."""

_NOBODY: frozenset[PeerId] = frozenset()


@dataclass(slots=True)
class ChainSources:
    """Who was asked for the chain, and what came of it."""

    _tried: set[PeerId] = field(default_factory=set)
    """Asked lately: others come first."""

    _pace: dict[PeerId, float] = field(default_factory=dict)
    """Seals per second of whoever was given up, or in whose place somebody else was asked."""

    _vain: dict[PeerId, tuple[int, float]] = field(default_factory=dict)
    """How often in a row a peer gave nothing, and until when it rests."""

    def choose(self, ahead: Mapping[PeerId, int], now_s: float) -> PeerId | None:
        """Of the peers that say that they are ahead, by their rounds, the one to ask now."""
        able = {peer for peer in ahead if self._vain.get(peer, (0, 0.0))[1] <= now_s}
        if not able - self._tried:
            self._tried.clear()
        return max(able - self._tried, key=lambda peer: self._rank(peer, ahead), default=None)

    def _rank(self, peer: PeerId, ahead: Mapping[PeerId, int]) -> tuple[float, int, PeerId]:
        return self._pace.get(peer, math.inf), ahead[peer], peer

    def has_other(self, ahead: Mapping[PeerId, int], source: PeerId, now_s: float) -> bool:
        """Whether somebody else could be asked before that source is asked again."""
        others = ahead.keys() - self._tried - {source}
        return any(self._vain.get(peer, (0, 0.0))[1] <= now_s for peer in others)

    def pass_over(self, peer: PeerId) -> None:
        """Ask others first; nobody is to blame."""
        self._tried.add(peer)

    def fell_short(self, peer: PeerId, seals: int, seconds: float) -> None:
        """It was asked for a page, or for all that it has, and gave so many links of it so far."""
        self._pace.pop(peer, None)
        self._pace[peer] = seals / max(seconds, 1.0)
        if len(self._pace) > DOUBTED_MAX:
            del self._pace[next(iter(self._pace))]

    def gave_all(self, peer: PeerId) -> None:
        """It gave what it was asked for."""
        self._pace.pop(peer, None)

    def gave_nothing(self, peer: PeerId, now_s: float) -> None:
        """It was asked for a link, and gave none that holds."""
        self._tried.add(peer)
        times = self._vain.pop(peer, (0, 0.0))[0] + 1
        until_s = now_s
        if times >= DOUBT_AFTER:
            until_s += min(REST_S * 2.0 ** min(times - DOUBT_AFTER, 16), REST_S_MAX)
        self._vain[peer] = (times, until_s)
        if len(self._vain) > DOUBTED_MAX:
            del self._vain[next(iter(self._vain))]

    def proved(self, peer: PeerId) -> None:
        """It gave a link that holds."""
        self._vain.pop(peer, None)

    @property
    def doubted(self) -> frozenset[PeerId]:
        """Who said that it is ahead, and has not shown it however often it was asked."""
        if not self._vain:  # As nearly always.
            return _NOBODY
        return frozenset(peer for peer, (times, _) in self._vain.items() if times >= DOUBT_AFTER)

    def arrived(self) -> None:
        """What was wanted is here: everybody may be asked again."""
        self._tried.clear()


# Chain pages --------------------------------------------------------------------------------------
#
# The chain of seals for a peer that catches up, a page at a time (R11).


def chain_page(chain: Sequence[SealCertificate], peer: PeerId, first: int) -> Iterator[CoreAction]:
    """What a peer gets that asks for the seals from round `first` on; never genesis.

    `chain` are the newest seals; older ones are only in the journal.
    """
    first = max(1, first)
    known = first - chain[0].value.round
    if known < 0:
        yield SendChain(peer, first)
        return
    seals = chain[known : known + limits.CHAIN_PAGE_SEALS]
    step = limits.CHAIN_SEALS_PER_FRAME_MAX
    for start in range(0, len(seals), step):
        yield Send(peer, Chain(seals=tuple(seals[start : start + step])))
