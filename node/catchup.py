"""Catching up: the chain of seals from genesis, then the state of its last one (R11).

Pure. Starts when a linked peer is two rounds ahead, or when our state diverged; asks one source at
a time and goes to the next when it stalls. A node that is one round behind needs none of this: the
messages and results of the round before are still with its peers.
"""

from dataclasses import dataclass, field

from node.chain import check_seal
from node.events import CoreAction, FetchState, Send
from node.rare import Rare, never
from protocol import limits
from protocol.errors import ProofError
from protocol.frames import WantChain
from protocol.identity import PeerId, Signer
from protocol.messages import SealCertificate, SealValue

STALL_S = 5.0
"""A source from which nothing has come for so long is given up for another."""

ROUNDS_BEHIND = 2
STUCK_S = 15.0
"""One round behind, and nothing has arrived for so long: then what the others kept of the round is
not enough, for instance because they were all restarted. The state mends it."""


@dataclass(slots=True)
class CatchUp:
    """At most one catch-up at a time.

    `wanted` is the verified seal whose state is being fetched. From then on the node must not
    adopt rounds of its own, or the state would arrive behind its head.
    """

    signer: Signer
    trust: str
    rare: Rare = never
    is_forced: bool = False
    wanted: SealCertificate | None = None
    _source: PeerId | None = None
    _target: int = 0
    _chain: list[SealCertificate] = field(default_factory=list)
    _base: SealValue | None = None
    _moved_s: float = 0.0
    _failed: set[PeerId] = field(default_factory=set)
    _behind: tuple[int, float] = (-1, 0.0)
    """The head with which somebody was first seen ahead of us, and when."""

    @property
    def source(self) -> PeerId | None:
        """The peer that is being asked, if any."""
        return self._source

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to consider while nobody is ahead of us."""
        return self._source is None and self._behind[0] < 0

    def consider(
        self, head: SealValue, rounds: dict[PeerId, int], *, moved_s: float, now_s: float
    ) -> list[CoreAction]:
        """Start if somebody is far enough ahead, or ahead at all while nothing moves here.

        `rounds` is what linked peers are working on; `moved_s` when the last bytes of the own round
        arrived.
        """
        if self._source is None and max(rounds.values(), default=0) <= head.round + 1:
            self._behind = (-1, now_s)
            return []  # Nobody is ahead of us, as nearly always.
        if self._source is not None:
            if self._source in rounds and now_s - self._moved_s < STALL_S:
                return []
            self.give_up()
        is_stuck = self._is_stuck(head, rounds, moved_s=moved_s, now_s=now_s)
        behind = 1 if self.is_forced or is_stuck else ROUNDS_BEHIND
        ahead = {p: r for p, r in rounds.items() if r >= head.round + 1 + behind}
        if not ahead:
            return []
        if not ahead.keys() - self._failed:
            self._failed.clear()
        source = max(ahead.keys() - self._failed, key=lambda peer: (ahead[peer], peer))
        self._source, self._target = source, ahead[source] - 1
        self._chain, self._base, self._moved_s = [], head, now_s
        return [Send(source, WantChain(first=head.round + 1))]

    def _is_stuck(
        self, head: SealValue, rounds: dict[PeerId, int], *, moved_s: float, now_s: float
    ) -> bool:
        if max(rounds.values(), default=0) <= head.round + 1:
            self._behind = (-1, now_s)
            return False
        if self._behind[0] != head.round:
            self._behind = (head.round, now_s)
        return now_s - max(moved_s, self._behind[1]) > STUCK_S

    def extend(
        self, peer: PeerId, seals: tuple[SealCertificate, ...], *, now_s: float
    ) -> list[CoreAction]:
        """Take in a piece of the chain from the source.

        Raises ProofError if a link does not hold: the source is then given up.
        """
        if peer != self._source or self._base is None or self.wanted is not None:
            return []
        for certificate in seals:
            last = self._chain[-1].value if self._chain else self._base
            if certificate.value.round <= last.round:
                continue  # The answer to an earlier question: nobody's fault.
            if certificate.value.round > last.round + 1:
                self.give_up()  # A link broke and came back in between: nobody's fault either.
                return []
            try:
                check_seal(last, certificate, self.signer, trust=self.trust)
            except ProofError:
                self.give_up()
                raise
            self._chain.append(certificate)
        self._moved_s = now_s
        last = self._chain[-1].value if self._chain else self._base
        if last.round < self._target:
            # A source sends so many seals per request, and not more.
            is_page_full = len(self._chain) % limits.CHAIN_PAGE_SEALS == 0
            return [Send(peer, WantChain(first=last.round + 1))] if is_page_full else []
        self.wanted = self._chain[-1]
        return [FetchState(peer, self.wanted)]

    def moved(self, peer: PeerId, *, now_s: float) -> None:
        """Bytes of the state are arriving from the source."""
        if peer == self._source:
            self._moved_s = now_s
            if self.rare("source-given-up"):
                self.give_up()

    def finish(self) -> list[SealCertificate]:
        """The state is in place: the verified links, oldest first."""
        chain, self._chain = self._chain, []
        self._source, self.is_forced, self.wanted = None, False, None
        self._failed.clear()
        return chain

    def give_up(self) -> None:
        """The source failed; `consider` takes another one next time."""
        if self._source is not None:
            self._failed.add(self._source)
        self.abandon()

    def abandon(self) -> None:
        """Stop, blaming nobody: the head went on by itself, and the chain would not fit it."""
        self._source, self.wanted = None, None
