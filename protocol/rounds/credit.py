"""Who did the work of a run: contribution receipts as a pure function of its sealed rounds.

A seal names the COMMITs that it counts by their digests, and its clock is a function of them (R9).
So a COMMIT that a seal lists is the receipt of its sender: nobody writes one for itself, and
whoever has the chain and the COMMITs adds up the same credits. The tokens of a round are in the
seals alone; where its COMMITs are gone, its tokens count, and whose they are is not proven.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from protocol import limits
from protocol.errors import DecodeError, LedgerError, ProofError
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import (
    Commit,
    Kind,
    Peer,
    Round,
    SealCertificate,
    SealClock,
    SealValue,
    SignedMessage,
    decode_body,
    is_signed,
)
from protocol.rounds.admission import claim_breach
from protocol.rounds.chain import check_seal, genesis, named_by, num_forgotten, num_in_flight
from protocol.rounds.roster import ClockRules, ListedContribution, next_clock
from protocol.wire import Digest, Range, Size

CREDITS_MAX = 4096
"""Peers in a Folded. Beyond it the least tokens become unproven ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What one peer contributed: the rounds that listed it, its samples and tokens in them."""

    peer: Peer
    rounds: Annotated[int, Range(0, limits.ROUNDS_MAX)]
    samples: Annotated[int, Range(0, 2**62)]
    tokens: Annotated[int, Range(0, 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """The credits of rounds 1 to `round`, added up by a node that no longer keeps their COMMITs.

    `seal` is the seal of that round, genesis' at 0. `genesis_root` is of the state that all began
    with: it makes genesis, and the first seal is signed on that.
    """

    run: Digest
    shard: Annotated[int, Range(0, limits.SHARDS_MAX)]
    genesis_root: Digest
    round: Round
    seal: Digest
    credits: Annotated[tuple[Credit, ...], Size(0, CREDITS_MAX)]


def nothing_folded(start: SealValue) -> Folded:
    """The beginning of a ledger: genesis, and no credit."""
    return Folded(
        run=start.run,
        shard=start.shard,
        genesis_root=start.root,
        round=0,
        seal=start.digest,
        credits=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatement:
    """The ledger of a run up to the seal of `round`.

    The tokens of all `credits`, `drift_tokens` and `unproven_tokens` are `tokens`, what the seal
    says. `folded` is the round up to which the credits are the word of whoever kept them, with no
    COMMIT to show. `unproven` are spans [first, last] of later rounds whose COMMITs are missing.
    Samples [0, `cursor`) were leased: used, `unused` that came back, `forgotten`, or `in_flight`,
    for a round behind this one that was under way beside it (R5).
    """

    run: bytes
    shard: int
    round: int
    seal: bytes
    tokens: int
    credits: tuple[Credit, ...]
    drift_tokens: int
    folded: int
    unproven: tuple[tuple[int, int], ...]
    unproven_tokens: int
    cursor: int
    unused: int
    forgotten: int
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class ChainRound:
    """A round of the chain, and the COMMITs that it lists in their order; None if some are gone."""

    certificate: SealCertificate
    commits: tuple[SignedMessage, ...] | None


def prove(
    certificates: Iterable[SealCertificate], folded: Folded, commits: Iterable[SignedMessage]
) -> Iterator[ChainRound]:
    """The rounds of a chain, each with its COMMITs where all that it lists are among `commits`."""
    by_digest = {message.digest: message for message in commits}
    for certificate in certificates:
        value = certificate.value
        is_whole = value.round > folded.round and by_digest.keys() >= set(value.commits)
        listed = tuple(by_digest[name] for name in value.commits) if is_whole else None
        yield ChainRound(certificate, listed)


class Ledger:
    """Adds up sealed rounds, one after another from the first.

    With a signer every signature on the way is checked, and nothing is taken on anybody's word but
    the credits in `folded`; without one the certificates are those of one's own chain.
    """

    def __init__(
        self,
        manifest: RunManifest,
        folded: Folded,
        *,
        signer: Signer | None = None,
        start: SealValue | None = None,
    ) -> None:
        """Raises LedgerError if `folded` is of another run. `start` is genesis where others than
        the founder alone have seats in it: in worlds."""
        self._manifest = manifest
        self._rules = ClockRules.from_manifest(manifest)
        self._signer = signer
        self._folded = folded
        self._head = start or genesis(manifest, folded.shard, folded.genesis_root).value
        self._before = self._head
        """The seal before the head; of genesis genesis."""
        self._totals: dict[PeerId, Credit] = {}
        self._drift_tokens = 0
        self._unproven: list[tuple[int, int]] = []
        self._unproven_tokens = 0
        if folded.run != manifest.digest:
            raise LedgerError.at(0, "the credits are of another run than the manifest")
        if folded.round == 0 and (folded.credits or folded.seal != self._head.digest):
            raise LedgerError.at(0, "credits, and no round that they are of")

    @property
    def head(self) -> SealValue:
        """The seal that was added last, or genesis."""
        return self._head

    def needs_commits(self, value: SealValue) -> bool:
        """Whether the next round is to be proven by the COMMITs that it lists."""
        return value.round > self._folded.round

    def add(self, certificate: SealCertificate, commits: Sequence[SignedMessage] | None) -> None:
        """Take the next round in, with the COMMITs that it lists in their order; None: not known.

        Raises LedgerError naming the round if it does not follow, or does not follow from them.
        """
        value, before = certificate.value, self._head
        self._check_link(before, certificate)
        gained = value.clock.tokens - before.clock.tokens
        if gained < 0:
            raise LedgerError.at(value.round, "fewer tokens than the seal before")
        if not self.needs_commits(value):
            self._take_folded(value)
        elif commits is None and value.commits:
            self._unproven_tokens += gained
            last = self._unproven.pop() if self._unproven else (value.round, value.round - 1)
            if last[1] == value.round - 1:
                self._unproven.append((last[0], value.round))
            else:
                self._unproven += [last, (value.round, value.round)]
        else:
            self._take_proven(before, value, commits or ())
        self._head, self._before = value, before

    @property
    def _named(self) -> SealValue | None:
        """The seal that names the round behind the head, where two are in flight (R5)."""
        return self._before if self._rules.lag > 1 else None

    def statement(self) -> LedgerStatement:
        """What the rounds so far add up to; most tokens first.

        Raises LedgerError where the chain ends before the round up to which credits were folded.
        """
        value, clock = self._head, self._head.clock
        if value.round < self._folded.round:
            raise LedgerError.at(
                value.round, f"credits up to round {self._folded.round}, and no seal"
            )
        in_flight = num_in_flight(self._before, self._rules) if value.round else 0
        return LedgerStatement(
            run=value.run,
            shard=value.shard,
            round=value.round,
            seal=value.digest,
            tokens=clock.tokens,
            credits=ranked(self._totals.values()),
            drift_tokens=self._drift_tokens,
            folded=self._folded.round,
            unproven=tuple(self._unproven),
            unproven_tokens=self._unproven_tokens,
            cursor=clock.cursor,
            unused=sum(gap.stop - gap.first for gap in clock.unused),
            forgotten=num_forgotten(
                clock,
                self._rules.tokens_each,
                drift_tokens=self._drift_tokens,
                in_flight=in_flight,
            ),
            in_flight=in_flight,
        )

    def _check_link(self, before: SealValue, certificate: SealCertificate) -> None:
        value, index = certificate.value, before.round + 1
        if (value.run, value.shard, value.round) != (before.run, before.shard, index):
            raise LedgerError.at(index, "its place has a seal of another run, shard or round")
        _, basis = named_by(before, self._named)
        if (value.before, value.basis) != (before.digest, basis):
            raise LedgerError.at(index, "it does not follow the seal before")
        if self._signer is None:
            return
        try:
            trust = self._manifest.trust
            check_seal(before, certificate, self._signer, trust=trust, named=self._named)
        except ProofError as error:
            raise LedgerError.at(index, str(error)) from error

    def _take_folded(self, value: SealValue) -> None:
        """Nothing of the rounds that were folded, and all of them at the last one."""
        folded = self._folded
        if value.round < folded.round:
            return
        if value.digest != folded.seal:
            raise LedgerError.at(value.round, "the credits up to it are of another chain")
        peers = [credit.peer for credit in folded.credits]
        if peers != sorted(set(peers)):
            raise LedgerError.at(value.round, "the credits up to it are not in the order of peers")
        unknown = value.clock.tokens - sum(credit.tokens for credit in folded.credits)
        if unknown < 0:
            raise LedgerError.at(value.round, "the credits up to it are more than its tokens")
        self._totals = {credit.peer: credit for credit in folded.credits}
        self._unproven_tokens = unknown

    def _take_proven(
        self, before: SealValue, value: SealValue, commits: Sequence[SignedMessage]
    ) -> None:
        named, _ = named_by(before, self._named)
        listed = self._listed(named, value, commits)
        expected = next_clock(before, listed, self._rules, basis=named)
        drift = value.clock.tokens - expected.tokens if value.drifts else 0
        if drift:
            expected = _with_drift(expected, value.clock)
        if drift < 0 or expected != value.clock:
            raise LedgerError.at(value.round, "its clock does not follow from the COMMITs it lists")
        self._drift_tokens += drift
        for entry in listed:
            add_credit(self._totals, entry.sender, entry.commit)

    def _listed(
        self, named: SealValue, value: SealValue, commits: Sequence[SignedMessage]
    ) -> list[ListedContribution]:
        if tuple(message.digest for message in commits) != value.commits:
            raise LedgerError.at(value.round, "other COMMITs than it lists")
        listed = []
        for message in commits:
            commit = self._commit(value, message)
            listed.append(ListedContribution(message.sender, commit, is_proved=False))
        senders = [entry.sender for entry in listed]
        if senders != sorted(set(senders)) or not named.roster.member_set.issuperset(senders):
            raise LedgerError.at(value.round, "it lists somebody twice, or who has no seat")
        return listed

    def _commit(self, value: SealValue, message: SignedMessage) -> Commit:
        index, slot = value.round, message.slot
        try:
            body = decode_body(message)
        except DecodeError as error:
            raise LedgerError.at(index, f"a COMMIT is malformed: {error}") from error
        place = (slot.run, slot.shard, slot.round, slot.basis)
        is_commit = isinstance(body, Commit) and slot.kind is Kind.COMMIT
        if not is_commit or place != (value.run, value.shard, index, value.basis):
            raise LedgerError.at(index, "it lists what is no COMMIT to it")
        assert isinstance(body, Commit)
        if wrong := claim_breach(self._rules, samples=body.samples, tokens=body.tokens):
            raise LedgerError.at(index, f"a COMMIT claims {wrong}")
        if self._signer is not None and not is_signed(message, self._signer):
            raise LedgerError.at(index, "a COMMIT is not signed by its sender")
        return body


def _with_drift(expected: SealClock, sealed: SealClock) -> SealClock:
    """R4: the clock of a round that took up drifts. Their tokens belong to who contributed to the
    lost branch; whose they are is in its seals, and no COMMIT of this chain says it."""
    return replace(expected, tokens=sealed.tokens, ends_run=sealed.ends_run)


def add_credit(totals: dict[PeerId, Credit], peer: PeerId, commit: Commit) -> None:
    """Count one listed COMMIT."""
    had = totals.get(peer) or Credit(peer=peer, rounds=0, samples=0, tokens=0)
    totals[peer] = Credit(
        peer=peer,
        rounds=had.rounds + 1,
        samples=had.samples + commit.samples,
        tokens=had.tokens + commit.tokens,
    )


def ranked(totals: Iterable[Credit]) -> tuple[Credit, ...]:
    """Most tokens first; of equal ones the lowest peer id."""
    return tuple(sorted(totals, key=lambda credit: (-credit.tokens, credit.peer)))
