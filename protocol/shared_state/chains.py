"""The entries that are held, by writer and kind: what overtakes, contradicts or crowds out what."""

from collections.abc import Iterable, Iterator

from protocol.entry_kinds import RULES, EntryKind
from protocol.identity import PeerId
from protocol.shared_state.held import HeldEntry


class Chains:
    """Per writer and kind what is held, by ascending sequence; under each key the last one only.

    A chain is as short as its kind's `per_writer`, so it is a list that is walked.
    """

    def __init__(self) -> None:
        self._chains: dict[EntryKind, dict[PeerId, list[HeldEntry]]] = {
            kind: {} for kind in EntryKind
        }

    def of(self, writer: PeerId, kind: EntryKind) -> tuple[HeldEntry, ...]:
        """Ascending."""
        return tuple(self._chains[kind].get(writer, ()))

    def of_kind(self, kind: EntryKind) -> Iterator[HeldEntry]:
        """All of a kind, by writer as they came, each ascending."""
        for chain in self._chains[kind].values():
            yield from chain

    def all(self) -> Iterator[HeldEntry]:
        """Everything."""
        for kind in EntryKind:
            yield from self.of_kind(kind)

    def writer(self, writer: PeerId) -> PeerId:
        """The same key, as the object that is kept already: twenty thousand entries share it."""
        for chains in self._chains.values():
            chain = chains.get(writer)
            if chain:
                return chain[0].writer
        return writer

    def suspects(self, new: HeldEntry) -> tuple[HeldEntry, ...]:
        """What is held and may contradict `new`: its namesakes and neighbours in the chain."""
        chain = self._chains[new.kind].get(new.writer, ())
        return tuple(one for one in chain if abs(one.sequence - new.sequence) <= 1)

    def overtakes(self, new: HeldEntry) -> bool:
        """Whether something of a higher rank is held under the key of `new`."""
        chain = self._chains[new.kind].get(new.writer, ())
        return any(one.key == new.key and one.rank >= new.rank for one in chain)

    def is_crowded(self, new: HeldEntry) -> bool:
        """Whether the writer has as many later entries as it may have."""
        chain = self._chains[new.kind].get(new.writer, ())
        later = sum(one.sequence > new.sequence and one.key != new.key for one in chain)
        return later >= RULES[new.kind].per_writer

    def insert(self, new: HeldEntry) -> list[HeldEntry]:
        """Put in what nothing overtakes or crowds out; what goes for it."""
        chain = self._chains[new.kind].setdefault(new.writer, [])
        gone = [one for one in chain if one.key == new.key]
        kept = [one for one in chain if one.key != new.key]
        kept.append(new)
        kept.sort(key=lambda one: one.sequence)
        surplus = len(kept) - RULES[new.kind].per_writer
        if surplus > 0:
            gone += kept[:surplus]
            del kept[:surplus]
        chain[:] = kept
        return gone

    def remove(self, gone: Iterable[HeldEntry]) -> None:
        """Take out entries that are in."""
        for one in gone:
            chains = self._chains[one.kind]
            chain = chains[one.writer]
            chain[:] = [other for other in chain if other is not one]
            if not chain:
                del chains[one.writer]
