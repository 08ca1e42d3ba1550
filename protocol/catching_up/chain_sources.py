"""Which linked peer is asked for the chain (R11): each says how far it is, a chain proves it.

Whoever says that it is far ahead and gives no link that holds costs nobody more than some moments:
it rests, longer each time, and what it says is doubted until it proves it. Whoever gives less than
it was asked for is no liar, for its line may be slow: but it is asked behind those who gave more.

`Origins` compares what several of them tell, before a state of it is taken. Pure.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.events import CoreAction, Send, SendChain
from protocol.frames import Chain, WantChain
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
        limits.keep_newest(self._pace, peer, seals / max(seconds, 1.0), DOUBTED_MAX)

    def gave_all(self, peer: PeerId) -> None:
        """It gave what it was asked for."""
        self._pace.pop(peer, None)

    def gave_nothing(self, peer: PeerId, now_s: float) -> None:
        """It was asked for a link, and gave none that holds."""
        self._tried.add(peer)
        times = self._vain.get(peer, (0, 0.0))[0] + 1
        until_s = now_s
        if times >= DOUBT_AFTER:
            until_s += min(REST_S * 2.0 ** min(times - DOUBT_AFTER, 16), REST_S_MAX)
        limits.keep_newest(self._vain, peer, (times, until_s), DOUBTED_MAX)

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


# Origins ------------------------------------------------------------------------------------------
#
# A chain of seals proves that the voters of each round signed the next one, not that they signed no
# other: whoever has the keys of all voters of one old round, the founder's for instance, can write
# all that follows anew. A seal's digest covers everything before it, so who gives the same seal of
# a late round tells the same history from genesis. Where two differ, the first seals that do lie
# behind one and the same: both are checked, and two certificates of one round prove that there are
# two histories. Which of them the swarm lived through, no signature tells. The seal in an invite
# link does.

WITNESSES_MAX = 4
"""So many are asked at a time: each costs a page of seals."""

ASKED_MAX = 1024
"""And so many in all: whoever is linked is asked once."""

ANSWER_S = 5.0
"""Nobody waits longer for the next seal of a witness."""

ALONE_S = 3.0
"""So long somebody else may come who tells the history too; in a swarm of two there is nobody."""

COMPARING_S_MAX = 30.0
"""However many come and say nothing of use."""


@dataclass(frozen=True, slots=True)
class NamedSeal:
    """A seal that whoever invited this node named: the history has it, or is another one."""

    round: int
    digest: bytes


@dataclass(slots=True)
class _Witness:
    """Of whom the seal of round `awaited` was asked; seal by seal where that was another one."""

    awaited: int
    asked_s: float
    page_from: int
    is_walking: bool = False
    is_done: bool = False


@dataclass(slots=True)
class Origins:
    """One comparison at a time: `begin`, then `ask` and `heard` until it `is_over`."""

    agreed: set[PeerId] = field(default_factory=set)
    """Who told the same history as the source."""

    source: PeerId | None = None
    """Who gave the chain that is compared, or the last link of it."""

    _asked: dict[PeerId, _Witness] = field(default_factory=dict)
    _chain: Sequence[SealCertificate] = ()
    _since_s: float = 0.0
    _patience_s: float = ALONE_S

    @property
    def is_comparing(self) -> bool:
        """Whether a chain is whole, and waits for what others say."""
        return self.source is not None

    def begin(
        self,
        chain: Sequence[SealCertificate],
        source: PeerId,
        *,
        now_s: float,
        patience_s: float = ALONE_S,
    ) -> None:
        """Compare that chain, which is verified and not empty; so long others may still come."""
        self._chain, self.source, self._since_s = chain, source, now_s
        self._patience_s = patience_s
        self._asked, self.agreed = {}, set()

    def end(self) -> None:
        """Stop comparing; who agreed stays known."""
        self._chain, self.source = (), None

    def ask(self, rounds: Mapping[PeerId, int], now_s: float) -> Iterator[CoreAction]:
        """Ask who is linked and has a part of it: for its newest seal, or for that of our last."""
        first, last = self._chain[0].value.round, self._chain[-1].value.round
        able = {peer for peer, at in rounds.items() if at - 1 >= first} - {self.source}
        new = able.difference(self._asked)
        if not new:
            return  # As nearly always.
        asked = sum(
            not one.is_done and now_s < one.asked_s + ANSWER_S for one in self._asked.values()
        )
        room = min(WITNESSES_MAX - asked, ASKED_MAX - len(self._asked))
        for peer in sorted(new, key=lambda peer: (-rounds[peer], peer))[: max(0, room)]:
            if peer not in self._asked:
                at = min(last, rounds[peer] - 1)
                self._asked[peer] = _Witness(at, now_s, at)
                yield Send(peer, WantChain(first=at))

    def is_over(self, now_s: float) -> bool:
        """Whether nobody has to be waited for any more."""
        waiting = [one for one in self._asked.values() if not one.is_done]
        if any(now_s < one.asked_s + ANSWER_S for one in waiting):
            return now_s >= self._since_s + COMPARING_S_MAX
        return bool(self.agreed) or now_s >= self._since_s + self._patience_s

    def is_asked(self, peer: PeerId) -> bool:
        """Whether what that peer sends is for this comparison."""
        witness = self._asked.get(peer)
        return self.is_comparing and witness is not None and not witness.is_done

    def heard(
        self, peer: PeerId, theirs: SealCertificate, now_s: float
    ) -> Iterator[CoreAction | SealCertificate]:
        """A seal of a witness: what to ask it next; our own seal, where theirs is another one of
        the same round behind the same seal, and its certificate is to be checked."""
        witness, index = self._asked[peer], theirs.value.round
        if index != witness.awaited:
            return  # The rest of a page that was asked for its first seal.
        first, last = self._chain[0].value.round, self._chain[-1].value.round
        ours = self._chain[index - first]
        witness.asked_s = now_s
        if ours.value.digest == theirs.value.digest:
            if not witness.is_walking:
                witness.is_done = True
                self.agreed.add(peer)
            elif index == last:
                witness.is_done = True  # First it gave another one, that nobody certified.
            else:
                witness.awaited += 1
                if witness.awaited >= witness.page_from + limits.CHAIN_PAGE_SEALS:
                    witness.page_from = witness.awaited
                    yield Send(peer, WantChain(first=witness.awaited))
        elif not witness.is_walking and index > first:
            witness.is_walking, witness.awaited, witness.page_from = True, first, first
            yield Send(peer, WantChain(first=first))
        else:
            witness.is_done = True
            yield ours
