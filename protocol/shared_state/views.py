"""What the book says, as values that merge: one for each question that is asked of it.

A view is a function of the entries that are held, so replicas with equal digests have equal views.
It is made anew when its kinds have changed.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from protocol.crdt import GrowSet, LwwCell, LwwMap, TwoPhaseSet
from protocol.entries import Entry
from protocol.entry_kinds import (
    EntryBody,
    EntryKind,
    HasCheckpoint,
    HasData,
    Identity,
    Invitation,
    Metrics,
    Note,
    Presence,
)
from protocol.identity import PeerId
from protocol.or_set import Context, Dot, OrSet, Tag
from protocol.shared_state.book import SharedState
from protocol.wire import decode

V = TypeVar("V")
B = TypeVar("B", bound=EntryBody)

PROVIDING = (EntryKind.CHECKPOINT, EntryKind.DATA)


class BookViews:
    """The views of one book."""

    def __init__(self, book: SharedState) -> None:
        self._book = book
        self._made: dict[tuple[EntryKind, ...], tuple[tuple[int, ...], object]] = {}

    def presence(self) -> LwwMap:
        """Peer -> encoded Presence of those that have not left."""
        return self._kept(
            (EntryKind.PRESENCE, EntryKind.LEAVE), lambda: self._here(EntryKind.PRESENCE)
        )

    def identities(self) -> LwwMap:
        """Peer -> encoded Identity of those that have not left."""
        return self._kept(
            (EntryKind.IDENTITY, EntryKind.LEAVE), lambda: self._here(EntryKind.IDENTITY)
        )

    def invitations(self) -> TwoPhaseSet:
        """Issuer and digest of the token, 64 bytes: issued, and revoked for good."""
        return self._kept((EntryKind.INVITATION,), self._invitations)

    def notes(self) -> OrSet:
        """The lines; each one's dot is its writer and sequence."""
        return self._kept((EntryKind.NOTE,), self._notes)

    def metrics(self) -> LwwMap:
        """Peer -> encoded Metrics."""
        return self._kept((EntryKind.METRICS,), lambda: LwwMap.of(self._cells(EntryKind.METRICS)))

    def bans(self) -> GrowSet:
        """The ids of what is proven; `SharedState.evidence` has the proofs."""
        return GrowSet.of(one.entry_id for one in self._book.evidence)

    def providers(self, kind: EntryKind, content: bytes) -> tuple[PeerId, ...]:
        """Who says that it serves a content, ascending. A hint: what it serves is verified."""
        assert kind in PROVIDING
        found = []
        for one in self._book.held_of(kind):
            if one.key == content:
                body = one.entry().content
                assert isinstance(body, HasCheckpoint | HasData)
                if not body.is_withdrawn:
                    found.append(one.writer)
        return tuple(sorted(found))

    def _kept(self, kinds: tuple[EntryKind, ...], make: Callable[[], V]) -> V:
        versions = tuple(self._book.versions[kind] for kind in kinds)
        kept = self._made.get(kinds)
        if kept is None or kept[0] != versions:
            kept = self._made[kinds] = (versions, make())
        return cast("V", kept[1])

    def _cells(self, kind: EntryKind) -> Iterator[LwwCell]:
        for entry in self._book.entries(kind):
            yield LwwCell(
                key=entry.writer,
                value=entry.body,
                is_removed=False,
                stamp=entry.stamp,
                writer=entry.writer,
            )

    def _here(self, kind: EntryKind) -> LwwMap:
        leaves = (
            LwwCell(key=one.writer, value=b"", is_removed=True, stamp=one.stamp, writer=one.writer)
            for one in self._book.entries(EntryKind.LEAVE)
        )
        return LwwMap.of([*self._cells(kind), *leaves])

    def _invitations(self) -> TwoPhaseSet:
        issued: list[bytes] = []
        revoked: list[bytes] = []
        for entry in self._book.entries(EntryKind.INVITATION):
            body = _of(Invitation, entry)
            (revoked if body.is_revoked else issued).append(entry.writer + entry.key)
        return TwoPhaseSet.of(issued, revoked)

    def _notes(self) -> OrSet:
        # The join of one delta per note, in one pass.
        tags: list[Tag] = []
        seen: list[Dot] = []
        removed: set[Dot] = set()
        for entry in self._book.entries(EntryKind.NOTE):
            note, dot = _of(Note, entry), Dot(entry.writer, entry.sequence)
            seen.append(dot)
            removed.update(note.removes)
            if note.text:
                tags.append(Tag(note.text.encode(), dot))
        kept = sorted(tag for tag in tags if tag.dot not in removed)
        return OrSet(tags=tuple(kept), context=Context.of([*seen, *removed]))


def presence_of(view: LwwMap) -> dict[PeerId, Presence]:
    """The decoded values of `Views.presence`."""
    return {PeerId(peer): decode(Presence, value) for peer, value in view.values.items()}


def identities_of(view: LwwMap) -> dict[PeerId, Identity]:
    """The decoded values of `Views.identities`."""
    return {PeerId(peer): decode(Identity, value) for peer, value in view.values.items()}


def metrics_of(view: LwwMap) -> dict[PeerId, Metrics]:
    """The decoded values of `Views.metrics`."""
    return {PeerId(peer): decode(Metrics, value) for peer, value in view.values.items()}


def _of(kind: type[B], entry: Entry) -> B:
    body = entry.content
    assert isinstance(body, kind)
    return body
