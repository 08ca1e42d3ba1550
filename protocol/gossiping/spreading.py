"""New entries, pushed: whole to some neighbours, by id to the others, who ask. Pure.

After Plumtree (Leitao, Pereira, Rodrigues 2007), without its tree: entries are small, and a tree
must be mended whenever somebody dies. An id is offered again until its neighbour is known to have
the entry, a few times at most; what was lost all the same is found by comparing (`anti_entropy`).
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from protocol import limits
from protocol.gossip import Entries, OfferIds, Rumour, RumourKind, WantEntries
from protocol.gossiping.settings import GossipSettings
from protocol.identity import PeerId

# Packing ------------------------------------------------------------------------------------------
#
# Entries and ids in as few frames as the limits allow.

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


# Spreading ----------------------------------------------------------------------------------------

FRESH_MAX = 4096
"""Entries that are being offered. Beyond it the oldest are left to comparing."""

WANTS_MAX = 4096
"""Ids asked for and not come yet, of all peers; and of one peer a quarter."""

OFFERERS_MAX = 4
ASKS = 3
"""So often one peer is asked in vain before the id is forgotten, if nobody else offers it."""

ASKED_OFFERS = 2
"""How often the id of an entry that was asked for is offered on: others have it by now."""

REFUSED_MAX = 8192
"""Ids of entries that were no news: two nodes may differ for a while about what is old."""

REFUSED_S = 60.0
UNSERVED_MAX = 8
"""So often in a row a peer sent nothing of what it had offered: it is not asked for a while."""

UNSERVED_S = 60.0

Said = Entries | OfferIds | WantEntries


@dataclass(slots=True)
class _Fresh:
    """An entry that is being offered; `having` are neighbours that need no offer."""

    due_s: float
    offers: int
    having: set[PeerId]


@dataclass(slots=True)
class _Want:
    """An entry that was asked for; `offerers` are whom to ask next."""

    asked: PeerId
    due_s: float
    asks: int = 0
    offerers: list[PeerId] = field(default_factory=list)


class Spreading:
    """Who needs which entry. Everything that it says collects in `outbox`."""

    def __init__(
        self, rng: random.Random, settings: GossipSettings, get: Callable[[bytes], bytes | None]
    ) -> None:
        self._rng = rng
        self._settings = settings
        self._get = get
        self._fresh: OrderedDict[bytes, _Fresh] = OrderedDict()
        self._wants: dict[bytes, _Want] = {}
        self._num_wanted: dict[PeerId, int] = {}
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._unserved: OrderedDict[PeerId, tuple[int, float]] = OrderedDict()
        """How often in a row a peer let us wait, and when it did last."""
        self._look_s = float("inf")
        self.outbox: list[tuple[PeerId, Said]] = []
        self.duplicates = 0
        """Entries that came although they were held."""

    def wakeup_s(self) -> float:
        """When `tick` is due at the latest."""
        return self._look_s

    # Sending --------------------------------------------------------------------------------------

    def spread(
        self,
        entry_id: bytes,
        encoded: bytes,
        *,
        source: PeerId | None,
        neighbours: tuple[PeerId, ...],
        now_s: float,
    ) -> None:
        """A new entry is held: pass it on. What was asked for comes with nothing `encoded`: it is
        offered only, else all that a split kept apart would be sent to everybody three times.
        """
        having = {source} if source is not None else set()
        offers = self._settings.offers if encoded else ASKED_OFFERS
        if encoded:
            able = [peer for peer in neighbours if peer not in having]
            for peer in self._rng.sample(able, min(self._settings.fan_out, len(able))):
                self.outbox.append((peer, Entries(is_push=True, entries=(encoded,))))
        due_s = now_s + self._settings.flush_s
        self._fresh[entry_id] = _Fresh(due_s, offers, having)
        self._look_s = min(self._look_s, due_s)
        if len(self._fresh) > FRESH_MAX:
            self._fresh.popitem(last=False)

    def serve(self, peer: PeerId, ids: Iterable[bytes], left: float) -> float:
        """Send a peer what it asked for and we hold, within so many bytes; how many went."""
        sent, entries = 0, list[bytes]()
        for entry_id in ids:
            encoded = self._get(entry_id)
            if encoded is None:
                continue
            if sent + len(encoded) > left:
                break  # It asks again, or compares again: nothing is lost by it.
            sent += len(encoded)
            entries.append(encoded)
            self._note_having(entry_id, peer)
        self.outbox += ((peer, frame) for frame in pack_entries(entries))
        return float(sent)

    def _note_having(self, entry_id: bytes, peer: PeerId) -> None:
        fresh = self._fresh.get(entry_id)
        if fresh is not None:
            fresh.having.add(peer)

    # Receiving ------------------------------------------------------------------------------------

    def offered(self, peer: PeerId, ids: Iterable[bytes], now_s: float) -> None:
        """A peer holds these; ask for what is lacking and not on its way."""
        lacking = []
        for entry_id in ids:
            self._note_having(entry_id, peer)
            want = self._wants.get(entry_id)
            if want is not None:
                is_known = peer == want.asked or peer in want.offerers
                if not is_known and len(want.offerers) < OFFERERS_MAX:
                    want.offerers.append(peer)
            elif not self._is_refused(entry_id, now_s) and self._get(entry_id) is None:
                lacking.append(entry_id)
        if self._is_unreliable(peer, now_s):
            return
        room = WANTS_MAX // 4 - self._num_wanted.get(peer, 0)
        self._ask(peer, lacking[: max(0, min(room, WANTS_MAX - len(self._wants)))], now_s)

    def _ask(self, peer: PeerId, ids: list[bytes], now_s: float) -> None:
        # A long list takes its time: some 100 KiB/s.
        due_s = now_s + self._settings.want_s + 0.01 * len(ids)
        self._look_s = min(self._look_s, due_s)
        for entry_id in ids:
            want = self._wants.setdefault(entry_id, _Want(peer, due_s))
            want.asked, want.due_s = peer, due_s
            self._num_wanted[peer] = self._num_wanted.get(peer, 0) + 1
        self.outbox += ((peer, WantEntries(ids=page)) for page in pages(ids))

    def arrived(self, peer: PeerId, entry_id: bytes, *, is_new: bool, now_s: float) -> None:
        """An entry came, and was news or not."""
        self._note_having(entry_id, peer)
        want = self._wants.pop(entry_id, None)
        if want is not None:
            self._settle(want.asked)
            if want.asked == peer:
                self._unserved.pop(peer, None)
        if not is_new:
            if self._get(entry_id) is not None:
                self.duplicates += 1
            else:
                self._refused[entry_id] = now_s
                if len(self._refused) > REFUSED_MAX:
                    self._refused.popitem(last=False)

    def _settle(self, peer: PeerId) -> None:
        left = self._num_wanted.get(peer, 0) - 1
        if left > 0:
            self._num_wanted[peer] = left
        else:
            self._num_wanted.pop(peer, None)

    def _is_refused(self, entry_id: bytes, now_s: float) -> bool:
        at_s = self._refused.get(entry_id)
        return at_s is not None and now_s - at_s < REFUSED_S

    def _is_unreliable(self, peer: PeerId, now_s: float) -> bool:
        owed, at_s = self._unserved.get(peer, (0, 0.0))
        return owed >= UNSERVED_MAX and now_s - at_s < UNSERVED_S

    # Time -----------------------------------------------------------------------------------------

    def tick(self, neighbours: tuple[PeerId, ...], now_s: float) -> None:
        """Offer what is due, and ask others for what has not come."""
        if now_s < self._look_s:
            return
        self._offer_again(neighbours, now_s)
        self._ask_others(now_s)
        due = [want.due_s for want in self._wants.values()]
        due += [fresh.due_s for fresh in self._fresh.values()]
        self._look_s = min(due, default=float("inf"))

    def _offer_again(self, neighbours: tuple[PeerId, ...], now_s: float) -> None:
        offers: dict[PeerId, list[bytes]] = {}
        for entry_id, fresh in list(self._fresh.items()):
            if now_s < fresh.due_s:
                continue
            fresh.offers -= 1
            fresh.due_s = now_s + self._settings.again_s
            for peer in neighbours:
                if peer not in fresh.having:
                    offers.setdefault(peer, []).append(entry_id)
            if not fresh.offers:
                del self._fresh[entry_id]
        for peer, ids in offers.items():
            self.outbox += ((peer, OfferIds(ids=page)) for page in pages(ids))

    def _ask_others(self, now_s: float) -> None:
        again: dict[PeerId, list[bytes]] = {}
        idle: dict[PeerId, None] = {}
        for entry_id, want in list(self._wants.items()):
            if now_s < want.due_s:
                continue
            self._settle(want.asked)
            idle[want.asked] = None
            want.asks += 1
            if want.offerers:
                again.setdefault(want.offerers.pop(0), []).append(entry_id)
            elif want.asks < ASKS:
                again.setdefault(want.asked, []).append(entry_id)
            else:
                del self._wants[entry_id]
        for peer in idle:
            owed, _ = self._unserved.get(peer, (0, 0.0))
            most = limits.PARTIAL_VIEW_MAX
            limits.keep_newest(self._unserved, peer, (owed + 1, now_s), most)
        for peer, ids in again.items():
            self._ask(peer, ids, now_s)


# Rumour mill --------------------------------------------------------------------------------------
#
# Rumours about who is there: which of two is newer, and how often each is passed on.
#
# A rumour rides on pings and acks, a bounded number of times. Only what concerns a peer that this
# node knows is passed on, so that made-up names die at the first honest node.

SENDS = 12
"""How often a rumour is passed on. Everybody knows it after some log2(1000) = 10 hops of a few."""

QUEUED_MAX = 64
KNOWN_MAX = 512


class RumourMill:
    """What was heard of each peer last, and what is still to be told."""

    def __init__(self) -> None:
        self._newest: OrderedDict[PeerId, Rumour] = OrderedDict()
        self._queue: dict[PeerId, int] = {}

    def incarnation(self, peer: PeerId) -> int:
        """The highest of a peer that was heard of."""
        rumour = self._newest.get(peer)
        return rumour.incarnation if rumour else 0

    def hear(self, rumour: Rumour) -> bool:
        """Whether a rumour is news: a later incarnation, or a worse word about the same one."""
        before = self._newest.get(rumour.peer)
        if before is not None and _order(rumour) <= _order(before):
            return False
        self._newest[rumour.peer] = rumour
        self._newest.move_to_end(rumour.peer)
        if len(self._newest) > KNOWN_MAX:
            forgotten, _ = self._newest.popitem(last=False)
            self._queue.pop(forgotten, None)
        self._queue.pop(rumour.peer, None)
        if len(self._queue) >= QUEUED_MAX:
            # The most often told.
            del self._queue[min(self._queue, key=lambda peer: (self._queue[peer], peer))]
        self._queue[rumour.peer] = SENDS
        return True

    def take(self, first: Iterable[Rumour] = ()) -> tuple[Rumour, ...]:
        """What goes with the next frame: `first` in any case, then the least often told."""
        told = list(first)
        about = {rumour.peer for rumour in told}
        if self._queue:
            waiting = sorted(self._queue, key=lambda peer: (-self._queue[peer], peer))
            for peer in waiting[: max(0, limits.RUMOURS_PER_FRAME_MAX - len(told))]:
                self._queue[peer] -= 1
                if not self._queue[peer]:
                    del self._queue[peer]
                if peer not in about:
                    told.append(self._newest[peer])
        return tuple(told)


def _order(rumour: Rumour) -> tuple[int, RumourKind]:
    return rumour.incarnation, rumour.kind
