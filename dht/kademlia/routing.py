"""The routing table: verified contacts in k-buckets, least recently seen first. Pure.

A bucket that is full prefers the contact it has: peers that have been up for long stay up longest,
and a flood of newcomers cannot push anyone out. Newcomers wait in a replacement cache.
"""

import heapq
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from dht.kademlia.keyspace import (
    KEY_BITS,
    Key,
    bucket_index,
    distance,
    node_key,
    random_key_in_bucket,
)
from dht.reaching.addresses import NARROW_BITS, WIDE_BITS, subnets
from protocol import limits
from protocol.identity import PeerId
from protocol.transport import Addresses
from protocol.wire import Peer

BUCKET_SIZE = 16
"""Twice the 8 replicas, so that a bucket which loses half its contacts still knows all replicas of
a key nearby; and as many as one reply can carry."""


SHARE_NARROW, SHARE_WIDE = 4, 2
"""Of the contacts of a bucket, a quarter may lie in one public /24 (IPv6: /48), a half in one /16
(/32). Whoever rents addresses in one place cannot fill a table from there."""


def check_addresses(addresses: tuple[str, ...]) -> None:
    """Raise ValueError unless each looks like a multiaddr; the transport parses it on dialling."""
    for address in addresses:
        if not (address.isascii() and address.isprintable() and address.startswith("/")):
            raise ValueError(f"not a multiaddr: {address[:64]!r}")


@dataclass(frozen=True, slots=True)
class Contact:
    """A peer, and the multiaddrs at which it says that it listens (without `/p2p/`).

    An address is only ever used together with the id, which the transport proves on connecting.
    """

    peer: Peer
    addresses: Addresses

    def __post_init__(self) -> None:
        check_addresses(self.addresses)


@dataclass(slots=True)
class _Entry:
    contact: Contact
    position: int
    seen_s: float


@dataclass(slots=True)
class _Bucket:
    entries: OrderedDict[PeerId, _Entry] = field(default_factory=OrderedDict)
    replacements: OrderedDict[PeerId, _Entry] = field(default_factory=OrderedDict)
    refreshed_s: float = float("-inf")


