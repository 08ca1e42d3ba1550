"""Evidence: two signed statements of one peer that no honest peer signs both; or one of a sum or of
work, and that more voters than may lie found another.

It proves itself: whoever holds it can check it alone, so it needs no writer, and who passes on
evidence that proves nothing is at fault. Of one peer and accusation a single piece is kept, the
one of the lowest rank: so replicas that found different pairs end with the same one.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated

from blake3 import blake3

from protocol import limits
from protocol.entries import SignedHeader, Version, contradict
from protocol.entry_kinds import Accusation
from protocol.errors import DecodeError, ProofError
from protocol.identity import PeerId, Signer
from protocol.messages import (
    FilledSlot,
    Kind,
    Outcome,
    Roster,
    SealValue,
    SignedMessage,
    Slot,
    Verdict,
    body_digest,
    decode_body,
    segment_subject,
)
from protocol.wire import Digest, Peer, Signature, Size, decode, encode

_EVIDENCE_DOMAIN = b"barnraise/evidence/1"

_Statement = Annotated[bytes, Size(1, limits.STATEMENT_BYTES_MAX)]
_Finding = Annotated[bytes, Size(1, limits.EVIDENCE_BYTES_MAX - 1 * limits.KIB)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A voter's signature under an AGG, a GRAM or a VERDICT."""

    voter: Peer
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What more voters than may lie say of a slice, so that it is what its parts give.

    `basis` is the seal that names them, `body` the digest of what they all signed in the slot of
    the accused; `words` ascend by voter.
    """

    basis: SealValue
    body: Digest
    words: Annotated[tuple[Word, ...], Size(1, limits.SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFinding:
    """What more voters than may lie say of a segment, so that it is so; else as Finding."""

    basis: SealValue
    verdict: Verdict
    words: Annotated[tuple[Word, ...], Size(1, limits.SEATS_MAX)]


BY_WORDS = frozenset({Accusation.WRONG_SUM, Accusation.WRONG_WORK, Accusation.WRONG_VERDICT})
"""What the words of voters show: larger than what the accused signed by itself."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`first` and `second` are encoded SignedHeaders or FilledSlots, in ascending order; of a wrong
    sum a Finding, which is always the lower, and the FilledSlot of the accused. Of wrong work a
    WorkFinding and the FilledSlot of the COMMIT; of a wrong verdict that and the whole VERDICT."""

    version: Version
    run: Digest
    accusation: Accusation
    subject: Peer
    first: _Finding
    second: _Statement

    def __post_init__(self) -> None:
        is_small = len(self.first) <= limits.STATEMENT_BYTES_MAX
        if not (is_small or self.accusation in BY_WORDS):
            raise ValueError("a statement too long")
        if self.first >= self.second:
            raise ValueError("the two statements must ascend")

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, made once."""
        return encode(self)

    @cached_property
    def entry_id(self) -> bytes:
        """Names the evidence."""
        return blake3(_EVIDENCE_DOMAIN + self.encoded).digest()

    @cached_property
    def cut(self) -> int:
        """The stamp from which on nothing of the subject counts.

        Of a fork the lower stamp of the two: what was said before is not in doubt. Who signed two
        messages in one slot has no such before: 0.
        """
        if self.accusation is not Accusation.FORK:
            return 0
        halves = (decode(SignedHeader, self.first), decode(SignedHeader, self.second))
        return min(half.header.stamp for half in halves)

    @property
    def rank(self) -> tuple[int, bytes]:
        """Of the same peer and accusation the lowest is kept: the earliest cut."""
        return self.cut, self.entry_id


_FIRST_BYTE = bytes([0x90 + len(fields(Evidence))])


def is_evidence(data: bytes) -> bool:
    """Whether `data` can only be evidence, and no entry: they have different numbers of fields."""
    return data[:1] == _FIRST_BYTE


def fork_evidence(first: SignedHeader, second: SignedHeader) -> Evidence:
    """The proof that the writer of both contradicted itself. They must `contradict`."""
    assert contradict(first.header, second.header)
    low, high = sorted((encode(first), encode(second)))
    return Evidence(
        version=first.header.version,
        run=first.header.run,
        accusation=Accusation.FORK,
        subject=first.header.writer,
        first=low,
        second=high,
    )


def two_messages_evidence(first: SignedMessage, second: SignedMessage) -> Evidence:
    """The proof that the sender of both filled one slot twice. They must be two in one slot."""
    assert (first.slot, first.sender) == (second.slot, second.sender)
    return _of_both(Accusation.TWO_MESSAGES, first, second)


def _of_both(accusation: Accusation, first: SignedMessage, second: SignedMessage) -> Evidence:
    """Two messages of one sender that it must not both have signed, in the order of their bytes."""
    low, high = sorted((encode(first.filled), encode(second.filled)))
    return Evidence(
        version=1,
        run=first.slot.run,
        accusation=accusation,
        subject=first.sender,
        first=low,
        second=high,
    )


