"""One node's part in serving the text: what it fetches and from whom, keeps, gives and says. Pure.

It wants the blocks of its own lease first, then those of the next lease, then those that the
placement gives it to keep. Whoever gives nothing is asked later and another one now; whoever gives
a wrong block is set back, and nothing of it was kept. A block of the lease that nobody gives within
ten seconds is named, and the founder and the mirrors are asked for it. Nothing waits for it here.

The node and the simulator run the same object: events and time in, actions out.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from protocol.entry_kinds import HoldsText
from protocol.errors import ProofError
from protocol.identity import PeerId
from protocol.serving_text import block_events as ev
from protocol.serving_text.block_events import TextAction, TextEvent
from protocol.serving_text.block_giving import BlockGiving
from protocol.serving_text.givers import Giver, Givers
from protocol.serving_text.placement import COPIES, Placement
from protocol.serving_text.text_shape import MIRROR, TextShape, announcement, mask_of

NAMED_AFTER_S = 9.0
"""Told within ten seconds, with a tick to spare."""

NAMED_AT_LAST_S = 30.0
"""Also a block that is on its way, from somebody slow."""

TICK_S = 0.5

UNDER_WAY_BYTES_MAX = 16 << 20
"""Of blocks that were asked for, of all peers together."""

ANNOUNCE_EVERY_S = 15.0
"""An announcement is a KiB at most and goes to everybody. That all is here is said at once."""

PLACE_EVERY_S = 2.0
"""Members that come or go together are placed together."""

START_S = 5.0
"""So long a node listens who is there before it places blocks: alone it would keep them all."""

MISSED_MAX = 128
"""So many blocks for which there is nobody to ask are looked at in one go."""

ASKED_AT_ONCE_MAX = 3
"""Givers that are asked for a block that was named."""

EXTRA_COPY_S = 1800.0
"""How long a copy of a hot block counts as one that is to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperSettings:
    """`quota_blocks` are held at most; of them `lease_blocks` are for the node's own leases.

    The `origin`, as a rule the founder, had the whole text at first. `copies` are of each block.
    """

    quota_blocks: int
    lease_blocks: int = 0
    origin: PeerId | None = None
    has_mirrors: bool = False
    copies: int = COPIES

    @property
    def room(self) -> int:
        """Blocks that are kept for others at most."""
        return max(0, self.quota_blocks - self.lease_blocks)


