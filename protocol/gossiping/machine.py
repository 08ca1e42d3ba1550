"""Gossip: whom one knows, what is new, what was missed, who is gone, as one pure machine.

Frames and time go in, sends and faults come out; entries live in a `Gossiped` store. It may name
any peer that it knows in a Send: whoever carries that out opens a link first if there is none, at
`addresses(peer)`, or drops the frame. Every frame may be lost.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from protocol import limits
from protocol.events import Fault, Send
from protocol.gossip import (
    Ack,
    BucketIds,
    Compare,
    Digests,
    Entries,
    Farewell,
    GossipFrame,
    Introduction,
    Neighbour,
    NeighbourKind,
    OfferIds,
    Ping,
    PingFor,
    Shuffle,
    Shuffled,
    WantEntries,
)
from protocol.gossiping.anti_entropy import AntiEntropy
from protocol.gossiping.gossiped import Gossiped, Offered
from protocol.gossiping.settings import (
    ENTRY_BYTES,
    ERRANDS,
    FRAMES,
    IDS,
    SERVED_BYTES,
    GossipSettings,
    Quota,
)
from protocol.gossiping.spreading import Spreading
from protocol.gossiping.swim import Swim
from protocol.gossiping.views import PartialViews, told_addresses
from protocol.identity import PeerId

VIEW_LOOK_S = 1.0
FAULT_AGAIN_S = 1.0
"""A flood is one fault per second, however many frames it has."""

DIGESTS_BYTES = 4.5 * limits.KIB
"""What a question of 50 bytes brings."""

SHUFFLE_ANSWER_S = 5.0
"""Introductions that nobody asked for, or that come so late, are not taken."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A neighbour was given up: neither it nor anybody asked for it answered."""

    peer: PeerId


Action = Send | Fault | Gone


