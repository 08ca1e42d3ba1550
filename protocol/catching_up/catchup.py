"""Catching up: the chain of seals from genesis, then the state of its last one (R11).

Pure. Starts when a linked peer is two rounds ahead, or when our state diverged. The chain comes
from one source, and the next goes on where it stalls: a link that was checked stays. The state
comes from all who are past its seal, cell by cell (`protocol.catching_up.cell_fetch`), or is made
from the own one by the results of the rounds between, whatever takes fewer bytes.

Nobody chases: a state that is begun is fetched to its end, though the swarm goes on meanwhile, and
the rounds behind it are stepped through. A node that is one round behind needs none of this: the
messages and results of the round before are still with its peers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.catching_up.cell_fetch import STALL_S, CellBatch, CellFetch
from protocol.catching_up.chain_sources import ALONE_S, ChainSources, NamedSeal, Origins
from protocol.errors import ProofError
from protocol.events import (
    Accuse,
    CellsFetched,
    CoreAction,
    Fault,
    FetchBegun,
    FetchedWrong,
    FetchEvent,
    FetchState,
    FetchSteps,
    Send,
    StateFailed,
    StepFailed,
)
from protocol.frames import Bulk, WantChain, wants
from protocol.grid import CellSizes
from protocol.histories import HistoryKnown, KeptChain, TwoHistories, double_signers
from protocol.identity import PeerId, Signer
from protocol.messages import SealCertificate, SealValue
from protocol.rounds.chain import check_seal
from protocol.rounds.round_config import Rare, never

# Progress -----------------------------------------------------------------------------------------
#
# How far catching up is, for people.


@dataclass(frozen=True, slots=True)
class CatchUpProgress:
    """How far a node is: `done` of `total` seals of the chain, or bytes of state or results."""

    what: str
    round: int
    done: int
    total: int
    sources: int
    bytes_per_s: float

    @property
    def text(self) -> str:
        """For people: `state of round 42: 40 % from 3 peers, 12.0 MiB/s`."""
        share = 100 * self.done // self.total if self.total else 100
        if self.what == "chain":
            return f"seals up to round {self.round}: {share} % checked"
        peers = "1 peer" if self.sources == 1 else f"{self.sources} peers"
        what = "state of" if self.what == "state" else "results up to"
        rate = f"{self.bytes_per_s / limits.MIB:.1f} MiB/s"
        return f"{what} round {self.round}: {share} % from {peers}, {rate}"


# Catchup ------------------------------------------------------------------------------------------

__all__ = ["STALL_S", "STUCK_S", "CatchUp"]

ROUNDS_BEHIND = 2
STUCK_S = 15.0
"""One round behind, and nothing has arrived for so long: then what the others kept of the round is
not enough, for instance because they were all restarted. The state mends it."""

BACK_WITHIN_S = 3.0
"""A connection that broke is there again within so long: its peer is asked for the rest at the rate
that it gave, and what is on the disk is not read again."""

PAGE_S = 60.0
"""A page of the chain that takes longer is asked of somebody else, who may have a faster line."""

LACKED_S = 1.0
"""Where all say that they lack what was asked of them, the chain goes on after such a pause: by
then it leads further."""


WATCHED_SEALS_MAX = 4096
"""A chain from one origin is kept so far for comparing it with later ones: some 10 MB."""


@dataclass(slots=True)
class CatchUp:
    """At most one catch-up at a time.

    `wanted` is the verified seal whose state is being fetched. From then on the node must not
    adopt rounds of its own, or the state would arrive behind its head. `begun` is the digest of a
    seal of whose state so many bytes are on the disk.
    """

    signer: Signer
    trust: str
    sizes: CellSizes
    rare: Rare = never
    is_forced: bool = False
    wanted: SealCertificate | None = None
    begun: tuple[bytes, int] = (b"", 0)
    _source: PeerId | None = None
    _target: int = 0
    _is_compared: bool = False
    """Whether that was done since the start: what comes behind is a continuation of it."""

    _giver: PeerId | None = None
    """Who gave the last link of the chain."""
    _chain: list[SealCertificate] = field(default_factory=list)
    _base: SealValue | None = None
    _named: SealValue | None = None
    """The seal before that, where two rounds are in flight (R5): it names the round behind it."""
    _asked: int = 0
    """The round from which on the last page was asked for."""
    _moved_s: float = 0.0
    _not_before_s: float = -math.inf
    _page_s: float = 0.0  # When the last page was asked for.
    sources: ChainSources = field(default_factory=ChainSources)
    origins: Origins = field(default_factory=Origins)
    watch: Origins = field(default_factory=Origins)
    """Goes on asking others where the history is that of one origin alone."""

    _kept: KeptChain | None = None
    told: NamedSeal | None = None
    """The seal that the invite link names; set before anything is handled."""
    is_torn: bool = False
    """Whether two histories were found: then nothing is taken of either."""
    _behind: tuple[int, float] = (-1, 0.0)
    """The head with which somebody was first seen ahead of us, and when."""
    _fetch: CellFetch | None = None
    _able_s: float = 0.0  # When somebody was last in reach who has the state.
    _fetched: bytes = b""
    """The seal whose state was fetched last: from there on it is steps."""
    _vain: set[bytes] = field(default_factory=set)
    """Seals whose state nobody gave, and such from which nobody gave the steps."""

    @property
    def source(self) -> PeerId | None:
        """The peer that is being asked for the chain, if any."""
        return self._source

    @property
    def is_busy(self) -> bool:
        """Whether a chain or a state is under way; not of a source that has never proved itself."""
        if self.wanted is not None:
            return True
        return self._source is not None and self._source not in self.sources.doubted

    @property
    def is_at_rest(self) -> bool:
        """Whether there is nothing to consider while nobody is ahead of us."""
        return self._source is None and self.wanted is None and self._behind[0] < 0

    def progress(self, now_s: float) -> CatchUpProgress | None:
        """How far it is; None if nothing is under way."""
        fetch, wanted = self._fetch, self.wanted
        if fetch is not None and wanted is not None:
            what = "state" if _is_state(fetch) else "rounds"
            rate = fetch.rate(now_s)
            done, total = fetch.here_bytes, fetch.total_bytes
            return CatchUpProgress(what, wanted.value.round, done, total, fetch.num_givers, rate)
        if self._source is None or self._base is None:
            return None
        total = self._target - self._base.round
        return CatchUpProgress("chain", self._target, len(self._chain), total, 1, 0.0)

    # The chain ----------------------------------------------------------------------------------

    def consider(
        self,
        head: SealValue,
        rounds: Mapping[PeerId, int],
        *,
        moved_s: float,
        now_s: float,
        named: SealValue | None = None,
    ) -> list[CoreAction]:
        """Start if somebody is far enough ahead, or ahead at all while nothing moves here.

        `rounds` is what linked peers are working on; `moved_s` when the last bytes of the own round
        arrived; `named` the seal before the head where that names the round (R5).
        """
        if self.wanted is not None or now_s < self._not_before_s or self.is_torn:
            return []
        if self.origins.is_comparing:
            return self._compare(rounds, now_s)
        if self._source is None and max(rounds.values(), default=0) <= head.round + 1:
            self._behind = (-1, now_s)
            return []  # Nobody is ahead of us, as nearly always.
        is_stuck = self._is_stuck(head, rounds, moved_s=moved_s, now_s=now_s)
        behind = 1 if self.is_forced or is_stuck else ROUNDS_BEHIND
        ahead = {p: r for p, r in rounds.items() if r >= head.round + 1 + behind}
        if self.told is not None and self.told.round > head.round:
            # Whoever is not as far as the link says has no history that could be told from others.
            ahead = {p: r for p, r in ahead.items() if r > self.told.round}
        if self._source is not None and self._goes_on(rounds, ahead, now_s):
            return []
        source = self.sources.choose(ahead, now_s)
        if source is None:
            return []
        self._source, self._target, self._moved_s = source, ahead[source] - 1, now_s
        if self._base is None or self._base.digest != head.digest:
            self._chain, self._base, self._giver = [], head, None
        self._named = named
        return self._go_on(now_s)

    def _goes_on(
        self, rounds: Mapping[PeerId, int], ahead: Mapping[PeerId, int], now_s: float
    ) -> bool:
        """Whether to wait for the source: else it is given up, and what it gave stays."""
        source = self._source
        assert source is not None
        if source not in rounds:
            self.give_up()
        elif now_s - self._moved_s >= STALL_S:
            self.sources.gave_nothing(source, now_s)
            self._fell_short(source, now_s)
        elif now_s - self._page_s >= PAGE_S and self.sources.has_other(ahead, source, now_s):
            self._fell_short(source, now_s)
        else:
            self._target = max(self._target, rounds[source] - 1)
            return True
        return False

    def _fell_short(self, source: PeerId, now_s: float) -> None:
        self.sources.fell_short(source, self._last.round - self._asked + 1, now_s - self._page_s)
        self.give_up()

    def _is_stuck(
        self, head: SealValue, rounds: Mapping[PeerId, int], *, moved_s: float, now_s: float
    ) -> bool:
        if max(rounds.values(), default=0) <= head.round + 1:
            self._behind = (-1, now_s)
            return False
        if self._behind[0] != head.round:
            self._behind = (head.round, now_s)
        return now_s - max(moved_s, self._behind[1]) > STUCK_S

    def _go_on(self, now_s: float) -> list[CoreAction]:
        """Ask for the next page, or fetch what the whole chain leads to."""
        assert self._source is not None
        last = self._last
        if last.round < self._target:
            self._asked, self._page_s = last.round + 1, now_s
            return [Send(self._source, WantChain(first=self._asked))]
        return self._confirm(now_s)

    def _check_told(self, value: SealValue) -> None:
        """Raise ProofError where the invite link names another seal: all of that chain is given up,
        for where it left the other one nobody knows."""
        told = self.told
        if told is not None and value.round == told.round and value.digest != told.digest:
            self._chain, self._giver = [], None
            raise ProofError(
                f"a history of this run that is not the one of the invite link, which has another "
                f"seal of round {told.round}: {told.digest.hex()[:12]}"
            )

    # Other origins ------------------------------------------------------------------------------

    def _confirm(self, now_s: float) -> list[CoreAction]:
        """The chain is whole. One that leads far is compared with those of others first: whoever
        is some rounds behind goes on from what it knows itself."""
        assert self._base is not None
        assert self._source is not None
        is_far = self._last.round - self._base.round > limits.RESULT_ROUNDS_KEPT
        if self._is_compared or not (is_far or self._base.round == 0):
            return self._begin(now_s)
        # In a run of a few rounds nobody waits for others: who comes later is asked all the same.
        patience_s = ALONE_S if is_far else 0.0
        self.origins.begin(tuple(self._chain), self._source, patience_s=patience_s, now_s=now_s)
        return []  # Whoever is linked is asked at once: `consider` is behind every event.

    def look_around(self, rounds: Mapping[PeerId, int], now_s: float) -> list[CoreAction]:
        """Ask whoever comes later, while the history is that of one origin alone: a node that was
        led to a forged one first is not to stay with it."""
        return list(self.watch.ask(rounds, now_s)) if self.is_alone else []

    @property
    def is_alone(self) -> bool:
        """Whether the history was taken from one origin, and nothing but its word shows it."""
        return self.watch.is_comparing

    def _compare(self, rounds: Mapping[PeerId, int], now_s: float) -> list[CoreAction]:
        asked = list(self.origins.ask(rounds, now_s))
        if asked or not self.origins.is_over(now_s):
            return asked
        return self._compared(now_s)

    def _compared(self, now_s: float) -> list[CoreAction]:
        assert self._source is not None
        last = self._last.round
        if last < self._target:
            self.origins.end()
            return self._go_on(now_s)
        is_named = self.told is not None and self.told.round <= last
        known = HistoryKnown(last, self._source, len(self.origins.agreed), is_named)
        self._kept = self._kept_now
        if not self.origins.agreed and not is_named and len(self._chain) <= WATCHED_SEALS_MAX:
            self.watch.begin(self._kept.chain, self._source, now_s=now_s)
        self.origins.end()
        self._is_compared = True
        return [known, *self._begin(now_s)]

    @property
    def _kept_now(self) -> KeptChain:
        assert self._base is not None
        return KeptChain(self._base, self._named, tuple(self._chain))

    def _witnessed(
        self, peer: PeerId, seals: tuple[SealCertificate, ...], now_s: float
    ) -> list[CoreAction]:
        """What another origin says. Raises ProofError where its seal does not hold."""
        actions: list[CoreAction] = []
        is_now = self.origins.is_asked(peer)
        origins, kept = (self.origins, self._kept_now) if is_now else (self.watch, self._kept)
        assert kept is not None
        for theirs in seals:
            if not origins.is_asked(peer):
                break
            for found in origins.heard(peer, theirs, now_s):
                if not isinstance(found, SealCertificate):
                    actions.append(found)
                    continue
                before, named = kept.before(theirs.value.round)
                check_seal(before, theirs, self.signer, trust=self.trust, named=named)
                assert origins.source is not None
                actions += self._torn(TwoHistories(found, theirs, origins.source, peer))
        return actions

    def _torn(self, found: TwoHistories) -> Iterator[CoreAction]:
        """Two certificates of one round: who signed both is convicted, and nothing is taken.

        Unless the invite link names one of the two: then the other is the forged one.
        """
        for evidence in double_signers(found.ours, found.theirs):
            yield Accuse(evidence)
        if self.told is not None and self.told.round >= found.ours.value.round:
            reason = "a second history of this run: the invite link names the other one"
            yield Fault(found.witness, reason)
            return
        yield found
        self.is_torn = True
        self.abandon()
        self.watch.end()

    @property
    def _last(self) -> SealValue:
        assert self._base is not None
        return self._chain[-1].value if self._chain else self._base

    @property
    def _before_last(self) -> SealValue | None:
        """The seal before the last one."""
        known = [self._named, self._base, *(link.value for link in self._chain)]
        return known[-2]

    def extend(
        self, peer: PeerId, seals: tuple[SealCertificate, ...], *, now_s: float
    ) -> list[CoreAction]:
        """Take in a piece of the chain from the source.

        Raises ProofError if a link does not hold: the source is then given up.
        """
        is_watched = peer != self._source and self.watch.is_asked(peer)
        if is_watched or (self.wanted is None and self.origins.is_asked(peer)):
            return self._witnessed(peer, seals, now_s)
        if peer != self._source or self._base is None or self.wanted is not None:
            return []
        if self.origins.is_comparing:
            return []  # It is whole.
        for certificate in seals:
            last = self._last
            if certificate.value.round <= last.round:
                continue  # The answer to an earlier question: nobody's fault.
            if certificate.value.round > last.round + 1:
                self.give_up()  # A link broke and came back in between: nobody's fault either.
                return []
            try:
                named = self._before_last if self._named is not None else None
                check_seal(last, certificate, self.signer, trust=self.trust, named=named)
                self._check_told(certificate.value)
            except ProofError:
                if self._giver not in (None, peer) and self._chain:
                    # Behind what somebody else gave: who of the two lies is to be seen.
                    self.origins.begin(tuple(self._chain), self._giver, now_s=now_s)
                    self._giver = peer
                    return []
                self.sources.gave_nothing(peer, now_s)
                self.give_up()
                raise
            self._chain.append(certificate)
            self._giver = peer
            self._moved_s = now_s
            self.sources.proved(peer)
        # A source sends so many seals per request, and not more.
        is_page_full = self._last.round - self._asked + 1 >= limits.CHAIN_PAGE_SEALS
        if self._last.round < self._target and not is_page_full:
            return []
        self.sources.gave_all(peer)
        return self._go_on(now_s)

    # The state ----------------------------------------------------------------------------------

    def _begin(self, now_s: float) -> list[CoreAction]:
        """The chain is whole: what takes the fewest bytes leads to its last seal.

        From a state that was just fetched it is steps in any case: another one would take as long,
        and leave as many rounds behind it.
        """
        assert self._base is not None
        chain = self._chain[: self._target - self._base.round]
        state_bytes = sum(self.sizes.state)
        is_near = self._base.digest == self._fetched or self._step_bytes(chain) <= state_bytes
        is_vain = self._base.digest in self._vain
        if is_near and _are_kept(chain) and not (is_vain or self.is_forced):
            return self._fetch_steps(chain, now_s)
        certificate = chain[-1]
        for number, seal in enumerate(chain, 1):
            if seal.value.digest == self.begun[0] and self.begun[0] not in self._vain:
                behind = chain[number:]
                is_less = self._step_bytes(behind) < self.begun[1]
                certificate = seal if is_less and _are_kept(behind) else certificate
        return self.fetch_state(certificate, now_s=now_s)

    def _step_bytes(self, steps: Sequence[SealCertificate]) -> int:
        rounds = (step.value.round for step in steps if step.value.commits)
        return sum(sum(self.sizes.result_of(index)) for index in rounds)

    def fetch_state(self, certificate: SealCertificate, *, now_s: float) -> list[CoreAction]:
        """Fetch the state of a seal that was verified; its sources are those whom `pull` names."""
        self.wanted, self._source = certificate, None
        self._able_s = now_s
        batch = CellBatch(Bulk.STATE, certificate.value.digest, self.sizes.state)
        self._fetch = CellFetch([batch], now_s=now_s)
        return [FetchState(certificate)]

    def _fetch_steps(self, steps: Sequence[SealCertificate], now_s: float) -> list[CoreAction]:
        self.wanted, self._source, self._able_s = steps[-1], None, now_s
        batches = [
            CellBatch(Bulk.STEP, step.value.digest, self.sizes.result_of(step.value.round))
            for step in steps
            if step.value.commits
        ]
        self._fetch = CellFetch(batches, now_s=now_s)
        return [FetchSteps(tuple(steps))]

    def take(self, event: FetchEvent, *, now_s: float) -> Iterator[CoreAction]:
        """What the edge tells of the fetch; what follows at once."""
        fetch, wanted = self._fetch, self.wanted
        if fetch is None or wanted is None:
            return
        match event:
            case FetchBegun(basis=basis, held=held) if basis == wanted.value.digest:
                fetch.begin(held, now_s=now_s)
            case CellsFetched(peer=peer, subject=subject, cells=cells):
                fetch.arrived(peer, subject, cells, now_s=now_s)
                if _is_state(fetch):
                    self.begun = (subject, fetch.here_bytes)
                if self.rare("source-given-up"):
                    fetch.rest(peer, now_s=now_s)
            case FetchedWrong(peer=peer):
                fetch.lied(peer)
            case StepFailed(subject=subject):
                liar = fetch.redo(subject)
                if liar is not None:
                    yield Fault(liar, "sent a result that does not lead to the sealed state")
            case StateFailed(basis=basis) if basis == wanted.value.digest:
                self.fail(now_s=now_s)
            case _:
                pass  # Of a fetch that was given up.

    def pull(
        self, rounds: Mapping[PeerId, int], *, lag_s: float, now_s: float
    ) -> Iterator[CoreAction]:
        """Ask for cells that are due, of linked peers that are past the wanted seal.

        `lag_s` is by how much this node itself is late of late.
        """
        fetch, wanted = self._fetch, self.wanted
        if fetch is None or wanted is None:
            return
        able = {peer for peer, at_round in rounds.items() if at_round > wanted.value.round}
        if able:
            self._able_s = now_s
        elif now_s > self._able_s + BACK_WITHIN_S and not fetch.is_whole:
            self.abandon()  # What is here stays, for when somebody is back.
            return
        for peer, subject, bulk, cells in fetch.due(able, lag_s=lag_s, now_s=now_s):
            for want in wants(bulk, subject, cells):
                yield Send(peer, want)
        if fetch.is_lacked(able):
            self.fail(now_s=now_s, pause_s=LACKED_S)
        elif fetch.is_hopeless(now_s, lag_s=lag_s):
            self.fail(now_s=now_s)

    def lacks(self, peer: PeerId, bulk: Bulk, subject: bytes) -> None:
        """A source says that it has nothing of what it was asked for."""
        if self._fetch is not None:
            self._fetch.lacks(peer, bulk, subject)

    def is_asked(self, peer: PeerId, subject: bytes, cell: int) -> bool:
        """Whether that peer was asked for that cell, and it has not come."""
        return self._fetch is not None and self._fetch.is_asked(peer, subject, cell)

    def moved(self, peer: PeerId, *, now_s: float) -> None:
        """Bytes of the state are arriving from a source."""
        if self._fetch is not None:
            self._fetch.moved(peer, now_s=now_s)

    # The end ------------------------------------------------------------------------------------

    def finish(self) -> list[SealCertificate]:
        """The state is in place: the verified links up to it, oldest first."""
        assert self.wanted is not None
        rounds = self.wanted.value.round - (self._base.round if self._base else 0)
        chain = self._chain[:rounds]
        known = [self._base, *(link.value for link in chain)]
        self._named = known[-2] if self._named is not None and len(known) > 1 else self._named
        self._chain, self._base = self._chain[rounds:], self.wanted.value
        self._fetched, self.begun = self.wanted.value.digest, (b"", 0)
        self._source, self.is_forced, self.wanted, self._fetch = None, False, None, None
        self.sources.arrived()
        self._vain.clear()
        return chain

    def fail(self, *, now_s: float, pause_s: float = STALL_S) -> None:
        """Nobody gives that state, or these steps: after a pause it is another way."""
        self._not_before_s = now_s + pause_s
        if self.wanted is not None and self._fetch is not None:
            seal = self.wanted.value if _is_state(self._fetch) else self._base
            if seal is not None:
                self._vain.add(seal.digest)
        self.abandon()

    def give_up(self) -> None:
        """The source of the chain failed; `consider` takes another one next time."""
        if self._source is not None:
            self.sources.pass_over(self._source)
        self._source = None

    def abandon(self) -> None:
        """Stop, blaming nobody. What was verified stays; `consider` sees whether it is of use."""
        self._source, self.wanted, self._fetch = None, None, None
        self.origins.end()

    def overtaken(self) -> None:
        """The head went on by itself: the chain does not fit it, the state is not needed."""
        self.abandon()
        self.begun = (b"", 0)


def _are_kept(steps: Sequence[SealCertificate]) -> bool:
    """Whether peers still have the results of these rounds, of which the last is the newest."""
    return len(steps) <= limits.RESULT_ROUNDS_KEPT


def _is_state(fetch: CellFetch) -> bool:
    return any(batch.bulk is Bulk.STATE for batch in fetch.batches)