def words_needed(num_voters: int) -> int:
    """So many voters of an open run that not all of them lie: fewer than a third may."""
    return (num_voters - 1) // 3 + 1


def may_be_accused(basis: SealValue, peer: PeerId) -> bool:
    """Whether the words of voters can show that this peer's sum is wrong.

    Of fewer than four voters not one may lie, and which of two that differ did cannot be told.
    """
    roster = basis.roster
    is_judged = may_judge_voters(roster) or peer not in roster.voter_set
    return is_judged and peer in roster.member_set


def may_judge_voters(roster: Roster) -> bool:
    """Whether the words of voters can convict one of them: of fewer than four not one may lie."""
    return len(roster.voters) > 3


def wrong_sum_evidence(
    basis: SealValue, said: SignedMessage, others: tuple[SignedMessage, ...]
) -> Evidence:
    """The proof that a reducer said what the parts do not give. `others` are the AGGs or GRAMs of
    so many voters as are needed, by ascending voter, with one body and in its slot.

    Raises ProofError where it is too large to travel: a seal of many seats and returned leases.
    """
    assert may_be_accused(basis, said.sender)
    assert {message.slot for message in others} == {said.slot}
    finding = Finding(basis=basis, body=others[0].filled.body, words=_words(others))
    return _by_words(Accusation.WRONG_SUM, finding, said, encode(said.filled))


def wrong_work_evidence(
    basis: SealValue, commit: SignedMessage, verdict: Verdict, others: tuple[SignedMessage, ...]
) -> Evidence:
    """The proof that a COMMIT's work does not lead where it says. `others` are the VERDICTs of so
    many voters as are needed, by ascending voter, which all say that one.

    Raises ProofError as `wrong_sum_evidence`.
    """
    assert may_be_accused(basis, commit.sender)
    assert (verdict.commit, verdict.outcome) == (commit.digest, Outcome.WRONG)
    finding = WorkFinding(basis=basis, verdict=verdict, words=_words(others))
    return _by_words(Accusation.WRONG_WORK, finding, commit, encode(commit.filled))


def wrong_verdict_evidence(
    basis: SealValue, said: SignedMessage, verdict: Verdict, others: tuple[SignedMessage, ...]
) -> Evidence:
    """The proof that somebody called work wrong which is right; as `wrong_work_evidence`."""
    assert may_be_accused(basis, said.sender)
    assert verdict.outcome is Outcome.RIGHT
    finding = WorkFinding(basis=basis, verdict=verdict, words=_words(others))
    return _by_words(Accusation.WRONG_VERDICT, finding, said, said.encoded)


def two_retracts_evidence(first: SignedMessage, second: SignedMessage) -> Evidence:
    """The proof that the sender of both took back two contributions soon after each other."""
    assert first.sender == second.sender
    return _of_both(Accusation.TWO_RETRACTS, first, second)


def _words(others: tuple[SignedMessage, ...]) -> tuple[Word, ...]:
    return tuple(Word(voter=m.sender, signature=m.signature) for m in others)


def _by_words(
    accusation: Accusation, finding: Finding | WorkFinding, said: SignedMessage, second: bytes
) -> Evidence:
    first = encode(finding)
    if len(first) + len(second) > limits.EVIDENCE_BYTES_MAX - limits.KIB:
        raise ProofError(f"a finding of {len(first)} bytes")
    return Evidence(
        version=1,
        run=said.slot.run,
        accusation=accusation,
        subject=said.sender,
        first=first,
        second=second,
    )


def decode_evidence(data: bytes, run: bytes, signer: Signer) -> Evidence:
    """The evidence that `data` encodes, checked: what it returns convicts.

    Raises DecodeError for other bytes, ProofError if it proves nothing.
    """
    evidence = decode(Evidence, data, max_bytes=limits.EVIDENCE_BYTES_MAX)
    if evidence.run != run:
        raise DecodeError("evidence of another run")
    if evidence.accusation is Accusation.FORK:
        _check_fork(evidence, signer)
    elif evidence.accusation is Accusation.WRONG_SUM:
        _check_sum(evidence, signer)
    elif evidence.accusation is Accusation.WRONG_WORK:
        _check_work(evidence, signer)
    elif evidence.accusation is Accusation.WRONG_VERDICT:
        _check_verdict(evidence, signer)
    elif evidence.accusation is Accusation.TWO_RETRACTS:
        _check_retracts(evidence, signer)
    else:
        _check_messages(evidence, signer)
    return evidence


