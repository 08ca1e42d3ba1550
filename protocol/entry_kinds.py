"""What entries of the replicated state say: a closed set of kinds, each with its body and bounds.

Who may write: everybody, under the own key and about nothing but oneself. So two writers never
meet in one place, and the last entry of a writer under a key is the one that counts. What is said
of others (evidence) proves itself or is only a hint. Seals and contribution receipts are no
entries: seals are certified, and receipts follow from them.

Under each key the highest sequence of a writer stands; a revoked INVITATION stands for good.

| kind | key | says |
|---|---|---|
| IDENTITY | | what the machine is, where it is reached |
| PRESENCE | | alive, in this round |
| LEAVE | | gone: IDENTITY and PRESENCE up to here are void |
| EVIDENCE | digest of the proof | this node serves a proof against a peer |
| CHECKPOINT | root of the state | this node serves it |
| DATA | digest of the content | this node serves it |
| METRICS | | numbers to look at; nothing decides by them |
| INVITATION | key of the token | issued by this writer, or revoked for good |
| NOTE | | a line of text, or removals of such |
| ADMISSION | digest of token and bearer | a peer was let in by a token |
| TEXT | root of the text | which blocks of it this node holds, and for how many it has room |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from protocol import limits
from protocol.invitations import USES_MAX, Admission, Role
from protocol.wire import Digest, Peer, Range, Size, Spelled

Words = Annotated[str, Size(0, 64)]

MINUTE_S = 60.0
HOUR_S = 60.0 * MINUTE_S
DAY_S = 24.0 * HOUR_S


class EntryKind(IntEnum):
    """What an entry is about. The numbers are the wire's."""

    IDENTITY = 1
    PRESENCE = 2
    LEAVE = 3
    EVIDENCE = 4
    CHECKPOINT = 5
    DATA = 6
    METRICS = 7
    INVITATION = 8
    NOTE = 9
    ADMISSION = 10
    TEXT = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """IDENTITY: what a node can do, by its own word, and its addresses, best first."""

    name: Words
    device: Words
    software: Words
    upload_mbit: Annotated[int, Range(0, 1_000_000)]
    download_mbit: Annotated[int, Range(0, 1_000_000)]
    is_relay: bool
    addresses: Annotated[
        tuple[Annotated[str, Size(1, limits.ENTRY_ADDRESS_BYTES_MAX)], ...],
        Size(0, limits.ENTRY_ADDRESSES_MAX),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """PRESENCE: alive. `incarnation` grows when a node refutes a suspicion of itself."""

    incarnation: Annotated[int, Range(0, 2**62)]
    round: Annotated[int, Range(0, limits.ROUNDS_MAX)]
    head: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """LEAVE: the writer is gone, on purpose."""

    reason: Words


class Accusation(IntEnum):
    """What a proof shows."""

    FORK = 1
    """Two entries of one writer that contradict each other."""

    TWO_MESSAGES = 2
    """Two signed messages of one sender in one slot (R2)."""

    WRONG_SUM = 3
    """What a reducer said of a slice, and more voters than may lie said otherwise (R10)."""

    WRONG_WORK = 4
    """A segment of training that more voters than may lie ran again, to another end (R10)."""

    WRONG_VERDICT = 5
    """Whoever said that of work which more voters than may lie found to be right (R10)."""

    TWO_RETRACTS = 6
    """Two contributions taken back within RETRACT_ROUNDS (R10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """EVIDENCE: the writer serves a proof that is too large to travel by itself.

    A claim and no more, until whoever fetched the proof has checked it.
    """

    subject: Peer
    accusation: Accusation
    proof_bytes: Annotated[int, Range(1, limits.EVIDENCE_PROOF_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HasCheckpoint:
    """CHECKPOINT: the writer serves the state of a round, named by its root."""

    shard: Annotated[int, Range(0, limits.SHARDS_MAX)]
    round: Annotated[int, Range(0, limits.ROUNDS_MAX)]
    seal: Digest
    num_bytes: Annotated[int, Range(0, 2**53)]
    is_withdrawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HasData:
    """DATA: the writer serves content, named by its digest."""

    num_bytes: Annotated[int, Range(0, 2**53)]
    is_withdrawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number with its name."""

    name: Annotated[str, Spelled("a-z0-9_", 1, 32)]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """METRICS: readings by ascending name."""

    round: Annotated[int, Range(0, limits.ROUNDS_MAX)]
    readings: Annotated[tuple[Reading, ...], Size(0, 16)]

    def __post_init__(self) -> None:
        names = [reading.name for reading in self.readings]
        if names != sorted(set(names)):
            raise ValueError("readings must ascend by name, none twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """INVITATION: a token, named by its public key, that lets its bearers in; or its revocation.

    A revocation counts before every issue of the same writer and token, also a later one. A token
    is good while an issue is held: whoever never hears of its revocation does not hear of it
    either, once its issuer is gone. `delegations` says how often the right to invite may be handed
    on.
    """

    is_revoked: bool
    role: Role
    uses: Annotated[int, Range(1, USES_MAX)]
    delegations: Annotated[int, Range(0, 2)]
    not_after_unix_s: Annotated[int, Range(0, 2**40)]


@dataclass(frozen=True, slots=True, order=True)
class Dot:
    """One note: its writer, and its sequence in that writer's chain."""

    writer: Peer
    number: Annotated[int, Range(1, 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """NOTE: a line for the others, under a key of the writer's choice, or none.

    `removes` are the dots of the notes that it takes away, whoever wrote them.
    """

    text: Annotated[str, Size(0, 400)]
    removes: Annotated[tuple[Dot, ...], Size(0, 8)]

    def __post_init__(self) -> None:
        if list(self.removes) != sorted(set(self.removes)):
            raise ValueError("removed notes must ascend, none twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """ADMISSION: the writer has let a peer in. It proves itself: nobody uses up foreign tokens."""

    admission: Admission


BlockNumber = Annotated[int, Range(0, limits.TEXT_BLOCKS_MAX - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsText:
    """TEXT: the writer serves blocks of the run's text, and keeps some for the others.

    `room` counts the blocks that it keeps at most for others, `count` those that it holds. `runs`
    says which (`encode_runs`), or is empty where that is too long. It is settled once it holds all
    that it is to keep. `hot` blocks are much asked for: the next in order makes a copy of each.
    """

    room: Annotated[int, Range(0, limits.TEXT_BLOCKS_MAX)]
    count: Annotated[int, Range(0, limits.TEXT_BLOCKS_MAX)]
    runs: Annotated[bytes, Size(0, limits.TEXT_RUNS_BYTES_MAX)]
    hot: Annotated[tuple[BlockNumber, ...], Size(0, limits.TEXT_HOT_MAX)]
    is_settled: bool

    def __post_init__(self) -> None:
        """Raise ValueError for runs that are none, or do not add up to `count`."""
        if list(self.hot) != sorted(set(self.hot)):
            raise ValueError("hot blocks must ascend, none twice")
        if self.runs and sum(stop - first for first, stop in decode_runs(self.runs)) != self.count:
            raise ValueError("runs of blocks that are not as many as are held")


def encode_runs(runs: Iterable[tuple[int, int]]) -> bytes:
    """Ascending runs [first, stop), as the gap before each and its length in turn, in LEB128."""
    data, end = bytearray(), 0
    for first, stop in runs:
        for number in (first - end, stop - first):
            while number > 0x7F:
                data.append(number & 0x7F | 0x80)
                number >>= 7
            data.append(number)
        end = stop
    return bytes(data)


def decode_runs(data: bytes) -> list[tuple[int, int]]:
    """Inverse of `encode_runs`. Raises ValueError for all that it does not make."""
    numbers, number, shift = [], 0, 0
    for byte in data[: limits.TEXT_RUNS_BYTES_MAX]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    runs, end = [], 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=False):
        runs.append((end + gap, end + gap + length))
        end += gap + length
    if end > limits.TEXT_BLOCKS_MAX or 0 in numbers[1:] or encode_runs(runs) != data:
        raise ValueError("no runs of blocks")
    return runs


EntryBody = (
    Identity
    | Presence
    | Departure
    | Accused
    | HasCheckpoint
    | HasData
    | Metrics
    | Invitation
    | Note
    | Admitted
    | HoldsText
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRule:
    """The bounds of one kind.

    An entry counts for at most 1.5 times `ttl_s` after its stamp, whatever it says, and is written
    anew every 0.4 times. `entry_bytes` bounds one encoded entry, `per_writer` and `total` how many
    are held.
    """

    body: type[EntryBody]
    key_bytes: int
    ttl_s: float
    entry_bytes: int
    per_writer: int
    total: int


RULES: dict[EntryKind, KindRule] = {
    EntryKind.IDENTITY: KindRule(
        body=Identity, key_bytes=0, ttl_s=HOUR_S, entry_bytes=2048, per_writer=1, total=16_384
    ),
    EntryKind.PRESENCE: KindRule(
        body=Presence, key_bytes=0, ttl_s=10 * MINUTE_S, entry_bytes=384, per_writer=1, total=16_384
    ),
    # It must outlive what it makes void.
    EntryKind.LEAVE: KindRule(
        body=Departure, key_bytes=0, ttl_s=2 * HOUR_S, entry_bytes=384, per_writer=1, total=16_384
    ),
    EntryKind.EVIDENCE: KindRule(
        body=Accused, key_bytes=32, ttl_s=DAY_S, entry_bytes=384, per_writer=32, total=4096
    ),
    EntryKind.CHECKPOINT: KindRule(
        body=HasCheckpoint, key_bytes=32, ttl_s=HOUR_S, entry_bytes=384, per_writer=16, total=16_384
    ),
    EntryKind.DATA: KindRule(
        body=HasData, key_bytes=32, ttl_s=HOUR_S, entry_bytes=384, per_writer=48, total=32_768
    ),
    EntryKind.METRICS: KindRule(
        body=Metrics, key_bytes=0, ttl_s=10 * MINUTE_S, entry_bytes=1024, per_writer=1, total=4096
    ),
    EntryKind.INVITATION: KindRule(
        body=Invitation, key_bytes=32, ttl_s=DAY_S, entry_bytes=384, per_writer=32, total=8192
    ),
    EntryKind.NOTE: KindRule(
        body=Note, key_bytes=16, ttl_s=DAY_S, entry_bytes=1152, per_writer=8, total=2048
    ),
    EntryKind.ADMISSION: KindRule(
        body=Admitted, key_bytes=32, ttl_s=DAY_S, entry_bytes=640, per_writer=64, total=8192
    ),
    EntryKind.TEXT: KindRule(
        body=HoldsText, key_bytes=32, ttl_s=HOUR_S, entry_bytes=1536, per_writer=2, total=512
    ),
}
