"""Slots: the places for signatures.

Two different messages of one sender in one slot convict it (R2). `Slot.subject` is what the place
belongs to besides the attempt: for SEAL the seal before, for GRAM and AGG the LIST and the slice,
which is why they survive a new attempt.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from blake3 import blake3

from protocol import limits
from protocol.identity import PeerId, Signer
from protocol.wire import Digest, DigestOrEmpty, Peer, Range, Signature, encode

_SLICE_DOMAIN = b"barnraise/slice/1"
_SEGMENT_DOMAIN = b"barnraise/segment/1"
_LIST_DOMAIN = b"barnraise/list/1"
_MESSAGE_DOMAIN = b"barnraise/message/1"

Round = Annotated[int, Range(0, limits.ROUNDS_MAX)]


class Kind(IntEnum):
    """What a signed message says. The numbers are the wire's; 13 and 15 belong to open runs."""

    SEAT = 1
    COMMIT = 2
    HAVE = 3
    LIST = 4
    VOTE = 5
    GRAM = 6
    AGG = 7
    SEAL = 8
    NEWATTEMPT = 9
    LEAVE = 10
    PVOTE = 11
    PSEAL = 12
    VERDICT = 13
    RETRACT = 15
    HOLD = 16


_WITHOUT_ATTEMPT = frozenset(
    {Kind.SEAT, Kind.COMMIT, Kind.GRAM, Kind.AGG, Kind.LEAVE, Kind.VERDICT, Kind.RETRACT}
)
_WITH_SUBJECT = frozenset({Kind.GRAM, Kind.AGG, Kind.SEAL, Kind.PSEAL, Kind.VERDICT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A signature's place.

    `basis` is the digest of the seal that named the roster. `attempt` is 0 for kinds that do not
    belong to one: SEAT, COMMIT, GRAM, AGG, LEAVE, VERDICT, RETRACT. `subject` is empty for all but
    GRAM, AGG, SEAL, PSEAL and VERDICT. Other values are refused: they would be second places for
    one statement, in which its sender could contradict itself unconvicted.
    """

    run: Digest
    shard: Annotated[int, Range(0, limits.SHARDS_MAX)]
    round: Round
    basis: Digest
    attempt: Annotated[int, Range(0, limits.ATTEMPTS_MAX)]
    kind: Kind
    subject: DigestOrEmpty = b""

    def __post_init__(self) -> None:
        if self.attempt and self.kind in _WITHOUT_ATTEMPT:
            raise ValueError(f"{self.kind.name} belongs to no attempt")
        expected = 32 if self.kind in _WITH_SUBJECT else 0
        if len(self.subject) != expected:
            raise ValueError(f"the subject of {self.kind.name} has {expected} bytes")


def slice_subject(digest: bytes, first: int, stop: int) -> bytes:
    """The slot subject of GRAM and AGG: one LIST, one slice."""
    return blake3(
        _SLICE_DOMAIN + digest + first.to_bytes(4, "big") + stop.to_bytes(4, "big")
    ).digest()


def segment_subject(commit: bytes, segment: int) -> bytes:
    """The slot subject of VERDICT: one COMMIT, one segment of its work."""
    return blake3(_SEGMENT_DOMAIN + commit + segment.to_bytes(4, "big")).digest()


def list_digest(
    basis: bytes,
    shard: int,
    round_index: int,
    commits: tuple[bytes, ...],
    drifts: tuple[bytes, ...],
) -> bytes:
    """Names a LIST by what it lists, never by who proposed it in which attempt."""
    head = basis + shard.to_bytes(4, "big") + round_index.to_bytes(8, "big")
    counts = len(commits).to_bytes(4, "big") + len(drifts).to_bytes(4, "big")
    return blake3(_LIST_DOMAIN + head + counts + b"".join(commits) + b"".join(drifts)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledSlot:
    """What a signed message proves without its body: who filled which slot, and with what.

    `body` is the digest of the encoded body. A COMMIT has up to 40 KiB, this some 300 bytes.
    """

    slot: Slot
    sender: Peer
    body: Digest
    signature: Signature

    @property
    def digest(self) -> bytes:
        """Names the message."""
        return blake3(message_preimage(self.slot, self.sender, self.body)).digest()

    def is_signed(self, signer: Signer) -> bool:
        """Whether the sender signed it."""
        preimage = message_preimage(self.slot, self.sender, self.body)
        return signer.verify(self.sender, preimage, self.signature)


def body_digest(body: bytes) -> bytes:
    """What a message's signature covers of its encoded body."""
    return blake3(body).digest()


def message_preimage(slot: Slot, sender: PeerId, body: bytes) -> bytes:
    """What the signature of a message is over, and its digest of; `body` is the body's digest."""
    head = encode(slot)
    return _MESSAGE_DOMAIN + len(head).to_bytes(4, "big") + head + sender + body
