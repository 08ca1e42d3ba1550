"""Ids in 256 buckets, and a digest of each: how two replicas find where they differ."""

from bisect import bisect_left, insort

from blake3 import blake3

from protocol.gossiping.gossiped import BUCKET_DOMAIN, EMPTY_BUCKET, NUM_BUCKETS


class Buckets:
    """A set of 32-byte ids.

    A bucket's digest is over its sorted ids, made anew when it is asked for after a change. It is
    no sum of fingerprints, which whoever chooses ids could make collide.
    """

    def __init__(self) -> None:
        self._ids: list[list[bytes]] = [[] for _ in range(NUM_BUCKETS)]
        self._digests = [EMPTY_BUCKET] * NUM_BUCKETS
        self._dirty: set[int] = set()

    def add(self, entry_id: bytes) -> None:
        """Put in an id that is not in."""
        insort(self._ids[entry_id[0]], entry_id)
        self._dirty.add(entry_id[0])

    def remove(self, entry_id: bytes) -> None:
        """Take out an id that is in."""
        bucket = self._ids[entry_id[0]]
        del bucket[bisect_left(bucket, entry_id)]
        self._dirty.add(entry_id[0])

    def digests(self) -> tuple[bytes, ...]:
        """One per bucket."""
        for bucket in self._dirty:
            self._digests[bucket] = blake3(BUCKET_DOMAIN + b"".join(self._ids[bucket])).digest()
        self._dirty.clear()
        return tuple(self._digests)

    def ids_in(self, bucket: int) -> tuple[bytes, ...]:
        """Ascending."""
        return tuple(self._ids[bucket])
