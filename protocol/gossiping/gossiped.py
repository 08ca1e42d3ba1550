"""SEAM Gossiped: what gossip asks of the replicated state. It moves bytes and ids, nothing else."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from blake3 import blake3

NUM_BUCKETS = 256
"""Ids fall into buckets by their first byte."""

BUCKET_DOMAIN = b"barnraise/bucket/1"
"""A bucket's digest is BLAKE3 over this and its ids, ascending: their number is in their length."""

EMPTY_BUCKET = blake3(BUCKET_DOMAIN).digest()
"""The digest of a bucket without ids."""


class OfferVerdict(Enum):
    """What became of offered bytes."""

    NEW = auto()
    """Merged: whoever has it passes it on."""

    KNOWN = auto()
    """Held already, or overtaken by what is held: nothing changed."""

    REFUSED = auto()
    """Not merged, for a reason that may be the clock's, the room's or the era's; or a fault."""

    CONTRADICTION = auto()
    """Not merged: with what is held it convicts its writer. `Offered.evidence` proves it."""


class OfferRefusal(Enum):
    """Why sound bytes are not merged. None of these is anybody's fault: clocks, eras and rosters
    differ, and the room is the own."""

    ERA = "of an era that is past"
    AHEAD = "stamped ahead of the clock here"
    ENDED = "has ended"
    CONVICTED = "its writer is convicted"
    CROWDED = "its writer has as many later ones as it may"
    FULL = "no room for another of this kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The answer to `Gossiped.offer`.

    `fault` is empty unless the bytes prove that whoever passed them on is at fault: honest peers
    pass on only what they have checked; `reason` says it in words. `refusal` is why it was refused
    without fault. `entry_id` is empty for bytes that are no entry. `evidence` is the id of what
    this offer proved for the first time; it is held from now on and worth a push.
    """

    verdict: OfferVerdict
    entry_id: bytes = b""
    fault: str = ""
    reason: str = ""
    refusal: OfferRefusal | None = None
    evidence: bytes = b""

    @property
    def is_new(self) -> bool:
        """Whether it was merged now: worth a push to others."""
        return self.verdict is OfferVerdict.NEW


class Gossiped(Protocol):
    """SEAM: a set of entries that names what it holds. Entries leave it as well: expired,
    overtaken, or out of room; who offers one of them again is not at fault."""

    def bucket_digests(self) -> tuple[bytes, ...]:
        """256 digests of 32 bytes; two replicas with equal digests hold the same ids. The one of
        an empty bucket is EMPTY_BUCKET."""
        ...

    def ids_in(self, bucket: int) -> tuple[bytes, ...]:
        """The ids (32 bytes, ascending) whose first byte is `bucket` (0..255)."""
        ...

    def get(self, entry_id: bytes) -> bytes | None:
        """The encoded entry, at most `limits.ENTRY_BYTES_MAX` bytes; None if it is not held."""
        ...

    def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
        """Merge an entry that somebody passed on: any bytes, in any order, as often as they come.

        `wall_s` is Unix time, `now_s` monotonic. Never raises because of what `encoded` is.
        """
        ...
