"""What is kept of an entry: its bytes, and the few numbers that decisions need."""

from dataclasses import dataclass

from protocol.entries import Entry
from protocol.entry_kinds import EntryKind, Invitation
from protocol.identity import PeerId
from protocol.wire import decode


@dataclass(slots=True, frozen=True, eq=False)
class HeldEntry:
    """One entry of the book. There may be a hundred thousand: no decoded form is kept."""

    entry_id: bytes
    encoded: bytes
    kind: EntryKind
    key: bytes
    writer: PeerId
    era: int
    sequence: int
    stamp: int
    ends_s: float
    is_final: bool

    @property
    def rank(self) -> tuple[bool, int]:
        """Under one key of a writer the highest counts: the last, but for good what is final."""
        return self.is_final, self.sequence

    def entry(self) -> Entry:
        """Decoded anew: it was sound when it came."""
        return decode(Entry, self.encoded)


def held(entry: Entry, encoded: bytes, writer: PeerId) -> HeldEntry:
    """What is kept of `entry`; `writer` is its writer, as the object that is kept already."""
    content = entry.content
    return HeldEntry(
        entry_id=entry.entry_id,
        encoded=encoded,
        kind=entry.kind,
        key=entry.key,
        writer=writer,
        era=entry.era,
        sequence=entry.sequence,
        stamp=entry.stamp,
        ends_s=entry.ends_s,
        is_final=isinstance(content, Invitation) and content.is_revoked,
    )
