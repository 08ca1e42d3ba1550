"""Signed, expiring records: what a writer says under a key, and which of two sayings wins.

A key holds one record per writer (the sub-key), so nobody can overwrite, only add or drown; the
store's quotas deal with drowning. A record of no value withdraws what its writer said before.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from dht.kademlia.keyspace import Key, WireKey
from protocol import limits
from protocol.identity import PeerId, Signer
from protocol.transport import WirePeerId
from protocol.wire import Range, Signature, Size

_SIGNING_DOMAIN = b"barnraise/dht/record/1\x00"
_SEQUENCE_MAX = 2**62
_UNIX_S_MAX = 2**40

RECORD_OVERHEAD_BYTES = limits.DHT_RECORD_BYTES_MAX - limits.DHT_VALUE_BYTES_MAX
"""An upper bound of what a record takes on the wire beside its value."""


@dataclass(frozen=True, slots=True)
class SignedRecord:
    """What `writer` says under `key` until `expires_unix_s`.

    A field's form is checked on the wire; whether to believe it is `verdict`'s decision.
    """

    key: WireKey
    writer: WirePeerId
    sequence: Annotated[int, Range(0, _SEQUENCE_MAX)]
    expires_unix_s: Annotated[int, Range(0, _UNIX_S_MAX)]
    value: Annotated[bytes, Size(0, limits.DHT_VALUE_BYTES_MAX)]
    signature: Signature


class Verdict(enum.Enum):
    """What to think of a record."""

    VALID = enum.auto()
    UNTIMELY = enum.auto()
    """Expired, or living longer than the cap: useless, though perhaps only a clock is wrong."""

    FORGED = enum.auto()
    """The writer did not sign this. Whoever passed it on has not checked it."""


def _signed_bytes(
    key: Key, writer: PeerId, sequence: int, expires_unix_s: int, value: bytes
) -> bytes:
    # All fields but the last have a fixed width: two different records never give the same bytes.
    return b"".join(
        (
            _SIGNING_DOMAIN,
            key,
            writer,
            sequence.to_bytes(8, "big"),
            expires_unix_s.to_bytes(8, "big"),
            value,
        )
    )


def sign_record(
    signer: Signer, key: Key, value: bytes, *, sequence: int, expires_unix_s: int
) -> SignedRecord:
    """Our own record. Raises ValueError if `value` is longer than a record may carry."""
    if len(value) > limits.DHT_VALUE_BYTES_MAX:
        raise ValueError(f"value has {len(value)} bytes, at most {limits.DHT_VALUE_BYTES_MAX}")
    writer = signer.peer_id
    message = _signed_bytes(key, writer, sequence, expires_unix_s, value)
    return SignedRecord(key, writer, sequence, expires_unix_s, value, signer.sign(message))


def is_timely(record: SignedRecord, wall_s: float) -> bool:
    """Whether `record` is alive at `wall_s` and was not made to live longer than allowed."""
    latest = wall_s + limits.DHT_RECORD_LIFETIME_S_MAX + limits.DHT_CLOCK_SKEW_S
    return wall_s < record.expires_unix_s <= latest


def verdict(record: SignedRecord, signer: Signer, wall_s: float) -> Verdict:
    """Whether to believe `record`: the clock first, because a signature costs 0.1 ms."""
    if not is_timely(record, wall_s):
        return Verdict.UNTIMELY
    message = _signed_bytes(
        record.key, record.writer, record.sequence, record.expires_unix_s, record.value
    )
    if not signer.verify(record.writer, message, record.signature):
        return Verdict.FORGED
    return Verdict.VALID


def rank(record: SignedRecord) -> tuple[int, int, bytes, bytes]:
    """Orders the records of one writer under one key; the highest wins.

    The order is total: records of equal rank under one key and writer are equal, so that replicas
    which merge in different orders end with the same record.
    """
    return record.sequence, record.expires_unix_s, record.value, record.signature


def merge(records: Iterable[SignedRecord]) -> dict[tuple[Key, PeerId], SignedRecord]:
    """The winner of each key and writer. Nothing is verified here."""
    winners: dict[tuple[Key, PeerId], SignedRecord] = {}
    for record in records:
        place = (record.key, record.writer)
        held = winners.get(place)
        if held is None or rank(record) > rank(held):
            winners[place] = record
    return winners
