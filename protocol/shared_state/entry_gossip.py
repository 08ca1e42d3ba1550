"""Gossip, the replicated state and the own entries of a node, as one pure machine.

Frames, links and time go in; Sends, Faults and entries to be made durable come out. The edge is
`node.peers.entry_exchange`.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from protocol.entries import era_of
from protocol.entry_kinds import (
    RULES,
    Departure,
    EntryBody,
    EntryKind,
    HasCheckpoint,
    HoldsText,
    Identity,
    Metrics,
    Presence,
    Reading,
)
from protocol.errors import LimitError, StateError
from protocol.gossip import GossipFrame
from protocol.gossiping.machine import Action, Gossip
from protocol.identity import PeerId
from protocol.shared_state.book import SharedState
from protocol.shared_state.own import WrittenEntry

# Announcing ---------------------------------------------------------------------------------------
#
# What a node says of itself, and when: the own entries that are due. All tell what they are
# (IDENTITY), those without a seat only while few do. Who has a seat also tells that it is alive
# (PRESENCE) and how it fares (METRICS): so the traffic of a large swarm has the size of its group,
# not its own.

logger = logging.getLogger(__name__)

AGAIN_S = 15.0
"""What changed, or did not reach the disk, is written again so long after the last time."""

RENEW_S = 60.0
PRESENCE_S = 0.4 * RULES[EntryKind.PRESENCE].ttl_s
METRICS_S = 120.0
CHECKPOINT_S = 300.0
"""A key lives for an hour, and a writer has 16: in a run of short rounds not every checkpoint can
be told of."""

TEXT_S = 5.0
"""A keeper has news every fifteen seconds at most, and once more when it holds all it should."""

TELLERS_MAX = 256
"""Where so many have told what they are, whoever has no seat is silent; introductions do for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint on the own disk: the root of its state, and what is said of it."""

    root: bytes
    body: HasCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptText:
    """What of the run's text is on the own disk, by the text's root."""

    root: bytes
    body: HoldsText


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """A node at one moment. `round` and `head` are the newest seal's; readings ascend by name.

    `identity` is None while the node is not up: nothing is said by then.
    """

    identity: Identity | None
    incarnation: int
    round: int
    head: bytes
    is_seated: bool
    readings: tuple[Reading, ...] = ()
    checkpoint: KeptCheckpoint | None = None
    text: KeptText | None = None


class Announcing:
    """Decides what of a Standing is news, and writes it; the disk comes before `release`."""

    def __init__(self, book: SharedState) -> None:
        self._book = book
        self._tried_s: dict[EntryKind, float] = {}
        self._renewed_s = float("-inf")
        self._era = book.era
        self._present: Presence | None = None
        """What was said last in this life: who starts anew says so."""
        self._said_era = -1
        self._has_left = False

    def due(
        self, standing: NodeReading, *, wall_s: float, now_s: float
    ) -> tuple[WrittenEntry, ...]:
        """What is to be written now; none while others must be asked first, or behind a `leave`."""
        identity, kind = standing.identity, EntryKind.IDENTITY
        if identity is None or self._book.must_ask or self._has_left:
            return ()
        written: list[WrittenEntry | None] = []
        is_new_era, self._era = self._era != self._book.era, self._book.era
        if is_new_era or now_s - self._renewed_s >= RENEW_S:
            self._renewed_s = now_s
            written += self._renewals(wall_s)
        is_news = self._is_news(identity) and (standing.is_seated or self._is_among_few())
        if is_news and self._is_due(kind, AGAIN_S, now_s):
            written.append(self._write(kind, identity, wall_s))
        if standing.is_seated:
            written += self._of_the_seated(standing, wall_s, now_s)
        if standing.checkpoint is not None:
            written += self._checkpoint(standing.checkpoint, wall_s, now_s)
        if standing.text is not None:
            written += self._text(standing.text, wall_s, now_s)
        return tuple(one for one in written if one is not None)

    def leave(self, reason: str, *, wall_s: float) -> tuple[WrittenEntry, ...]:
        """That this node goes, if others were told that it is here. Nothing is due from now on."""
        is_known = self._held(EntryKind.IDENTITY) or self._held(EntryKind.PRESENCE)
        if self._has_left or self._book.must_ask or not is_known:
            self._has_left = True
            return ()
        self._has_left = True
        written = self._write(EntryKind.LEAVE, Departure(reason=reason[:64]), wall_s)
        return () if written is None else (written,)

    def _held(self, kind: EntryKind) -> bool:
        return self._book.entry(self._book.me, kind) is not None

    def _is_among_few(self) -> bool:
        tellers = islice(self._book.held_of(EntryKind.IDENTITY), TELLERS_MAX)
        return self._held(EntryKind.IDENTITY) or sum(1 for _ in tellers) < TELLERS_MAX

    def _is_news(self, identity: Identity) -> bool:
        mine = self._book.entry(self._book.me, EntryKind.IDENTITY)
        left = self._book.entry(self._book.me, EntryKind.LEAVE)
        if mine is None or (left is not None and left.stamp > mine.stamp):
            return True
        return mine.content != identity

    def _is_due(self, kind: EntryKind, every_s: float, now_s: float) -> bool:
        if now_s - self._tried_s.get(kind, float("-inf")) < every_s:
            return False
        self._tried_s[kind] = now_s
        return True

    def _of_the_seated(
        self, standing: NodeReading, wall_s: float, now_s: float
    ) -> list[WrittenEntry | None]:
        written: list[WrittenEntry | None] = []
        said = self._present
        is_news = said is None or said.incarnation != standing.incarnation
        is_news |= self._said_era != self._book.era or not self._held(EntryKind.PRESENCE)
        if self._is_due(EntryKind.PRESENCE, AGAIN_S if is_news else PRESENCE_S, now_s):
            self._said_era = self._book.era
            self._present = Presence(
                incarnation=standing.incarnation, round=standing.round, head=standing.head
            )
            written.append(self._write(EntryKind.PRESENCE, self._present, wall_s))
        if standing.readings and self._is_due(EntryKind.METRICS, METRICS_S, now_s):
            metrics = Metrics(round=standing.round, readings=standing.readings)
            written.append(self._write(EntryKind.METRICS, metrics, wall_s))
        return written

    def _checkpoint(
        self, kept: KeptCheckpoint, wall_s: float, now_s: float
    ) -> list[WrittenEntry | None]:
        """The newest, and that those which were told of before may be gone."""
        me, kind = self._book.me, EntryKind.CHECKPOINT
        if not self._is_due(kind, CHECKPOINT_S, now_s):
            return []
        mine = [one.entry() for one in self._book.held_of(kind) if one.writer == me]
        told = {entry.key: entry.content for entry in mine}
        if told.get(kept.root) == kept.body:
            return []
        written = [self._write(kind, kept.body, wall_s, key=kept.root)]
        for key, body in told.items():
            assert isinstance(body, HasCheckpoint)
            if key != kept.root and not body.is_withdrawn:
                written.append(self._write(kind, replace(body, is_withdrawn=True), wall_s, key=key))
        return written

    def _text(self, kept: KeptText, wall_s: float, now_s: float) -> list[WrittenEntry | None]:
        """What changed; how often it does, its keeper decides."""
        mine = self._book.entry(self._book.me, EntryKind.TEXT, kept.root)
        is_news = mine is None or mine.content != kept.body
        if not is_news or not self._is_due(EntryKind.TEXT, TEXT_S, now_s):
            return []
        return [self._write(EntryKind.TEXT, kept.body, wall_s, key=kept.root)]

    def _renewals(self, wall_s: float) -> tuple[WrittenEntry, ...]:
        try:
            return self._book.renewals(wall_s)
        except (LimitError, StateError) as error:
            logger.warning("own entries not renewed reason=%s", error)
            return ()

    def _write(
        self, kind: EntryKind, body: EntryBody, wall_s: float, *, key: bytes = b""
    ) -> WrittenEntry | None:
        try:
            return self._book.write(kind, key, body, wall_s=wall_s)
        except (LimitError, StateError) as error:
            logger.warning("own entry not written kind=%s reason=%s", kind.name, error)
            return None


def texts_told(
    book: SharedState, root: bytes, first: Iterable[PeerId], *, most: int
) -> dict[PeerId, HoldsText]:
    """What others say that they hold of a text: `first`, then anybody else, at most `most`."""
    others = (held.writer for held in book.held_of(EntryKind.TEXT))
    told: dict[PeerId, HoldsText] = {}
    for peer in islice(dict.fromkeys((*first, *others)), 2 * most):
        entry = book.entry(peer, EntryKind.TEXT, root)
        if entry is not None and peer != book.me and len(told) < most:
            assert isinstance(entry.content, HoldsText)
            told[peer] = entry.content
    return told


# Gossip and book ----------------------------------------------------------------------------------

EXPIRE_S = 5.0
ANSWERS = 3
"""Exchanges that must have been answered before a node that may have lost own entries writes. Each
brings what the other holds, this node's own entries among it."""

