"""Signed entries of the replicated state, one hash chain per writer and kind.

An entry's id and signature cover its *header*, in which the body is a digest: so a header with its
signature, some 300 bytes, proves what was signed without the body. `previous` is the id of the
writer's entry before it of this kind, and `sequence` counts on from it. A chain that begins anew,
at first or because its writer restarted, has no `previous`, and begins at the number of the
milliseconds in its stamp; no sequence is ever beyond these. So a node that has lost its disk never
signs a number twice, even if nobody can tell it what it said last, and nobody counts so far ahead
that nothing could follow.

Two headers of one writer and kind contradict each other if they have one sequence and are not the
same, or if the later follows the earlier by one and names another as `previous`. No honest writer
ever signs such two, so they convict it (`protocol.evidence`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from blake3 import blake3

from protocol import limits
from protocol.entry_kinds import RULES, EntryBody, EntryKind
from protocol.errors import DecodeError, LimitError
from protocol.hybrid_clock import COUNTER_BITS, WireStamp, stamp_s
from protocol.identity import SIGNATURE_BYTES, Signer
from protocol.wire import Digest, DigestOrEmpty, OneOf, Peer, Range, Signature, Size, decode, encode

_ENTRY_DOMAIN = b"barnraise/entry/1"

ENTRY_VERSION = 1
ERAS_MAX = limits.ROUNDS_MAX // 256
SEQUENCE_MAX = 2**62

_LATEST_FACTOR = 1.5
"""An entry may name a later end than its kind's lifetime, but no much later one counts."""

Version = Annotated[int, OneOf((ENTRY_VERSION,))]
EntryKey = Annotated[bytes, Size(0, 32)]
Era = Annotated[int, Range(0, ERAS_MAX)]
Sequence = Annotated[int, Range(1, SEQUENCE_MAX)]
UnixSeconds = Annotated[int, Range(0, 2**40)]


def era_of(round_index: int) -> int:
    """The era of a round: 256 rounds."""
    return round_index // 256


def _raise_unless_sound(header: "EntryHeader | Entry") -> None:
    expected = RULES[header.kind].key_bytes
    if len(header.key) != expected:
        raise ValueError(f"the key of {header.kind.name} has {expected} bytes")
    if len(header.previous) not in (0, 32):
        raise ValueError("previous is an id or nothing")
    milliseconds = header.stamp >> COUNTER_BITS
    if header.sequence > milliseconds:
        raise ValueError("a sequence beyond the milliseconds of its stamp")
    if not header.previous and header.sequence != milliseconds:
        raise ValueError("a chain begins at the milliseconds of its stamp")


