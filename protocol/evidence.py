"""Evidence: two signed statements of one peer that no honest peer signs both.

It proves itself: whoever holds it can check it alone, so it needs no writer, and who passes on
evidence that proves nothing is at fault. Of one peer and accusation a single piece is kept, the
one of the lowest rank: so replicas that found different pairs end with the same one.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated

from blake3 import blake3

from protocol import limits
from protocol.crdt import Writer
from protocol.entries import SignedHeader, Version, contradict
from protocol.entry_kinds import Accusation
from protocol.errors import DecodeError, ProofError
from protocol.identity import PeerId, Signer
from protocol.messages import SignedMessage
from protocol.slots import FilledSlot
from protocol.wire import Digest, Size, decode, encode

_EVIDENCE_DOMAIN = b"barnraise/evidence/1"

_Statement = Annotated[bytes, Size(1, limits.EVIDENCE_BYTES_MAX // 2)]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`first` and `second` are encoded SignedHeaders or FilledSlots, in ascending order."""

    version: Version
    run: Digest
    accusation: Accusation
    subject: Writer
    first: _Statement
    second: _Statement

    def __post_init__(self) -> None:
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
    low, high = sorted((encode(first.filled), encode(second.filled)))
    return Evidence(
        version=1,
        run=first.slot.run,
        accusation=Accusation.TWO_MESSAGES,
        subject=first.sender,
        first=low,
        second=high,
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
    else:
        _check_messages(evidence, signer)
    return evidence


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
