"""Writers, entries and books for tests of the replicated state."""

from dataclasses import replace
from typing import Protocol

from blake3 import blake3

from protocol.entries import Entry, EntryHeader, draft_entry, sign_entry
from protocol.entry_kinds import RULES, EntryBody, EntryKind
from protocol.gossiping.gossiped import Offered
from protocol.hybrid_clock import COUNTER_BITS, Stamp, stamp_at
from protocol.identity import KeyedHashSigner, PeerId, Signer
from protocol.shared_state.book import SharedState
from protocol.wire import encode
from tests.protocol.entry_vectors import BODIES

RUN = bytes([7]) * 32
WALL_S = 1_700_000_000.0


def signer(number: int) -> KeyedHashSigner:
    return KeyedHashSigner(PeerId(bytes([number]) * 32))


def digest(number: int) -> bytes:
    return blake3(number.to_bytes(8, "big")).digest()


def key_of(kind: EntryKind, number: int = 1) -> bytes:
    return digest(number)[: RULES[kind].key_bytes]


def make_entry(
    writer: Signer,
    kind: EntryKind = EntryKind.NOTE,
    *,
    after: Entry | None = None,
    wall_s: float = WALL_S,
    **changes: object,
) -> Entry:
    """A signed entry that begins a chain, or follows `after`; `changes` replace header fields,
    `body` the body."""
    stamp = stamp_at(wall_s) if after is None else Stamp(max(after.stamp + 1, stamp_at(wall_s)))
    body = changes.pop("body", BODIES[kind])
    header = EntryHeader(
        version=1,
        run=RUN,
        kind=kind,
        key=key_of(kind),
        writer=writer.peer_id,
        era=0,
        sequence=stamp >> COUNTER_BITS,
        stamp=stamp,
        expires_unix_s=int(wall_s + RULES[kind].ttl_s),
        previous=b"",
        body=bytes(32),
    )
    if after is not None:
        stamp = Stamp(max(stamp, (after.sequence + 1) << COUNTER_BITS))
        header = replace(header, stamp=stamp, sequence=after.sequence + 1, previous=after.entry_id)
    header = replace(header, **changes)  # type: ignore[arg-type]
    return sign_entry(draft_entry(header, body), writer)  # type: ignore[arg-type]


class Node:
    """A book and its clocks."""

    def __init__(self, number: int, *, wall_s: float = WALL_S) -> None:
        self.signer = signer(number)
        self.book = SharedState(RUN, self.signer)
        self.wall_s = wall_s

    def offer(self, entry: Entry | bytes) -> Offered:
        encoded = entry if isinstance(entry, bytes) else encode(entry)
        return self.book.offer(encoded, wall_s=self.wall_s, now_s=0.0)

    def write(
        self, kind: EntryKind = EntryKind.NOTE, number: int = 1, body: EntryBody | None = None
    ):
        written = self.book.write(
            kind, key_of(kind, number), body or BODIES[kind], wall_s=self.wall_s
        )
        assert self.book.release(written, wall_s=self.wall_s).is_new
        return written


def all_ids(book: SharedState) -> list[bytes]:
    return [entry_id for bucket in range(256) for entry_id in book.ids_in(bucket)]


class Party(Protocol):
    """Who has a book, and takes offers by its own clock."""

    book: SharedState

    def offer(self, encoded: bytes, /) -> Offered: ...


def exchange(here: Party, there: Party) -> None:
    """What a digest exchange without losses comes to; no offer is anybody's fault."""
    pairs = zip(here.book.bucket_digests(), there.book.bucket_digests(), strict=True)
    for bucket in [number for number, (ours, theirs) in enumerate(pairs) if ours != theirs]:
        ours, theirs = set(here.book.ids_in(bucket)), set(there.book.ids_in(bucket))
        for giver, taker, ids in ((here, there, ours - theirs), (there, here, theirs - ours)):
            for entry_id in sorted(ids):
                encoded = giver.book.get(entry_id)
                if encoded is not None:
                    offered = taker.offer(encoded)
                    assert not offered.fault, offered