SILENCE_S = 60.0
"""If nobody answers for so long, there is nobody to ask."""


class EntryGossip:
    """One owner, no threads. `wakeup_s` says when `tick` is due; `look` is, about every second."""

    def __init__(self, book: SharedState, gossip: Gossip, *, now_s: float) -> None:
        self.book = book
        self.gossip = gossip
        self._announcing = Announcing(book)
        self._expire_s = now_s + EXPIRE_S
        self._members: tuple[PeerId, ...] = ()
        self._answers, self._answered_s = 0, now_s

    def wakeup_s(self) -> float:
        """When `tick` is due at the latest."""
        return self.gossip.wakeup_s()

    def linked(self, peer: PeerId, addresses: tuple[str, ...], *, now_s: float) -> list[Action]:
        """A control stream is open, and its peer trains this run."""
        # Either side may have missed what was told before.
        self.gossip.comparing.hurry(now_s)
        return self.gossip.meet(peer, addresses, now_s=now_s)

    def unlinked(self, peer: PeerId, *, now_s: float) -> list[Action]:
        """A control stream ended."""
        return self.gossip.link_broke(peer, now_s=now_s)

    def frame(
        self, peer: PeerId, frame: GossipFrame, *, wall_s: float, now_s: float
    ) -> list[Action]:
        """What a linked peer said."""
        return self.gossip.handle(peer, frame, wall_s=wall_s, now_s=now_s)

    def tick(self, *, now_s: float) -> list[Action]:
        """What time has made due."""
        return self.gossip.tick(now_s=now_s)

    def look(
        self, standing: NodeReading, members: tuple[PeerId, ...], *, wall_s: float, now_s: float
    ) -> tuple[WrittenEntry, ...]:
        """Where the run is and who is seated in it; the own entries that are due. They go to the
        disk, then to `release`."""
        if members != self._members:
            self._members = members
            self.book.set_members(frozenset(members))
        if era_of(standing.round) > self.book.era:
            self.book.enter_era(era_of(standing.round))
        if now_s >= self._expire_s:
            self._expire_s = now_s + EXPIRE_S
            self.book.expire(wall_s)
        return self._announcing.due(standing, wall_s=wall_s, now_s=now_s)

    def release(
        self, written: Iterable[WrittenEntry], *, wall_s: float, now_s: float
    ) -> list[Action]:
        """Own entries are on the disk: tell them."""
        actions: list[Action] = []
        for one in written:
            if self.book.release(one, wall_s=wall_s).is_new:
                actions += self.gossip.pass_on(one.entry_id, now_s=now_s)
        return actions

    def leave(self, reason: str, *, wall_s: float) -> tuple[WrittenEntry, ...]:
        """This node goes: its last entry, for disk and `release`. `farewell` comes behind it."""
        return self._announcing.leave(reason, wall_s=wall_s)

    def farewell(self, *, now_s: float) -> list[Action]:
        """The neighbours need not look for this node."""
        return self.gossip.leave(now_s=now_s)

    def has_asked(self, *, now_s: float) -> bool:
        """Whether enough others have told what they hold of this node, or none is there.

        A hint, and good enough: no number is used twice even where they knew nothing.
        """
        counts = self.gossip.comparing.counts
        answers = counts.equal + counts.unequal
        if answers > self._answers:
            self._answers, self._answered_s = answers, now_s
        return answers >= ANSWERS or now_s - self._answered_s >= SILENCE_S