class Gossip:
    """One node's gossip. Methods return what is due, in order; `wakeup_s` says when `tick` is.

    `addresses` tells where this node listens; `rng` is its luck, and its nonces: unpredictable to
    others in a real node.
    """

    def __init__(
        self,
        me: PeerId,
        book: Gossiped,
        rng: random.Random,
        *,
        addresses: Callable[[], tuple[str, ...]] = tuple,
        settings: GossipSettings | None = None,
        now_s: float,
    ) -> None:
        self.settings = settings or GossipSettings()
        self._me = me
        self._book = book
        self._rng = rng
        self._own_addresses = addresses
        self.views = PartialViews(me, rng, self.settings)
        self.spreading = Spreading(rng, self.settings, book.get)
        self.comparing = AntiEntropy(book, rng, self.settings, now_s=now_s)
        self.swim = Swim(me, rng, self.settings, now_s=now_s)
        self._frames, self._ids = Quota(FRAMES), Quota(IDS)
        self._taken, self._served = Quota(ENTRY_BYTES), Quota(SERVED_BYTES)
        self._errands = Quota(ERRANDS)
        self._faulted_s: dict[PeerId, float] = {}
        self._shuffles: dict[PeerId, tuple[int, float]] = {}
        self._look_s = now_s
        self._is_lost_turn = False
        self._shuffle_s = now_s + rng.random() * self.settings.shuffle_s
        self._actions: list[Action] = []

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where a peer in view may be dialled."""
        return self.views.addresses(peer)

    def wakeup_s(self) -> float:
        """When `tick` is due at the latest."""
        return min(
            self._look_s,
            self._shuffle_s,
            self.spreading.wakeup_s(),
            self.comparing.wakeup_s(),
            self.swim.wakeup_s(),
        )

    # What happens here ----------------------------------------------------------------------------

    def meet(self, peer: PeerId, addresses: tuple[str, ...], *, now_s: float) -> list[Action]:
        """The directory, an invite or the disk named a peer: as good as its own word."""
        self.views.meet(peer, addresses, peer, now_s)
        return self._take_actions()

    def link_broke(self, peer: PeerId, *, now_s: float) -> list[Action]:
        """The link to a peer ended: look whether it is there, without giving it up for that."""
        self.swim.look(peer)
        return self._take_actions()

    def publish(
        self, encoded: bytes, *, wall_s: float, now_s: float
    ) -> tuple[Offered, list[Action]]:
        """An entry that this node wrote, or took from elsewhere than gossip: store and spread it.

        The result says whether the store took it.
        """
        offered = self._book.offer(encoded, wall_s=wall_s, now_s=now_s)
        if offered.is_new:
            self._spread(offered.entry_id, encoded, None, now_s)
        if offered.evidence:
            self._spread_held(offered.evidence, now_s)
        return offered, self._take_actions()

    def pass_on(self, entry_id: bytes, *, now_s: float) -> list[Action]:
        """An entry that the store took without us, such as a released own one: spread it."""
        self._spread_held(entry_id, now_s)
        return self._take_actions()

    def leave(self, *, now_s: float) -> list[Action]:
        """This node goes on purpose: tell the neighbours, and say no more."""
        farewell = self.swim.leave()
        actions = self._take_actions()
        return [*actions, *(Send(peer, farewell) for peer in self.views.neighbours)]

    def tick(self, *, now_s: float) -> list[Action]:
        """Whatever time has made due."""
        self.swim.tick(now_s)
        self._bury(now_s)
        if now_s >= self._look_s:
            self._look_s = now_s + VIEW_LOOK_S
            for peer, kind in self.views.wanted(now_s):
                self._say(peer, Neighbour(kind=kind))
        if now_s >= self._shuffle_s:
            self._shuffle_s = now_s + self.settings.shuffle_s * self._rng.uniform(0.8, 1.2)
            self._shuffle(now_s)
        # While somebody is lost, every other exchange looks if it is back.
        interval_s = self.settings.exchange_s / (2.0 if self.views.lost else 1.0)
        if self.comparing.is_due(now_s, interval_s=interval_s):
            partner = self._partner()
            if partner is not None:
                self.comparing.begin(partner, now_s)
        self.comparing.tick(now_s)
        for peer in self.comparing.unanswered:
            # A neighbour's silence is for its pings to find; of others this is all that is known.
            if peer not in self.views.neighbours:
                self.views.gone(peer, now_s)
        self.comparing.unanswered.clear()
        self.spreading.tick(self.views.neighbours, now_s)
        return self._take_actions()

    def _bury(self, now_s: float) -> None:
        for peer in self.swim.gone:
            self.views.gone(peer, now_s)
            self._actions.append(Gone(peer))
        self.swim.gone.clear()

    def _shuffle(self, now_s: float) -> None:
        neighbours = self.views.neighbours
        self._shuffles = {
            peer: asked
            for peer, asked in self._shuffles.items()
            if now_s - asked[1] < SHUFFLE_ANSWER_S
        }
        if neighbours:
            self._shuffle_with(self._rng.choice(neighbours), now_s)

    def _shuffle_with(self, peer: PeerId, now_s: float) -> None:
        nonce = self._rng.getrandbits(60)
        self._shuffles[peer] = nonce, now_s
        known = self.views.sample(self.settings.shuffle_peers - 1, now_s, beside=peer)
        self._say(peer, Shuffle(nonce=nonce, known=(self._introduce_self(), *known)))

    def _introduce_self(self) -> Introduction:
        return Introduction(peer=self._me, age_s=0, addresses=told_addresses(self._own_addresses()))

    def _partner(self) -> PeerId | None:
        """Whom to compare with: a neighbour or an acquaintance; in turn with one of the lost."""
        lost = self.views.lost
        near, far = self.views.neighbours, self.views.acquaintances
        self._is_lost_turn = bool(lost) and not self._is_lost_turn
        if self._is_lost_turn or not (near or far):
            return self._rng.choice(lost) if lost else None
        return self._rng.choice(near if not far or (near and self._rng.random() < 0.5) else far)

    # Frames ---------------------------------------------------------------------------------------

    def handle(
        self, peer: PeerId, frame: GossipFrame, *, wall_s: float, now_s: float
    ) -> list[Action]:
        """A frame of a peer, whose identity the channel proves."""
        if not self._frames.allows(peer, 1.0, now_s):
            self._fault(peer, "a flood of gossip", now_s)
            return self._take_actions()
        was_lost = peer in self.views.lost
        if not isinstance(frame, Farewell):
            self.views.heard(peer, now_s)
            self.swim.heard(peer)
        if was_lost:
            # Much may have happened on its side of a split.
            self.comparing.hurry(now_s)
        match frame:
            case Entries():
                self._entries(peer, frame, wall_s, now_s)
            case OfferIds(ids=ids):
                if self._ids.allows(peer, len(ids), now_s):
                    self.spreading.offered(peer, ids, now_s)
                else:
                    self._fault(peer, "a flood of ids", now_s)
            case WantEntries(ids=ids):
                self._serve(peer, ids, now_s)
            case Compare():
                bytes_due = 0.0 if self.comparing.is_equal(frame) else DIGESTS_BYTES
                if self._served.allows(peer, bytes_due, now_s):
                    self.comparing.compare(peer, frame)
            case Digests():
                self.comparing.digests(peer, frame, now_s)
            case BucketIds():
                self._compared(peer, frame, now_s)
            case Ping() | PingFor() | Ack() | Farewell():
                self._liveness(peer, frame, now_s)
            case Shuffle() | Shuffled() | Neighbour():
                self._views_frame(peer, frame, now_s)
        return self._take_actions()

    def _entries(self, peer: PeerId, frame: Entries, wall_s: float, now_s: float) -> None:
        for encoded in frame.entries:
            # What is beyond the quota is dropped unread: comparing brings it later.
            if not self._taken.allows(peer, len(encoded), now_s):
                self._fault(peer, "a flood of entries", now_s)
                return
            offered = self._book.offer(encoded, wall_s=wall_s, now_s=now_s)
            if offered.fault:
                self._actions.append(Fault(peer, f"entry: {offered.fault}"))
                return  # Each costs a signature check; one is enough to know.
            entry_id, is_new = offered.entry_id, offered.is_new
            if entry_id:
                self.spreading.arrived(peer, entry_id, is_new=is_new, now_s=now_s)
            if is_new:
                self._spread(entry_id, encoded if frame.is_push else b"", peer, now_s)
            if offered.evidence:
                self._spread_held(offered.evidence, now_s)

    def _spread(self, entry_id: bytes, encoded: bytes, source: PeerId | None, now_s: float) -> None:
        self.spreading.spread(
            entry_id, encoded, source=source, neighbours=self.views.neighbours, now_s=now_s
        )

    def _spread_held(self, entry_id: bytes, now_s: float) -> None:
        """Such as what an entry proved, together with another: nobody else may have both."""
        encoded = self._book.get(entry_id)
        if encoded is not None:
            self._spread(entry_id, encoded, None, now_s)

    def _serve(self, peer: PeerId, ids: Iterable[bytes], now_s: float) -> None:
        sent = self.spreading.serve(peer, ids, self._served.left(peer, now_s))
        self._served.allows(peer, sent, now_s)

    def _compared(self, peer: PeerId, frame: BucketIds, now_s: float) -> None:
        lacking, offered = self.comparing.compared(frame)
        self._serve(peer, lacking, now_s)
        if offered and self._ids.allows(peer, len(offered), now_s):
            self.spreading.offered(peer, offered, now_s)

    def _liveness(self, peer: PeerId, frame: Ping | PingFor | Ack | Farewell, now_s: float) -> None:
        if isinstance(frame, Farewell):
            self.swim.take(peer, frame, knows=peer in self.views, now_s=now_s)
            self.views.left(peer)
            return
        for rumour in frame.rumours:
            if rumour.peer == self._me or rumour.peer in self.views:
                self.swim.hear(rumour, peer, now_s)
        if isinstance(frame, PingFor) and not self._errands.allows(peer, 1.0, now_s):
            return
        self.swim.take(peer, frame, knows=True, now_s=now_s)
        if isinstance(frame, Ping) and frame.is_neighbour and peer not in self.views.neighbours:
            self._say(peer, Neighbour(kind=NeighbourKind.END))

    def _views_frame(
        self, peer: PeerId, frame: Shuffle | Shuffled | Neighbour, now_s: float
    ) -> None:
        match frame:
            case Shuffle(nonce=nonce, known=known):
                # The answer is drawn first: what it told us it knows.
                answer = self.views.sample(len(known), now_s, beside=peer)
                self.views.told(known, peer, now_s)
                if answer:
                    self._say(peer, Shuffled(nonce=nonce, known=answer))
            case Shuffled(nonce=nonce, known=known):
                asked = self._shuffles.pop(peer, None)
                if asked is not None and asked[0] == nonce:
                    self.views.told(known, peer, now_s)
            case Neighbour(kind=kind):
                reply, ended = self.views.neighbour(peer, kind, now_s)
                if reply is not None:
                    self._say(peer, Neighbour(kind=reply))
                if ended is not None:
                    self._say(ended, Neighbour(kind=NeighbourKind.END))
                is_answer = kind in (NeighbourKind.YES, NeighbourKind.NO)
                if is_answer and self.views.is_meagre and peer not in self._shuffles:
                    self._shuffle_with(peer, now_s)

    # What is said ---------------------------------------------------------------------------------

    def _say(self, peer: PeerId, frame: GossipFrame) -> None:
        self._actions.append(Send(peer, frame))

    def _fault(self, peer: PeerId, reason: str, now_s: float) -> None:
        if now_s - self._faulted_s.get(peer, float("-inf")) >= FAULT_AGAIN_S:
            self._faulted_s = {
                p: at_s for p, at_s in self._faulted_s.items() if now_s - at_s < FAULT_AGAIN_S
            }
            self._faulted_s[peer] = now_s
            self._actions.append(Fault(peer, reason))

    def _take_actions(self) -> list[Action]:
        """All that collected, and the neighbours of now to be watched."""
        self.swim.watch(self.views.neighbours)
        for outbox in (self.swim.outbox, self.comparing.outbox, self.spreading.outbox):
            if outbox:
                self._actions += (Send(peer, frame) for peer, frame in outbox)
                outbox.clear()
        actions, self._actions = self._actions, []
        return actions