def _check_sum(evidence: Evidence, signer: Signer) -> None:
    """The accused signed the slot, and so the seal that names its judges: nobody chose them."""
    finding, said = decode(Finding, evidence.first), decode(FilledSlot, evidence.second)
    _check_whose(evidence, said.slot.run, said.sender)
    if said.slot.kind not in (Kind.AGG, Kind.GRAM) or finding.body == said.body:
        raise ProofError("no sum, or words for the same one")
    _check_words(finding, said, said.slot, finding.body, signer)


def _check_work(evidence: Evidence, signer: Signer) -> None:
    finding, commit = decode(WorkFinding, evidence.first), decode(FilledSlot, evidence.second)
    verdict = finding.verdict
    _check_whose(evidence, commit.slot.run, commit.sender)
    if commit.slot.kind is not Kind.COMMIT or verdict.commit != commit.digest:
        raise ProofError("words of another contribution")
    if verdict.outcome is not Outcome.WRONG:
        raise ProofError("words that do not call that work wrong")
    subject = segment_subject(verdict.commit, verdict.segment)
    slot = replace(commit.slot, kind=Kind.VERDICT, subject=subject)
    _check_words(finding, commit, slot, body_digest(encode(verdict)), signer)


def _check_verdict(evidence: Evidence, signer: Signer) -> None:
    """Who could not open it said so, and is not convicted: of links nobody else knows."""
    finding = decode(WorkFinding, evidence.first)
    message = decode(SignedMessage, evidence.second)
    said, verdict = decode_body(message), finding.verdict
    _check_whose(evidence, message.slot.run, message.sender)
    if not isinstance(said, Verdict) or said.outcome is not Outcome.WRONG:
        raise ProofError("no VERDICT that calls work wrong")
    is_same = (said.commit, said.segment) == (verdict.commit, verdict.segment)
    if not is_same or verdict.outcome is not Outcome.RIGHT:
        raise ProofError("words of another segment, or not for its being right")
    _check_words(finding, message.filled, message.slot, body_digest(encode(verdict)), signer)


def _check_words(
    finding: Finding | WorkFinding, said: FilledSlot, slot: Slot, body: bytes, signer: Signer
) -> None:
    """That enough voters of the seal which names the round of `said` signed that body in `slot`,
    and the accused what it is accused of."""
    basis, voters = finding.basis, [word.voter for word in finding.words]
    if said.slot.basis != basis.digest:
        raise ProofError("nothing of a round of that seal")
    if voters != sorted(set(voters)) or not basis.roster.voter_set.issuperset(voters):
        raise ProofError("words of others than voters, each once")
    if said.sender in voters or not may_be_accused(basis, said.sender):
        raise ProofError("words that say nothing of that peer")
    if len(voters) != words_needed(len(basis.roster.voters)):
        raise ProofError("words of another number of voters")
    words = [
        FilledSlot(slot=slot, sender=word.voter, body=body, signature=word.signature)
        for word in finding.words
    ]
    if not all(word.is_signed(signer) for word in (said, *words)):
        raise ProofError("words that nobody signed")


def _check_retracts(evidence: Evidence, signer: Signer) -> None:
    halves = [decode(FilledSlot, half) for half in (evidence.first, evidence.second)]
    for half in halves:
        _check_whose(evidence, half.slot.run, half.sender)
    rounds = [half.slot.round for half in halves]
    if {half.slot.kind for half in halves} != {Kind.RETRACT}:
        raise ProofError("no two RETRACTs")
    if not 0 < abs(rounds[0] - rounds[1]) <= limits.RETRACT_ROUNDS:
        raise ProofError("RETRACTs of one round, or far apart")
    if not all(half.is_signed(signer) for half in halves):
        raise ProofError("a RETRACT that its sender did not sign")


def _check_fork(evidence: Evidence, signer: Signer) -> None:
    halves = [decode(SignedHeader, half) for half in (evidence.first, evidence.second)]
    for half in halves:
        _check_whose(evidence, half.header.run, half.header.writer)
    if not contradict(halves[0].header, halves[1].header):
        raise ProofError("two entries that do not contradict each other")
    if not all(half.is_signed(signer) for half in halves):
        raise ProofError("an entry that its writer did not sign")


def _check_messages(evidence: Evidence, signer: Signer) -> None:
    halves = [decode(FilledSlot, half) for half in (evidence.first, evidence.second)]
    for half in halves:
        _check_whose(evidence, half.slot.run, half.sender)
    if halves[0].slot != halves[1].slot or halves[0].body == halves[1].body:
        raise ProofError("two messages that may stand beside each other")
    if not all(half.is_signed(signer) for half in halves):
        raise ProofError("a message that its sender did not sign")


def _check_whose(evidence: Evidence, run: bytes, peer: PeerId) -> None:
    if run != evidence.run or peer != evidence.subject:
        raise ProofError("a statement of another run or peer than the accused")
