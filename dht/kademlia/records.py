"""Signed, expiring records: what a writer says under a key, and where a node keeps it. Pure.

A key holds one record per writer (the sub-key), so nobody can overwrite, only add or drown; the
store's quotas deal with drowning. A record of no value withdraws what its writer said before.
"""

import bisect
import enum
import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from blake3 import blake3

from dht.kademlia.keyspace import Key, WireKey, distance
from protocol import limits
from protocol.identity import PeerId, Signer
from protocol.wire import Peer, Range, Signature, Size

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
    writer: Peer
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


class StoreVerdict(enum.IntEnum):
    """What became of a record that was sent to be stored."""

    STORED = 1
    SUPERSEDED = 2
    """A newer record of the same writer is there already."""

    FULL = 3
    REFUSED = 4
    """Forged, expired, or living too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBounds:
    """How much we keep for others."""

    keys_max: int = limits.DHT_KEYS_MAX
    writers_per_key_max: int = limits.DHT_WRITERS_PER_KEY_MAX
    keys_per_writer_max: int = limits.DHT_KEYS_PER_WRITER_MAX
    records_per_courier_max: int = limits.DHT_RECORDS_PER_COURIER_MAX
    bytes_max: int = limits.DHT_STORE_BYTES_MAX

    def __post_init__(self) -> None:
        if min(self.keys_max, self.writers_per_key_max, self.keys_per_writer_max) < 1:
            raise ValueError(f"a store that can keep nothing: {self}")


def _cost_bytes(record: SignedRecord) -> int:
    return len(record.value) + RECORD_OVERHEAD_BYTES


class RecordStore:
    """Holds verified records. Whoever puts one in has checked its signature."""

    def __init__(self, own_key: Key, *, salt: bytes, bounds: StoreBounds | None = None) -> None:
        """`salt` is 32 secret bytes: the order in which writers of a crowded key are kept."""
        self._own_key = own_key
        self._salt = salt
        self._bounds = bounds or StoreBounds()
        self._records: dict[Key, dict[PeerId, SignedRecord]] = {}
        self._by_distance: list[tuple[int, Key]] = []
        self._keys_of: Counter[PeerId] = Counter()
        self._courier_of: dict[tuple[Key, PeerId], PeerId] = {}
        self._carried: Counter[PeerId] = Counter()
        self._expiries: list[tuple[int, Key, PeerId]] = []
        self.num_records = 0
        self.num_bytes = 0

    @property
    def num_keys(self) -> int:
        """Keys under which at least one record is held."""
        return len(self._records)

    def held(self, key: Key, writer: PeerId) -> SignedRecord | None:
        """What we hold, expired or not: to see whether a newcomer is worth a signature check."""
        return self._records.get(key, {}).get(writer)

    def get(self, key: Key, wall_s: float, *, after: bytes = b"") -> list[SignedRecord]:
        """The records alive at `wall_s` of writers above `after`, in ascending order of writer."""
        writers = self._records.get(key, {})
        return [
            writers[writer]
            for writer in sorted(writers)
            if writer > after and is_timely(writers[writer], wall_s)
        ]

    def put(
        self, record: SignedRecord, wall_s: float, *, courier: PeerId | None = None
    ) -> StoreVerdict:
        """Keep `record` if it is alive, newer than what its writer has here, and there is room.

        `courier` is who sent it; None where it is a record of our own.
        """
        self.purge(wall_s)
        if not is_timely(record, wall_s):
            return StoreVerdict.REFUSED
        held = self.held(record.key, record.writer)
        carried_by = self._carried_by(record, courier)
        if held == record:
            self._charge(record, carried_by)
            return StoreVerdict.STORED
        if held is not None and rank(held) > rank(record):
            return StoreVerdict.SUPERSEDED
        if held is None and self._keys_of[record.writer] >= self._bounds.keys_per_writer_max:
            return StoreVerdict.FULL
        if held is None and carried_by is not None and not self._may_carry(carried_by):
            return StoreVerdict.FULL
        crowded_out: PeerId | None = record.writer
        if held is None:
            crowded_out = self._crowded_out_by(record, is_carried=carried_by is not None)
        if crowded_out is None and self._is_crowded(record.key):
            return StoreVerdict.FULL
        leaving = None if crowded_out is None else self.held(record.key, crowded_out)
        more_bytes = _cost_bytes(record) - (0 if leaving is None else _cost_bytes(leaving))
        if not self._make_room(record.key, more_bytes):
            return StoreVerdict.FULL
        if crowded_out is not None:
            self._drop(record.key, crowded_out)
        self._insert(record)
        self._charge(record, carried_by)
        return StoreVerdict.STORED

    def purge(self, wall_s: float) -> int:
        """Drop what has expired by `wall_s`; returns how many records that were."""
        dropped = 0
        while self._expiries and self._expiries[0][0] <= wall_s:
            expires_unix_s, key, writer = heapq.heappop(self._expiries)
            held = self.held(key, writer)
            # A record that was replaced meanwhile leaves its old entry in the heap behind.
            if held is not None and held.expires_unix_s == expires_unix_s:
                self._drop(key, writer)
                dropped += 1
        return dropped

    def _carried_by(self, record: SignedRecord, courier: PeerId | None) -> PeerId | None:
        """Whose quota a record that `courier` brought is on, nobody's if its writer once came.

        What another one renews stays on the quota of whoever brought its writer: a second record
        of each made-up writer would give the quota back.
        """
        if courier is None or courier == record.writer:
            return None
        if self.held(record.key, record.writer) is None:
            return courier
        return self._courier_of.get((record.key, record.writer))

    def _charge(self, record: SignedRecord, courier: PeerId | None) -> None:
        place = (record.key, record.writer)
        self._discharge(place)
        if courier is not None:
            self._courier_of[place] = courier
            self._carried[courier] += 1

    def _discharge(self, place: tuple[Key, PeerId]) -> None:
        courier = self._courier_of.pop(place, None)
        if courier is not None:
            self._carried[courier] -= 1
            if not self._carried[courier]:
                del self._carried[courier]

    def _may_carry(self, courier: PeerId) -> bool:
        return self._carried[courier] < self._bounds.records_per_courier_max

    def _is_crowded(self, key: Key) -> bool:
        return len(self._records.get(key, ())) >= self._bounds.writers_per_key_max

    def _priority(self, key: Key, writer: PeerId) -> bytes:
        return blake3(self._salt + key + writer).digest()

    def _crowded_out_by(self, record: SignedRecord, *, is_carried: bool) -> PeerId | None:
        """Who leaves a crowded key for a new writer; None if nobody must, or if nobody does.

        Whoever came itself stays before those whose records others brought.
        """
        key = record.key
        if not self._is_crowded(key):
            return None

        def order(writer: PeerId) -> tuple[bool, bytes]:
            return (key, writer) in self._courier_of, self._priority(key, writer)

        last = max(self._records[key], key=order)
        own = (is_carried, self._priority(key, record.writer))
        return last if own < order(last) else None

    def _make_room(self, key: Key, num_bytes: int) -> bool:
        """Evict keys farther from us than `key`, as many as needed; False if that is not enough."""
        own_distance = distance(self._own_key, key)
        keys_max = self._bounds.keys_max - (key not in self._records)
        while self.num_bytes + num_bytes > self._bounds.bytes_max or self.num_keys > keys_max:
            if not self._by_distance or self._by_distance[-1][0] <= own_distance:
                return False
            farthest = self._by_distance[-1][1]
            for writer in tuple(self._records[farthest]):
                self._drop(farthest, writer)
        return True

    def _insert(self, record: SignedRecord) -> None:
        key, writer = record.key, record.writer
        if key not in self._records:
            self._records[key] = {}
            bisect.insort(self._by_distance, (distance(self._own_key, key), key))
        self._records[key][writer] = record
        self._keys_of[writer] += 1
        self.num_records += 1
        self.num_bytes += _cost_bytes(record)
        heapq.heappush(self._expiries, (record.expires_unix_s, key, writer))
        # Replaced records leave entries behind; without this a writer who renews every second
        # would grow the heap for the whole life of its records.
        if len(self._expiries) > 2 * self.num_records + 64:
            self._expiries = [
                (held.expires_unix_s, held.key, held.writer)
                for writers in self._records.values()
                for held in writers.values()
            ]
            heapq.heapify(self._expiries)

    def _drop(self, key: Key, writer: PeerId) -> None:
        writers = self._records[key]
        record = writers.pop(writer)
        if not writers:
            del self._records[key]
            place = (distance(self._own_key, key), key)
            del self._by_distance[bisect.bisect_left(self._by_distance, place)]
        self._keys_of[writer] -= 1
        if not self._keys_of[writer]:
            del self._keys_of[writer]
        self.num_records -= 1
        self.num_bytes -= _cost_bytes(record)
        self._discharge((key, writer))