class RoutingTable:
    """At most 256 buckets of 16 contacts and 16 replacements. The caller verifies contacts."""

    def __init__(self, own: PeerId, *, bucket_size: int = BUCKET_SIZE) -> None:
        self.own_key = node_key(own)
        self._own = own
        self._bucket_size = bucket_size
        self._buckets: dict[int, _Bucket] = {}

    def __len__(self) -> int:
        return sum(len(bucket.entries) for bucket in self._buckets.values())

    def __contains__(self, peer: PeerId) -> bool:
        return self.get(peer) is not None

    def get(self, peer: PeerId) -> Contact | None:
        """The contact of `peer`, if it is in a bucket."""
        if peer == self._own:
            return None
        bucket = self._buckets.get(bucket_index(self.own_key, node_key(peer)))
        entry = bucket.entries.get(peer) if bucket else None
        return entry.contact if entry else None

    def contacts(self) -> tuple[Contact, ...]:
        """Every contact in a bucket, in ascending order of peer id."""
        entries = (e.contact for b in self._buckets.values() for e in b.entries.values())
        return tuple(sorted(entries, key=lambda contact: contact.peer))

    def seen(self, contact: Contact, now_s: float, *, stale_after_s: float) -> Contact | None:
        """`contact.peer` has just proved itself alive and told its addresses.

        Returns a contact worth a ping: the bucket is full and its least recently seen contact has
        been silent for over `stale_after_s`. If that one fails, the newcomer takes its place.
        """
        if contact.peer == self._own:
            return None
        key = node_key(contact.peer)
        bucket = self._buckets.setdefault(bucket_index(self.own_key, key), _Bucket())
        held = bucket.entries.get(contact.peer)
        if held is not None and held.contact == contact:
            # Most messages: nothing is new but the time.
            held.seen_s = now_s
            bucket.entries.move_to_end(contact.peer)
            return None
        entry = _Entry(contact, int.from_bytes(key, "big"), now_s)
        if self._is_corner_full(bucket, contact):
            # Also of a peer that has moved there.
            bucket.entries.pop(contact.peer, None)
            return None
        if contact.peer in bucket.entries or len(bucket.entries) < self._bucket_size:
            bucket.replacements.pop(contact.peer, None)
            bucket.entries[contact.peer] = entry
            bucket.entries.move_to_end(contact.peer)
            return None
        limits.keep_newest(bucket.replacements, contact.peer, entry, self._bucket_size)
        oldest = next(iter(bucket.entries.values()))
        return oldest.contact if now_s - oldest.seen_s > stale_after_s else None

    def _is_corner_full(self, bucket: _Bucket, contact: Contact) -> bool:
        """Whether others from the same part of the internet have their share of the bucket."""
        others = [e.contact for p, e in bucket.entries.items() if p != contact.peer]
        for bits, share in ((NARROW_BITS, SHARE_NARROW), (WIDE_BITS, SHARE_WIDE)):
            own = subnets(contact.addresses, bits)
            if own:
                near = sum(bool(own & subnets(other.addresses, bits)) for other in others)
                if near >= self._bucket_size // share:
                    return True
        return False

    def failed(self, peer: PeerId) -> None:
        """`peer` did not answer: out of its bucket; the freshest replacement moves up."""
        if peer == self._own:
            return
        index = bucket_index(self.own_key, node_key(peer))
        bucket = self._buckets.get(index)
        if bucket is None:
            return
        bucket.replacements.pop(peer, None)
        if bucket.entries.pop(peer, None) is None:
            return
        for promoted in reversed(tuple(bucket.replacements)):
            entry = bucket.replacements[promoted]
            if not self._is_corner_full(bucket, entry.contact):
                del bucket.replacements[promoted]
                # It was last heard of some time ago, so it is the first to be doubted again.
                bucket.entries[promoted] = entry
                bucket.entries.move_to_end(promoted, last=False)
                return

    def closest(self, key: Key, count: int) -> tuple[Contact, ...]:
        """The `count` contacts nearest to `key`, nearest first."""
        point = int.from_bytes(key, "big")
        entries = (entry for b in self._buckets.values() for entry in b.entries.values())
        nearest = heapq.nsmallest(count, entries, key=lambda entry: entry.position ^ point)
        return tuple(entry.contact for entry in nearest)

    def surely_closest(
        self, key: Key, count: int, now_s: float, *, searched_s: float, heard_s: float
    ) -> tuple[Contact, ...]:
        """The `count` contacts nearest to `key` if no search could find nearer ones, else nobody.

        So it is where their buckets are not full, the one around `key` was searched in the last
        `searched_s`, and each of them was heard in the last `heard_s`.
        """
        around = self._buckets.get(bucket_index(self.own_key, key)) if key != self.own_key else None
        nearest = self.closest(key, count)
        if around is None or now_s - around.refreshed_s > searched_s or len(nearest) < count:
            return ()
        for contact in nearest:
            bucket = self._buckets[bucket_index(self.own_key, node_key(contact.peer))]
            is_full = len(bucket.entries) >= self._bucket_size
            if is_full or now_s - bucket.entries[contact.peer].seen_s > heard_s:
                return ()
        return nearest

    def refreshed(self, key: Key, now_s: float) -> None:
        """A look-up of `key` has just ended: the bucket around it is up to date."""
        if key != self.own_key:
            index = bucket_index(self.own_key, key)
            self._buckets.setdefault(index, _Bucket()).refreshed_s = now_s

    def due_for_refresh(self, now_s: float, *, interval_s: float, rng: random.Random) -> list[Key]:
        """A random key in each bucket that no look-up has touched for `interval_s`, far ones first.

        Buckets nearer than our nearest contact are left out: nobody is in them, and the look-up of
        our own key would have found them.
        """
        held = [index for index, bucket in self._buckets.items() if bucket.entries]
        due = []
        for index in range(KEY_BITS - 1, min(held, default=KEY_BITS) - 1, -1):
            bucket = self._buckets.get(index)
            if bucket is None or now_s - bucket.refreshed_s >= interval_s:
                due.append(random_key_in_bucket(self.own_key, index, rng))
        return due


def distance_to(contact: Contact, key: Key) -> int:
    """How far `contact` lies from `key`."""
    return distance(node_key(contact.peer), key)
