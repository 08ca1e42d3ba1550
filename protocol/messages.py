"""The signed messages of a round with their slots, and the seal that they end in."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Annotated, cast

import msgpack
from blake3 import blake3

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId, Signer
from protocol.wire import Digest, DigestOrEmpty, Range, Signature, Size, decode, encode
from protocol.wire import Peer as Peer

# Slots --------------------------------------------------------------------------------------------
#
# Two different messages of one sender in one slot convict it (R2). `Slot.subject` is what the place
# belongs to besides the attempt: for SEAL the seal before, for GRAM and AGG the LIST and the slice,
# which is why they survive a new attempt.

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


# Rosters ------------------------------------------------------------------------------------------
#
# Who takes part: the seats that a seal names.

Peers = Annotated[tuple[Peer, ...], Size(0, limits.SEATS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRecord:
    """One seat of a roster.

    `voter_since` is the round from which the member votes, 0 for the founder, -1 for a member that
    does not vote. `proved` is the last round in which its SEAL was shown, by its own listed COMMIT
    or, of a voter, by the listed words of others, -1 before the first. `absent` counts the rounds
    in a row of which too few saw its COMMIT. `reached` says whether most others have a link with
    it, `rate` is the level of the rate at which they get bytes from it, the median of theirs, 0
    while nobody has measured it (R8). `earned` counts the sealed rounds that took a newcomer
    towards its full weight (`protocol.rounds.seating`). Until the round `set_back_until` it comes
    last among reducers and closers, for the `set_backs`-th time in a row, because it kept others
    waiting for what it owed (R8).
    """

    peer: Peer
    seated: Round
    voter_since: Annotated[int, Range(-1, limits.ROUNDS_MAX)]
    proved: Annotated[int, Range(-1, limits.ROUNDS_MAX)]
    absent: Annotated[int, Range(0, limits.ROUNDS_MAX)]
    reached: bool = True
    rate: Annotated[int, Range(0, limits.RATE_LEVEL_MAX)] = 0
    earned: Annotated[int, Range(0, 2 * limits.RAMP_ROUNDS_MAX)] = 0
    set_backs: Annotated[int, Range(0, limits.SET_BACKS_MAX)] = 0
    set_back_until: Round = 0


@dataclass(frozen=True, kw_only=True)
class Roster:
    """Who takes part in the rounds that a seal names: seats by ascending peer id.

    `window` holds the last non-empty rounds, at most SEAL_WINDOW of them, oldest first; `banned`
    the last of those who lost their seats to evidence, in that order: they get none again.
    """

    seats: Annotated[tuple[SeatRecord, ...], Size(1, limits.SEATS_MAX)]
    window: Annotated[tuple[Round, ...], Size(0, limits.SEAL_WINDOW)]
    banned: Peers = ()

    def __post_init__(self) -> None:
        peers = [seat.peer for seat in self.seats]
        if peers != sorted(set(peers)):
            raise ValueError("seats must be sorted by peer id, each once")

    @cached_property
    def members(self) -> tuple[PeerId, ...]:
        """All seated peers, ascending."""
        return tuple(seat.peer for seat in self.seats)

    @cached_property
    def member_set(self) -> frozenset[PeerId]:
        """All seated peers."""
        return frozenset(self.members)

    @cached_property
    def voters(self) -> tuple[PeerId, ...]:
        """The voting members, ascending."""
        return tuple(seat.peer for seat in self.seats if seat.voter_since >= 0)

    @cached_property
    def voter_set(self) -> frozenset[PeerId]:
        """The voting members."""
        return frozenset(self.voters)


# Clock of a run -----------------------------------------------------------------------------------
#
# As each seal says it: steps, tokens, and the samples leased so far.


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Samples [first, stop) of the corpus's keyed permutation."""

    first: Annotated[int, Range(0, 2**62)]
    stop: Annotated[int, Range(0, 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealClock:
    """The clock of the run (R9): functions of it are equal on every peer.

    `step` sums the token-weighted median H of every round; `cursor` is the first sample never
    leased; `unused` are leased samples that came back. `ends_run` marks the last seal of the run.
    """

    step: Annotated[int, Range(0, 2**53)]
    tokens: Annotated[int, Range(0, 2**62)]
    cursor: Annotated[int, Range(0, 2**62)]
    unused: Annotated[tuple[Interval, ...], Size(0, limits.LEASE_INTERVALS_MAX)]
    ends_run: bool

    def __post_init__(self) -> None:
        bounds = [bound for gap in self.unused for bound in (gap.first, gap.stop)]
        if bounds != sorted(set(bounds)):
            raise ValueError("unused intervals must ascend, none empty, none touching the next")


# Audits -------------------------------------------------------------------------------------------
#
# What a contribution says of the work behind it, and what others say who ran it again (R10).


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What audits run again (R10): the inner state as a hash chain, through a round and across
    rounds.

    `onion` is the sender's layer for this round, `device` its class (`protocol.auditing`): equal
    classes compute equal bits. `trace` has the roots of the states at the ends of all
    segments, the one that training began with first. `before` and `after` are roots of what goes
    from round to round beside weights and residual: the moments, EMPTY_ROOT of none.
    """

    onion: Digest
    device: Annotated[str, Size(1, 64)]
    trace: Annotated[tuple[Digest, ...], Size(2, limits.SEGMENTS_MAX + 1)]
    before: Digest
    after: Digest


class Outcome(IntEnum):
    """What came of an audit. The numbers are the wire's."""

    RIGHT = 1
    WRONG = 2
    UNOPENED = 3
    """Nobody served the state that the segment begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """VERDICT: the sender ran a segment of a listed COMMIT's work again (R10).

    Segments count from 0; behind those of training comes the encoding. `found` names the end to
    which that led, so that equal words are of machines that found the same; empty if UNOPENED.
    """

    commit: Digest
    segment: Annotated[int, Range(0, limits.SEGMENTS_MAX)]
    outcome: Outcome
    found: DigestOrEmpty

    def __post_init__(self) -> None:
        if len(self.found) != (0 if self.outcome is Outcome.UNOPENED else 32):
            raise ValueError(f"{self.outcome.name} with an end of {len(self.found)} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retract:
    """RETRACT: the sender takes back what it contributed to this round, which it cannot show or
    knows to be wrong. It costs the seat; two within RETRACT_ROUNDS convict."""

    commit: Digest


# Signed messages ----------------------------------------------------------------------------------

_SEAL_DOMAIN = b"barnraise/seal/1"
_PAIR = b"\x92"
"""How msgpack begins an array of two."""

MESSAGE_ID_BYTES = 8
"""So much of a digest names a message in a heartbeat."""


def message_id_of(digest: bytes) -> bytes:
    """What names the message of that digest in a heartbeat."""
    return digest[:MESSAGE_ID_BYTES]


Cell = Annotated[int, Range(0, limits.CELLS_MAX)]
Nested = Annotated[bytes, Size(0, limits.NESTED_MESSAGE_BYTES_MAX)]
"""A whole signed message inside another: a SEAL in a COMMIT, a VOTE in a certificate."""
Certificate = Annotated[tuple[Nested, ...], Size(0, limits.SEATS_MAX)]
BitMap = Annotated[bytes, Size(0, limits.SEATS_MAX // 8)]
"""Bit i of byte i // 8, lowest first, is member i of the roster."""


@dataclass(frozen=True, kw_only=True)
class SignedMessage:
    """A slot, the encoded body that fills it, and the sender's signature over both."""

    slot: Slot
    sender: Peer
    body: Annotated[bytes, Size(0, limits.MESSAGE_BODY_BYTES_MAX)]
    signature: Signature

    @cached_property
    def preimage(self) -> bytes:
        """What is signed: slot, sender and the digest of the body."""
        return message_preimage(self.slot, self.sender, body_digest(self.body))

    @cached_property
    def digest(self) -> bytes:
        """Names the message: slot, sender and body, never the signature."""
        return blake3(self.preimage).digest()

    @cached_property
    def message_id(self) -> bytes:
        """Names the message in a heartbeat, within its round. Made once: of two sets of equal bytes
        those are compared soonest that are the same."""
        return message_id_of(self.digest)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical bytes, made once."""
        return encode(self)

    @property
    def filled(self) -> FilledSlot:
        """The same with the body's digest in place of the body: half of a proof."""
        body = body_digest(self.body)
        return FilledSlot(slot=self.slot, sender=self.sender, body=body, signature=self.signature)

    @cached_property
    def _checked(self) -> "_Checked":
        return _Checked()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """SEAT: a joiner holds the state of the seal that is the slot's basis, and asks for a seat.

    `proof` is BLAKE3 over that state, keyed by sender and seal, so that a digest heard is no proof.
    `work` solves the join puzzle of a run that asks for one (`protocol.join_puzzle`).
    """

    proof: Digest
    device: Annotated[str, Size(0, 64)]
    work: Annotated[bytes, Size(0, limits.JOIN_WORK_BYTES)] = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """COMMIT: one signed grid root binds the whole contribution, and reports what its sender saw.

    `root` is over the cell roots of the encoded fragment; `base` names the seal whose anchor it is
    relative to; `seal` is the sender's own SEAL of round r - L, or empty. `is_past_end` says that
    by the sender's clock the date is past at which the manifest stops the run. `bans` are members
    against whom it holds evidence that proves itself (R1). `seen` has a byte
    for each member of the roster: 0 for one to which the sender has no link, 1 for one of no known
    rate, 1 + level otherwise (R8); empty if the sender says nothing of anybody. `work` is there in
    runs with audits alone.

    `committed`, `sealed` and `lapsed` are bit maps over the roster of round r, and tell of round
    `r - L`: whose COMMIT is here, however late it came; whose SEAL of the value that became final
    is here; who kept this node waiting for what it owed (R1, R8). All three are empty if the sender
    does not know that round.
    """

    root: Digest
    cell_norms: Annotated[
        tuple[Annotated[float, Range(0.0, limits.CELL_NORM_MAX)], ...], Size(1, limits.CELLS_MAX)
    ]
    tokens: Annotated[int, Range(0, limits.TOKENS_PER_ROUND_MAX)]
    samples: Annotated[int, Range(0, limits.TOKENS_PER_ROUND_MAX)]
    steps: Annotated[int, Range(0, limits.STEPS_PER_ROUND_MAX)]
    base: Digest
    residual_before: Digest
    residual_after: Digest
    seal: Nested
    joins: Peers
    suspects: Peers
    gone: Peers
    bans: Peers
    is_past_end: bool
    seen: Annotated[bytes, Size(0, limits.SEATS_MAX)] = b""
    work: Annotated[tuple[Work, ...], Size(0, 1)] = ()
    committed: BitMap = b""
    sealed: BitMap = b""
    lapsed: BitMap = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """For cells [first, stop): which senders' parts are here, as a bit map over the roster."""

    first: Cell
    stop: Cell
    senders: BitMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Have:
    """HAVE: the parts that a reducer holds, at its deadline or when nobody is missing. HOLD: what a
    member holds once parts that too few had were asked for again.

    The runs ascend and do not overlap, so that reading them takes no longer than the cells.
    """

    held: Annotated[tuple[Held, ...], Size(0, limits.HAVE_RUNS_MAX)]

    def __post_init__(self) -> None:
        bounds = [bound for run in self.held for bound in (run.first, run.stop)]
        if any(run.first == run.stop for run in self.held) or bounds != sorted(bounds):
            raise ValueError("runs of cells must ascend, none empty, none overlapping")


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """LIST: the closer's proposal of whom the round counts, as COMMIT digests by ascending sender.

    `drifts` names lost branches (R4). `certificate` holds the VOTEs of an earlier attempt for this
    very list where a lock demands it.
    """

    commits: Annotated[tuple[Digest, ...], Size(0, limits.SEATS_MAX)]
    drifts: Annotated[tuple[Digest, ...], Size(0, limits.SEATS_MAX)]
    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """VOTE (and PVOTE): for one list, named by its digest, in the slot's attempt."""

    list_digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Gram:
    """GRAM: an aggregator's statistics of one slice, from which all derive the coefficients."""

    list_digest: Digest
    first: Cell
    stop: Cell
    stats: Annotated[bytes, Size(0, 32 * limits.KIB)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agg:
    """AGG: the root over the cell roots of one slice's encoded result."""

    list_digest: Digest
    first: Cell
    stop: Cell
    root: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """SEAL (and PSEAL): the sender holds the full result, and this is the seal that it gives."""

    value: Digest
    list_digest: Digest
    root: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAttempt:
    """NEWATTEMPT: the attempt before timed out; reports the sender's lock with its certificate.

    `lock_attempt` is -1 without a lock. `commits` and `drifts` spell out the locked list, so that
    the next closer can propose it. `missing` are cells whose result the sender lacks.
    """

    lock_attempt: Annotated[int, Range(-1, limits.ATTEMPTS_MAX)]
    commits: Annotated[tuple[Digest, ...], Size(0, limits.SEATS_MAX)]
    drifts: Annotated[tuple[Digest, ...], Size(0, limits.SEATS_MAX)]
    certificate: Certificate
    missing: Annotated[tuple[Cell, ...], Size(0, limits.CELLS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """LEAVE: the sender goes; it stays a member until the seal that drops it."""

    reason: Annotated[str, Size(0, 64)]


Body = (
    Seat | Commit | Have | List | Vote | Gram | Agg | Seal | NewAttempt | Leave | Verdict | Retract
)


@dataclass(slots=True)
class _Checked:
    """What was found out about a message: its body, and for whose rules its signature is good."""

    body: Body | None = None
    signed_for: type[Signer] | None = None


_BODIES: dict[Kind, type[Body]] = {
    Kind.SEAT: Seat,
    Kind.COMMIT: Commit,
    Kind.HAVE: Have,
    Kind.HOLD: Have,
    Kind.LIST: List,
    Kind.VOTE: Vote,
    Kind.GRAM: Gram,
    Kind.AGG: Agg,
    Kind.SEAL: Seal,
    Kind.NEWATTEMPT: NewAttempt,
    Kind.LEAVE: Leave,
    Kind.PVOTE: Vote,
    Kind.PSEAL: Seal,
    Kind.VERDICT: Verdict,
    Kind.RETRACT: Retract,
}


def sign_message(signer: Signer, slot: Slot, body: Body) -> SignedMessage:
    """The message that fills `slot`. The caller has made sure that the slot is still empty."""
    assert isinstance(body, _BODIES[slot.kind])
    assert _fits(slot, body), f"this {slot.kind.name} belongs into another slot"
    encoded = encode(body)
    preimage = message_preimage(slot, signer.peer_id, body_digest(encoded))
    signature = signer.sign(preimage)
    message = SignedMessage(slot=slot, sender=signer.peer_id, body=encoded, signature=signature)
    message._checked.body = body
    return message


@lru_cache(maxsize=1024)
def decode_message(data: bytes) -> tuple[SignedMessage, Body]:
    """A signed message and its body, strictly decoded; the signature is not checked yet.

    Raises DecodeError, also for the kinds that this version does not speak. The last ones are kept:
    a SEAL inside a COMMIT is asked for once per LIST that names the COMMIT.
    """
    message = decode(SignedMessage, data)
    return message, decode_body(message)


def decode_body(message: SignedMessage) -> Body:
    """The body, decoded once. Raises DecodeError, also where it belongs into another slot."""
    checked, slot = message._checked, message.slot
    if checked.body is None:
        kind = _BODIES.get(slot.kind)
        if kind is None:
            raise DecodeError(f"no message of kind {slot.kind.name} in this version")
        body = decode(kind, message.body)
        if not _fits(slot, body):
            raise DecodeError(f"this {slot.kind.name} belongs into another slot")
        checked.body = body
    return checked.body


def _fits(slot: Slot, body: Body) -> bool:
    """Whether the slot is the one place for this body: GRAM and AGG say it twice."""
    if isinstance(body, Gram | Agg):
        return slot.subject == slice_subject(body.list_digest, body.first, body.stop)
    if isinstance(body, Verdict):
        return slot.subject == segment_subject(body.commit, body.segment)
    return True


def is_signed(message: SignedMessage, signer: Signer) -> bool:
    """Whether the sender signed it, by the rules of this kind of signer.

    A good answer stays with the message, whose fields nobody can change: the same one may be asked
    about again inside a certificate, and by every node of a simulated world.
    """
    checked = message._checked
    if checked.signed_for is not type(signer):
        if not signer.verify(message.sender, message.preimage, message.signature):
            return False
        checked.signed_for = type(signer)
    return True


@dataclass(frozen=True, kw_only=True)
class SealValue:
    """What a seal says. Its digest covers neither the attempt nor any signature.

    `before` is the seal of the round before, `basis` the one that named roster, closer and slots of
    this round: with one round in flight the same, with two the one before that (R1, R5).
    `root` is over the state after the round: anchor and outer slots. An empty `commits` means that
    the round carried.
    """

    run: Digest
    shard: Annotated[int, Range(0, limits.SHARDS_MAX)]
    round: Round
    before: Digest
    basis: Digest
    commits: Annotated[tuple[Digest, ...], Size(0, limits.SEATS_MAX)]
    drifts: Annotated[tuple[Digest, ...], Size(0, limits.SEATS_MAX)]
    root: Digest
    roster: Roster
    clock: SealClock

    @cached_property
    def encoded(self) -> bytes:
        """As `encode` has it: of 30 seats several KiB, which every certificate of it holds."""
        return encode(self)

    @cached_property
    def digest(self) -> bytes:
        """Names the seal; the basis of the next round's slots."""
        return blake3(_SEAL_DOMAIN + self.encoded).digest()

    @cached_property
    def list_digest(self) -> bytes:
        """The digest of the LIST that this seal sums."""
        return list_digest(self.basis, self.shard, self.round, self.commits, self.drifts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealCertificate:
    """A final seal and its proof: SEALs of one attempt by a quorum of voters. Genesis has none."""

    value: SealValue
    seals: Certificate

    @property
    def encoded(self) -> bytes:
        """As `encode` has it."""
        return _PAIR + self.value.encoded + cast("bytes", msgpack.packb(self.seals))