class BlockKeeper:
    """See the module. `held` are the blocks on the disk; the owner has checked none of them."""

    def __init__(
        self, me: PeerId, shape: TextShape, settings: KeeperSettings, held: Iterable[int] = ()
    ) -> None:
        self.me, self.shape, self.settings = me, shape, settings
        self.held = mask_of(held, shape.num_blocks)
        self.num_held = int(self.held.sum())
        self._givers = Givers(shape)
        if settings.has_mirrors:
            self._givers.peers[MIRROR] = self._givers.new(MIRROR)
        self._giving = BlockGiving(shape)
        self._random = random.Random(shape.root + me)
        self._lease: dict[int, None] = {}
        self._next: dict[int, None] = {}
        self._placement: Placement | None = None
        self._placed = mask_of((), shape.num_blocks)
        self._extra: dict[int, float] = {}
        self._to_copy: dict[int, None] = {}
        self._used_s = np.zeros(shape.num_blocks)
        self._sought_s: dict[int, float] = {}
        self._named: set[int] = set()
        self._place_at_s: float | None = None
        self._has_begun = False
        self._announced_s = float("-inf")
        self._is_news = True
        self._was_settled = False

    # What others may look at ---------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether it has to be told that time passes."""
        return bool(
            self._missing_lease()
            or self._to_copy
            or self._givers.asked
            or self._is_news
            or self._place_at_s is not None
        )

    @property
    def is_settled(self) -> bool:
        """Whether all is here that this node is to keep."""
        return self._placement is not None and not self._to_copy

    @property
    def named(self) -> frozenset[int]:
        """Blocks of the lease that nobody has given for ten seconds."""
        return frozenset(self._named)

    # Events --------------------------------------------------------------------------------------

    def handle(self, event: TextEvent, now_s: float) -> list[TextAction]:
        """What is to be done now that this happened."""
        if not self._has_begun:
            self._has_begun, self._place_at_s = True, now_s + START_S
        actions = self._take(event, now_s)
        if isinstance(event, ev.BlocksWanted | ev.BlockMoves):
            return actions  # They come often, and change nothing of what is to be asked.
        actions += self._drop_surplus()
        actions += self._go_on(now_s)
        actions += self._announce(now_s)
        return actions

    def _take(self, event: TextEvent, now_s: float) -> list[TextAction]:
        match event:
            case ev.LeaseTaken():
                return self._take_lease(event, now_s)
            case ev.BlockUsed(block):
                self._use(block, now_s)
            case ev.MemberSeen(peer, said):
                return self._see(peer, said, now_s)
            case ev.MemberGone(peer):
                if peer != MIRROR and self._givers.forget(peer):
                    self._place_soon(now_s)
            case ev.PlacementMade(placement):
                self._placement = placement
                self._placed = mask_of(placement.kept_by(self.me).tolist(), self.shape.num_blocks)
                self._list_copies()
                self._is_news = True
            case ev.BlockMoves(peer, block):
                if peer in self._givers.asked.get(block, ()):
                    self._givers.peers[peer].move(block, now_s)
            case ev.BlockCame(peer, block):
                return self._keep(peer, block, now_s)
            case ev.BlocksNotGiven():
                self._do_without(event, now_s)
            case ev.BlockWrong(peer, block):
                if self._givers.end(peer, block):
                    self._givers.peers[peer].set_back(now_s)
                    return [ev.GiverSetBack(peer, f"block {block} is not of this text")]
            case ev.BlockLost(block):
                if 0 <= block < self.shape.num_blocks and self.held[block]:
                    self._unhold(block)
                    if self._placed[block]:
                        self._to_copy[block] = None
            case ev.BlocksWanted(peer, blocks):
                return self._give(peer, blocks, now_s)
            case ev.TextTick():
                return self._tick(now_s)
        return []

    def _take_lease(self, event: ev.LeaseTaken, now_s: float) -> list[TextAction]:
        size, here = self.shape.num_blocks, list[TextAction]()
        self._lease = {block: None for block in event.blocks if 0 <= block < size}
        following = (block for block in event.next_blocks if 0 <= block < size)
        self._next = {block: None for block in following if block not in self._lease}
        for block in (*self._lease, *self._next):
            if self.held[block]:
                self._used_s[block] = now_s
                here.append(ev.BlockArrived(block))
        self._sought_s = {b: s for b, s in self._sought_s.items() if self._is_of_lease(b)}
        self._named = {block for block in self._named if block in self._lease}
        return here

    def _use(self, block: int, now_s: float) -> None:
        self._lease.pop(block, None)
        self._sought_s.pop(block, None)
        self._named.discard(block)
        if 0 <= block < self.shape.num_blocks:
            self._used_s[block] = now_s

    def _see(self, peer: PeerId, said: HoldsText | None, now_s: float) -> list[TextAction]:
        if peer in (self.me, MIRROR):
            return []
        try:
            is_other_room = self._givers.see(peer, said)
        except ProofError as error:
            return [ev.GiverSetBack(peer, str(error))]
        if is_other_room:
            self._place_soon(now_s)
        if said is not None:
            self._copy_hot(peer, said.hot, now_s)
        return []

    def _keep(self, peer: PeerId, block: int, now_s: float) -> list[TextAction]:
        if not 0 <= block < self.shape.num_blocks:
            return []
        self._givers.gave(peer, block, now_s)
        self._used_s[block] = now_s
        if self.held[block]:
            return []
        self.held[block] = True
        self.num_held += 1
        self._is_news = True
        self._to_copy.pop(block, None)
        self._sought_s.pop(block, None)
        self._named.discard(block)
        return [ev.BlockArrived(block)] if self._is_of_lease(block) else []

    def _do_without(self, event: ev.BlocksNotGiven, now_s: float) -> None:
        ended = [block for block in event.blocks if self._givers.end(event.peer, block)]
        giver = self._givers.peers.get(event.peer)
        if giver is None or not ended:
            return
        if not event.is_lacking:
            giver.rest(now_s)
        for block in ended:
            if event.is_lacking:
                giver.lack(block, now_s)

    def _give(self, peer: PeerId, wanted: tuple[int, ...], now_s: float) -> list[TextAction]:
        actions = self._giving.give(peer, wanted, self.held, now_s)
        for action in actions:
            if isinstance(action, ev.GiveBlocks):
                self._used_s[list(action.blocks)] = now_s
        return actions

    def _tick(self, now_s: float) -> list[TextAction]:
        if self._giving.count_hot(now_s):
            self._is_news = True
        for block in [b for b, until_s in self._extra.items() if now_s >= until_s]:
            del self._extra[block]
        return [ev.StopAsking(peer) for peer in self._givers.give_up(now_s)]

    # Placement -----------------------------------------------------------------------------------

    def _place_soon(self, now_s: float) -> None:
        if self._place_at_s is None:
            self._place_at_s = now_s + PLACE_EVERY_S

    def _place(self) -> ev.PlaceBlocks:
        self._place_at_s = None
        rooms = {
            giver.peer: giver.said.room
            for giver in self._givers.peers.values()
            if giver.said is not None and giver.said.room
        }
        if self.settings.room:
            rooms[self.me] = self.settings.room
        return ev.PlaceBlocks(rooms)

    def _list_copies(self) -> None:
        """What is to be copied; what few others hold comes first, else in an order of our own."""
        missing = np.flatnonzero(self._placed & ~self.held)
        copies = self._copies_elsewhere()
        order = np.random.default_rng(self._random.getrandbits(64)).permutation(missing)
        # What no member holds is not to be had, or from the founder: behind all that is in danger.
        copies[copies == 0] = self.settings.copies
        order = order[np.argsort(copies[order], kind="stable")]
        self._to_copy = dict.fromkeys(order.tolist())
        for block in self._extra:
            if not self.held[block]:
                self._to_copy[block] = None

    def _copies_elsewhere(self) -> NDArray[np.int16]:
        """Of each block how many members say that they hold it; the origin does not count."""
        copies = np.zeros(self.shape.num_blocks, np.int16)
        for giver in self._givers.peers.values():
            if giver.mask is not None and giver.peer != self.settings.origin:
                copies += giver.mask
        return copies

    def _copy_hot(self, peer: PeerId, hot: tuple[int, ...], now_s: float) -> None:
        """A copy of a block that one of its keepers is asked for much, if this node is next."""
        placement = self._placement
        if placement is None or int(self._placed.sum()) + len(self._extra) >= self.settings.room:
            return
        for block in hot:
            if block >= self.shape.num_blocks or peer not in placement.members_of(block):
                continue
            if placement.order_of(block)[self.settings.copies :][:1] == (self.me,):
                self._extra[block] = now_s + EXTRA_COPY_S
                if not self.held[block]:
                    self._to_copy[block] = None

    # Fetching ------------------------------------------------------------------------------------

    def _is_of_lease(self, block: int) -> bool:
        return block in self._lease or block in self._next

    def _missing_lease(self) -> list[int]:
        return [block for block in (*self._lease, *self._next) if not self.held[block]]

    def _due(self) -> Iterator[int]:
        """What is missing, the most urgent first, as far as the quota goes."""
        own = sum(int(self.held[block]) for block in (*self._lease, *self._next))
        room = self.settings.quota_blocks
        for block in self._missing_lease()[: max(0, room - own)]:
            yield block
        if not self._to_copy:
            return
        kept = np.count_nonzero(self.held & self._placed) + len(self._extra)
        under_way = sum(block in self._to_copy for block in self._givers.asked)
        left = room - own - int(kept) - under_way
        for block in self._to_copy:
            if left <= 0:
                return
            if not self._is_of_lease(block) and block not in self._givers.asked:
                left -= 1
                yield block

    def _go_on(self, now_s: float) -> list[TextAction]:
        actions: list[TextAction] = []
        if self._place_at_s is not None and now_s >= self._place_at_s:
            actions.append(self._place())
        actions += self._name(now_s)
        under_way_max = max(1, UNDER_WAY_BYTES_MAX // self.shape.block_bytes)
        asked: dict[PeerId, list[int]] = {}
        num_missed, nowhere = 0, list[int]()
        for block in chain(sorted(self._named), self._due()):
            is_named = block in self._named
            if not is_named and len(self._givers.asked) >= under_way_max:
                break
            num_asked = len(self._givers.asked.get(block, ()))
            if num_asked >= (ASKED_AT_ONCE_MAX if is_named else 1):
                continue
            peer, is_anywhere = self._choose(block, now_s)
            if peer is not None:
                self._givers.ask(peer, block, now_s)
                asked.setdefault(peer, []).append(block)
                continue
            if not is_anywhere and block in self._to_copy:
                nowhere.append(block)
            num_missed += 1
            if num_missed >= MISSED_MAX:
                break
        for block in nowhere:  # Others are looked at before it the next time.
            self._to_copy[block] = self._to_copy.pop(block)
        for peer, blocks in asked.items():
            blocks.sort()
            together = self.shape.asked_together
            for start in range(0, len(blocks), together):
                actions.append(ev.AskForBlocks(peer, tuple(blocks[start : start + together])))
        return actions

    def _choose(self, block: int, now_s: float) -> tuple[PeerId | None, bool]:
        """Whom to ask for a block now, if anybody: a member, else the origin, else a mirror; and
        whether there is somebody to ask at all, now or once it owes less."""
        owing = self._givers.asked.get(block, ())
        is_own, is_named = self._is_of_lease(block), block in self._named
        free: list[tuple[int, float, PeerId]] = []
        busy: list[tuple[int, bool]] = []
        for giver in self._givers.peers.values():
            if giver.peer in owing or now_s < giver.rests_until_s:
                continue
            if giver.lacks_now(block, now_s) or not self._holds(giver, block):
                continue
            tier = self._tier(giver.peer)
            if giver.is_busy:
                busy.append((tier, giver.is_moving(now_s)))
            else:
                free.append((tier, len(giver.asked) + self._random.random(), giver.peer))
        if is_named:  # The members had their time.
            free = [one for one in free if one[0]] or free
        elif not is_own and any(not tier for tier, _ in busy):
            free = [one for one in free if not one[0]]  # Copies wait for members.
        if free or not any(is_moving for _, is_moving in busy):
            if is_own:
                self._sought_s.setdefault(block, now_s)
        elif not is_named:
            self._sought_s.pop(block, None)  # It waits its turn, behind blocks that come in.
        return min(free)[2] if free else None, bool(free or busy)

    def _tier(self, peer: PeerId) -> int:
        """The founder and the mirrors are for what nobody else gives."""
        return 2 if peer == MIRROR else int(peer == self.settings.origin)

    def _holds(self, giver: Giver, block: int) -> bool:
        """Whether a peer holds a block, as far as anybody can know."""
        if giver.peer == MIRROR:
            return True
        if giver.mask is not None:
            return bool(giver.mask[block])
        if giver.peer == self.settings.origin:
            return giver.said is None
        placement, said = self._placement, giver.said
        is_keeper = placement is not None and said is not None and said.is_settled
        return is_keeper and giver.peer in placement.members_of(block)  # type: ignore[union-attr]

    def _name(self, now_s: float) -> list[TextAction]:
        """Blocks of the lease that nobody gives; each is named once."""
        found: list[TextAction] = []
        for block, since_s in self._sought_s.items():
            if now_s < since_s + NAMED_AFTER_S or block in self._named or block not in self._lease:
                continue
            is_moving = self._givers.is_moving(block, now_s)
            if not is_moving or now_s >= since_s + NAMED_AT_LAST_S:
                self._named.add(block)
                found.append(ev.BlockNamed(block, now_s - since_s))
        return found

    # Room ----------------------------------------------------------------------------------------

    def _unhold(self, block: int) -> None:
        self.held[block] = False
        self.num_held -= 1
        self._is_news = True

    def _drop_surplus(self) -> list[TextAction]:
        surplus = self.num_held - self.settings.quota_blocks
        if surplus <= 0:
            return []
        found: list[TextAction] = []
        for block in self._droppable()[:surplus]:
            self._unhold(block)
            found.append(ev.DropBlock(block))
            if self._placed[block]:
                self._to_copy.pop(block, None)
        return found

    def _droppable(self) -> list[int]:
        """What is held, in the order in which it may go: not of the own leases before the last, not
        what is to be kept, not what too few others hold, and then what was used longest ago."""
        held = np.flatnonzero(self.held)
        worth = self._placed.astype(np.int8)
        worth[list(self._extra)] = 1
        worth[list(self._next)] = 2
        worth[list(self._lease)] = 3
        is_rare = self._copies_elsewhere() < self.settings.copies
        order = np.lexsort((self._used_s[held], is_rare[held], worth[held]))
        return list(held[order].tolist())

    # Words ---------------------------------------------------------------------------------------

    def _announce(self, now_s: float) -> list[TextAction]:
        is_first_settled = self.is_settled and not self._was_settled
        if not self._is_news:
            return []
        if now_s < self._announced_s + ANNOUNCE_EVERY_S and not is_first_settled:
            return []
        self._announced_s, self._is_news = now_s, False
        self._was_settled = self.is_settled
        said = announcement(
            self.held,
            room=self.settings.room,
            hot=self._giving.hot,
            is_settled=self.is_settled,
        )
        return [ev.AnnounceText(said)]
