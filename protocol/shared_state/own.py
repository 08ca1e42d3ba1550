"""The next entry of one's own: its number, its stamp, and when none may be written. Pure."""

import math
from dataclasses import dataclass

from protocol.entries import ENTRY_VERSION, EntryHeader, draft_entry, sign_entry
from protocol.entry_kinds import RULES, EntryBody, EntryKind
from protocol.errors import StateError
from protocol.hybrid_clock import COUNTER_BITS, HybridClock, stamp_s
from protocol.identity import Signer
from protocol.wire import encode

_NO_BODY = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenEntry:
    """An entry of one's own that nobody has seen yet. It goes to disk, then to `release`."""

    entry_id: bytes
    encoded: bytes
    kind: EntryKind
    sequence: int
    stamp: int


class OwnChains:
    """The writer's side of the own chains.

    A start begins every chain anew, at the milliseconds of its stamp: what a lost or torn file may
    have forgotten has lower numbers. `floor` is the highest stamp known to have been signed; what
    others hold of ours raises it, so that a wall clock that went back since, with the disk, leads
    to no number that was used.
    """

    def __init__(self, run: bytes, signer: Signer, *, floor: int, must_ask: bool) -> None:
        self._run = run
        self._signer = signer
        self._heads: dict[EntryKind, tuple[int, bytes]] = {}
        self._clock = HybridClock(_end_of_millisecond(floor))
        self.must_ask = must_ask

    def write(
        self, kind: EntryKind, key: bytes, body: EntryBody, *, era: int, wall_s: float
    ) -> WrittenEntry:
        """The next entry of a kind.

        Raises StateError while others must be asked first, LimitError for a body that is too long.
        """
        if self.must_ask:
            raise StateError(
                "what this node signed is not on its disk: it writes nothing until others have "
                "told what they hold of it"
            )
        stamp = self._clock.next(wall_s)
        head = self._heads.get(kind)
        if head is None:
            sequence, previous = stamp >> COUNTER_BITS, b""
        else:
            sequence, previous = head[0] + 1, head[1]
            if sequence > stamp >> COUNTER_BITS:
                # More than a thousand a second: the stamps run ahead, as with a full counter.
                self._clock.hear(sequence << COUNTER_BITS, math.inf)
                stamp = self._clock.next(wall_s)
        header = EntryHeader(
            version=ENTRY_VERSION,
            run=self._run,
            kind=kind,
            key=key,
            writer=self._signer.peer_id,
            era=era,
            sequence=sequence,
            stamp=stamp,
            expires_unix_s=int(stamp_s(stamp) + RULES[kind].ttl_s) + 1,
            previous=previous,
            body=_NO_BODY,
        )
        entry = sign_entry(draft_entry(header, body), self._signer)
        self._heads[kind] = (sequence, entry.entry_id)
        return WrittenEntry(
            entry_id=entry.entry_id,
            encoded=encode(entry),
            kind=kind,
            sequence=sequence,
            stamp=stamp,
        )

    def hear(self, stamp: int, wall_s: float) -> None:
        """Somebody else's stamp: what is written next is later, unless it is far ahead."""
        self._clock.hear(stamp, wall_s)

    def hear_own(self, kind: EntryKind, sequence: int, stamp: int) -> None:
        """An entry of ours, its signature checked, that came from others or from the disk.

        One that is not behind the head begins the chain anew beyond it: this node signed it before
        it started, and what it signed between is not known.
        """
        head = self._heads.get(kind)
        if head is not None and sequence <= head[0]:
            return
        self._heads.pop(kind, None)
        # Believed however far ahead it is: nobody else can have stamped it.
        self._clock.hear(_end_of_millisecond(stamp), math.inf)


def _end_of_millisecond(stamp: int) -> int:
    """The last stamp of its millisecond: no sequence is beyond it, and the next one is higher."""
    return stamp | ((1 << COUNTER_BITS) - 1)
