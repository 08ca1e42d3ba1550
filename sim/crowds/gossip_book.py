"""Entries without writers: opaque bytes with their hash as id, in memory, for gossip by itself."""

from blake3 import blake3

from protocol.gossiping.gossiped import Offered, OfferVerdict
from protocol.shared_state.book import Buckets

MARK = b"sim entry "
"""What every sound entry begins with; all else is its bringer's fault."""


class SimBook:
    """A Gossiped store that holds whatever is sound. The bucket is the first byte of the id."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._buckets = Buckets()
        self._told: tuple[bytes, ...] = self._buckets.digests()
        """Equal until something is new: a comparison asks for them often."""

    def __len__(self) -> int:
        return len(self._entries)

    def bucket_digests(self) -> tuple[bytes, ...]:
        """See Gossiped."""
        self._told = self._told or self._buckets.digests()
        return self._told

    def ids_in(self, bucket: int) -> tuple[bytes, ...]:
        """See Gossiped."""
        return self._buckets.ids_in(bucket)

    def get(self, entry_id: bytes) -> bytes | None:
        """See Gossiped."""
        return self._entries.get(entry_id)

    def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
        """See Gossiped."""
        del wall_s, now_s
        if not encoded.startswith(MARK):
            return Offered(verdict=OfferVerdict.REFUSED, fault="no entry")
        entry_id = blake3(encoded).digest()
        if entry_id in self._entries:
            return Offered(verdict=OfferVerdict.KNOWN, entry_id=entry_id)
        self._entries[entry_id] = encoded
        self._buckets.add(entry_id)
        self._told = ()
        return Offered(verdict=OfferVerdict.NEW, entry_id=entry_id)