@dataclass(frozen=True, kw_only=True)
class EntryHeader:
    """What a writer signs. `expires_unix_s` never decides which entry wins; `sequence` does."""

    version: Version
    run: Digest
    kind: EntryKind
    key: EntryKey
    writer: Peer
    era: Era
    sequence: Sequence
    stamp: WireStamp
    expires_unix_s: UnixSeconds
    previous: DigestOrEmpty
    body: Digest

    def __post_init__(self) -> None:
        _raise_unless_sound(self)

    @cached_property
    def signed_bytes(self) -> bytes:
        """What the signature is over, and the id the digest of."""
        return _ENTRY_DOMAIN + encode(self)

    @cached_property
    def entry_id(self) -> bytes:
        """Names the entry: all of it but the signature."""
        return blake3(self.signed_bytes).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHeader:
    """A header that proves itself: one half of a fork."""

    header: EntryHeader
    signature: Signature

    def is_signed(self, signer: Signer) -> bool:
        """Whether its writer signed it."""
        header = self.header
        return signer.verify(header.writer, header.signed_bytes, self.signature)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry as it travels: the header's fields, with the encoded body in place of its digest."""

    version: Version
    run: Digest
    kind: EntryKind
    key: EntryKey
    writer: Peer
    era: Era
    sequence: Sequence
    stamp: WireStamp
    expires_unix_s: UnixSeconds
    previous: DigestOrEmpty
    body: Annotated[bytes, Size(0, limits.ENTRY_BODY_BYTES_MAX)]
    signature: Signature

    def __post_init__(self) -> None:
        _raise_unless_sound(self)

    @cached_property
    def header(self) -> EntryHeader:
        """What is signed."""
        return EntryHeader(
            version=self.version,
            run=self.run,
            kind=self.kind,
            key=self.key,
            writer=self.writer,
            era=self.era,
            sequence=self.sequence,
            stamp=self.stamp,
            expires_unix_s=self.expires_unix_s,
            previous=self.previous,
            body=blake3(self.body).digest(),
        )

    @property
    def entry_id(self) -> bytes:
        """Names the entry."""
        return self.header.entry_id

    @property
    def signed_header(self) -> SignedHeader:
        """The entry without its body."""
        return SignedHeader(header=self.header, signature=self.signature)

    @cached_property
    def content(self) -> EntryBody:
        """The decoded body. Raises DecodeError if it is none of this kind."""
        return decode(RULES[self.kind].body, self.body)

    @property
    def ends_s(self) -> float:
        """The Unix second from which on it counts no more.

        A function of signed numbers alone, so that nobody who hears it late lets it live longer:
        what is passed on in circles would else never die.
        """
        return ends_s(self.kind, self.stamp, self.expires_unix_s)

    def is_signed(self, signer: Signer) -> bool:
        """Whether its writer signed it."""
        return signer.verify(self.writer, self.header.signed_bytes, self.signature)


def ends_s(kind: EntryKind, stamp: int, expires_unix_s: int) -> float:
    """When an entry ends: as it says, but at most 1.5 lifetimes of its kind after its stamp."""
    return min(float(expires_unix_s), stamp_s(stamp) + _LATEST_FACTOR * RULES[kind].ttl_s)


def contradict(first: EntryHeader, second: EntryHeader) -> bool:
    """Whether no honest writer signs both."""
    if (first.run, first.writer, first.kind) != (second.run, second.writer, second.kind):
        return False
    if first.sequence > second.sequence:
        first, second = second, first
    if first.sequence == second.sequence:
        return first.entry_id != second.entry_id
    is_next = second.sequence == first.sequence + 1
    return is_next and bool(second.previous) and second.previous != first.entry_id


def sign_entry(draft: Entry, signer: Signer) -> Entry:
    """The draft with this node's signature. Its writer must be the signer."""
    assert draft.writer == signer.peer_id, "nobody writes in another's name"
    return replace(draft, signature=signer.sign(draft.header.signed_bytes))


def draft_entry(header: EntryHeader, body: EntryBody) -> Entry:
    """An unsigned entry; the header's digest of the body is made here.

    Raises LimitError if it is longer than its kind allows.
    """
    assert type(body) is RULES[header.kind].body, "each kind has one body"
    draft = Entry(
        version=header.version,
        run=header.run,
        kind=header.kind,
        key=header.key,
        writer=header.writer,
        era=header.era,
        sequence=header.sequence,
        stamp=header.stamp,
        expires_unix_s=header.expires_unix_s,
        previous=header.previous,
        body=encode(body),
        signature=bytes(SIGNATURE_BYTES),
    )
    most = RULES[header.kind].entry_bytes
    size = len(encode(draft))
    if size > most:
        raise LimitError(f"{header.kind.name} of {size} bytes, at most {most} allowed")
    return draft


def decode_entry(data: bytes, run: bytes) -> Entry:
    """The entry that `data` encodes, its body looked at; not its signature.

    Raises DecodeError for all other bytes and for an entry of another run, LimitError if it is
    longer than its kind allows.
    """
    entry = decode(Entry, data, max_bytes=limits.ENTRY_BYTES_MAX)
    if entry.run != run:
        raise DecodeError("an entry of another run")
    most = RULES[entry.kind].entry_bytes
    if len(data) > most:
        raise LimitError(f"{entry.kind.name} of {len(data)} bytes, at most {most} allowed")
    _ = entry.content
    return entry
