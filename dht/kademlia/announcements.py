"""What we keep saying in the DHT, and when each saying is due again. Pure."""

from dataclasses import dataclass, field

from dht.kademlia.keyspace import Key, distance, node_key, topic_key
from dht.kademlia.records import SignedRecord, sign_record
from protocol import limits
from protocol.identity import PeerId, Signer

_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 60.0


@dataclass(slots=True)
class Announcement:
    """One value under one topic, said again and again until it is withdrawn."""

    key: Key
    value: bytes
    ttl_s: float
    due_s: float
    retry_s: float = _RETRY_FIRST_S
    record: SignedRecord | None = None
    """What was said last."""

    holders: dict[PeerId, int] = field(default_factory=dict)
    """Who has said that it stored that, and how far it lies from the key; the nearest of them."""


class Announcements:
    """Signs our records with ever rising sequence numbers and knows when to renew them."""

    def __init__(self, signer: Signer, *, replicas: int) -> None:
        self._signer = signer
        self._replicas = replicas
        self._by_key: dict[Key, Announcement] = {}
        self._sequence = 0

    def add(self, topic: bytes, value: bytes, *, ttl_s: float, now_s: float) -> Announcement:
        """Start to say `value`, or say it from now on instead of what we said under `topic`.

        Raises ValueError for no value (that withdraws), one that is too long, or no lifetime.
        """
        if not 0 < len(value) <= limits.DHT_VALUE_BYTES_MAX:
            raise ValueError(f"value has {len(value)} bytes, 1 to {limits.DHT_VALUE_BYTES_MAX}")
        if not 1.0 <= ttl_s <= limits.DHT_RECORD_LIFETIME_S_MAX:
            raise ValueError(f"ttl_s {ttl_s} is outside 1..{limits.DHT_RECORD_LIFETIME_S_MAX}")
        # The caller publishes it at once; should that be cancelled, the renewal does it.
        due_s = now_s + _RETRY_FIRST_S
        announcement = Announcement(topic_key(topic), value, ttl_s, due_s)
        self._by_key[announcement.key] = announcement
        return announcement

    def remove(self, topic: bytes) -> Announcement | None:
        """Stop to say anything under `topic`; what we said, if we did."""
        return self._by_key.pop(topic_key(topic), None)

    def sign(self, announcement: Announcement, wall_s: float) -> SignedRecord:
        """A fresh record of it, newer than all before: also than those of our last run."""
        record = self._sign(announcement, announcement.value, wall_s)
        announcement.record = record
        announcement.holders.clear()
        return record

    def sign_withdrawal(self, announcement: Announcement, wall_s: float) -> SignedRecord:
        """A record of no value, which outlives what it replaces."""
        return self._sign(announcement, b"", wall_s)

    def is_current(self, announcement: Announcement) -> bool:
        """Whether we still say it: neither withdrawn nor replaced."""
        return self._by_key.get(announcement.key) is announcement

    def due(self, now_s: float) -> list[Announcement]:
        """What has to be said now."""
        return [a for a in self._by_key.values() if a.due_s <= now_s]

    def next_due_s(self) -> float:
        """When something will be due; infinite when we say nothing."""
        return min((a.due_s for a in self._by_key.values()), default=float("inf"))

    def renew_all(self, now_s: float) -> None:
        """Everything is due now: by the wall clock it may have expired."""
        for announcement in self._by_key.values():
            announcement.due_s = now_s

    def stored(self, record: SignedRecord, peer: PeerId, now_s: float) -> None:
        """`peer` says that it has stored it: perhaps late, when nobody waits for it any more.

        Where all are busy most are late. Whoever said it again for that would make them busier.
        """
        announcement = self._by_key.get(record.key)
        if announcement is None or announcement.record != record or peer in announcement.holders:
            return
        holders = announcement.holders
        holders[peer] = distance(node_key(peer), record.key)
        if len(holders) > self._replicas:
            # It was complete before: who come ever nearer do not put its renewal off.
            del holders[max(holders, key=holders.__getitem__)]
        elif len(holders) == self._replicas:
            self.published(announcement, now_s)

    def published(self, announcement: Announcement, now_s: float) -> None:
        """It was stored by some, and nobody waits for more: when is it due again?

        With all replicas, at a third of its life, so that two renewals may fail. With fewer (we may
        be the first here) soon, then less and less often: a small swarm never has all replicas.
        """
        interval_s = announcement.ttl_s / 3
        if len(announcement.holders) < self._replicas:
            interval_s = min(interval_s, announcement.retry_s)
            announcement.retry_s = min(announcement.retry_s * 2, _RETRY_MAX_S)
        else:
            announcement.retry_s = _RETRY_FIRST_S
        announcement.due_s = now_s + interval_s

    def for_newcomer(self, peer: PeerId) -> list[SignedRecord]:
        """What `peer`, who is new to the table, should hold too: it lies nearer than a replica.

        Searches would ask it and not find what was said before it came.
        """
        found, place = [], node_key(peer)
        for one in self._by_key.values():
            if one.record is None or peer in one.holders:
                continue
            is_short = len(one.holders) < self._replicas
            if is_short or distance(place, one.key) < max(one.holders.values()):
                found.append(one.record)
        return found

    def _sign(self, announcement: Announcement, value: bytes, wall_s: float) -> SignedRecord:
        # Milliseconds of the wall clock: a restarted node goes on above what it said before.
        self._sequence = max(self._sequence + 1, int(wall_s * 1000))
        expires_unix_s = int(wall_s + announcement.ttl_s) + 1
        return sign_record(
            self._signer,
            announcement.key,
            value,
            sequence=self._sequence,
            expires_unix_s=expires_unix_s,
        )
