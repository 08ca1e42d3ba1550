"""Entries and ids in as few frames as the limits allow."""

from collections.abc import Iterable, Iterator, Sequence

from protocol import limits
from protocol.gossip import Entries

FRAME_BYTES = 48 * limits.KIB
"""Entries are packed into a frame up to here; one of the largest fits in any case."""


def pack_entries(entries: Iterable[bytes]) -> Iterator[Entries]:
    """The entries in their order, as an answer to a question."""
    batch: list[bytes] = []
    size = 0
    for entry in entries:
        if batch and (size + len(entry) > FRAME_BYTES - 5 * 256 or len(batch) == 256):
            yield Entries(is_push=False, entries=tuple(batch))
            batch, size = [], 0
        batch.append(entry)
        size += len(entry)
    if batch:
        yield Entries(is_push=False, entries=tuple(batch))


def pages(ids: Sequence[bytes]) -> Iterator[tuple[bytes, ...]]:
    """The ids in their order, as many at a time as a frame holds."""
    for start in range(0, len(ids), limits.GOSSIP_IDS_MAX):
        yield tuple(ids[start : start + limits.GOSSIP_IDS_MAX])
