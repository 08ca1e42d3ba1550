"""Whether several origins tell the same history, before a state of it is taken (R11). Pure.

A chain of seals proves that the voters of each round signed the next one, not that they signed no
other: whoever has the keys of all voters of one old round, the founder's for instance, can write
all that follows anew. A seal's digest covers everything before it, so who gives the same seal of a
late round tells the same history from genesis. Where two differ, the first seals that do lie behind
one and the same: both are checked, and two certificates of one round prove that there are two
histories. Which of them the swarm lived through, no signature tells. The seal in an invite link
does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.events import CoreAction, Send
from protocol.frames import WantChain
from protocol.identity import PeerId
from protocol.messages import SealCertificate

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
        patience_s: float = ALONE_S,
        now_s: float,
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
        new = able - self._asked.keys()
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
