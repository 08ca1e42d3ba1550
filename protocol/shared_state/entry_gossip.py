"""Gossip, the replicated state and the own entries of a node, as one pure machine.

Frames, links and time go in; Sends, Faults and entries to be made durable come out. The edge is
`node.peers.entry_exchange`.
"""

from collections.abc import Iterable

from protocol.entries import era_of
from protocol.gossip import GossipFrame
from protocol.gossiping.machine import Action, Gossip
from protocol.identity import PeerId
from protocol.shared_state.announcing import Announcing, NodeReading
from protocol.shared_state.book import SharedState
from protocol.shared_state.own import WrittenEntry

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
