"""What peers say of themselves, for people to look at and for the search: who is known at all."""

from collections.abc import Iterable
from itertools import chain

from node.status.records import PeerReport
from protocol.entry_kinds import EntryKind, Identity, Presence
from protocol.hybrid_clock import stamp_s
from protocol.identity import PeerId
from protocol.shared_state.book import SharedState

TELLING = (EntryKind.IDENTITY, EntryKind.PRESENCE, EntryKind.LEAVE)
"""The kinds that `all_told` is made of: it changes with their versions."""


def all_told(book: SharedState, first: Iterable[PeerId], *, most: int) -> dict[PeerId, PeerReport]:
    """Who has told what it is and has not left: of `first`, then of others, at most `most`.

    This node itself is left out. Entries of each are decoded, and no more than twice `most` are
    looked at: those who came to leave could be many.
    """
    others = (held.writer for held in book.held_of(EntryKind.IDENTITY))
    seen: set[PeerId] = {book.me}
    told: dict[PeerId, PeerReport] = {}
    for peer in chain(first, others):
        if len(told) >= most or len(seen) > 2 * most:
            break
        one = None if peer in seen else _told_by(book, peer)
        seen.add(peer)
        if one is not None:
            told[peer] = one
    return told


def _told_by(book: SharedState, peer: PeerId) -> PeerReport | None:
    identity, presence, left = (book.entry(peer, kind) for kind in TELLING)
    left_at = -1 if left is None else left.stamp
    if presence is not None and presence.stamp <= left_at:
        presence = None
    if identity is None or identity.stamp <= left_at:
        return None
    said, here = identity.content, None if presence is None else presence.content
    assert isinstance(said, Identity)
    return PeerReport(
        device=said.device,
        software=said.software,
        addresses=said.addresses,
        round=here.round if isinstance(here, Presence) else None,
        at_unix_s=stamp_s(identity.stamp if presence is None else presence.stamp),
    )
