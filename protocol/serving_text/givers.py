"""The peers that may give blocks: what they hold, what they are asked for, and who rests. Pure."""

from dataclasses import dataclass, field

from protocol import limits
from protocol.entry_kinds import HoldsText
from protocol.identity import PeerId
from protocol.serving_text.text_shape import BlockMask, TextShape, announced_mask

PATIENCE_S = 4.0
"""A giver from which nothing comes for so long is given up: another is asked now, it later."""

MOVING_S = 2.0
"""A giver from which nothing comes for so long does not count as one that is at work on a block."""

REST_S, REST_S_MAX = 2.0, 120.0
"""How long a giver rests that gave nothing; twice as long each time, until it gives something."""

WRONG_REST_S, WRONG_REST_S_MAX = 60.0, 3600.0
"""How long one rests that gave a wrong block; twice as long each time, whatever else it gives."""

LACKS_S = 30.0
"""So long a peer is not asked again for a block that it said it does not hold."""

REQUESTS_MAX = 4
"""Requests under way at one peer that is fast: 4 MiB. Of others as much as comes in PATIENCE_S."""


@dataclass(slots=True, eq=False)
class Giver:
    """One peer. `asked` has the blocks that it owes, of which there are at most `window`."""

    peer: PeerId
    window: int
    said: HoldsText | None = None
    mask: BlockMask | None = None
    asked: set[int] = field(default_factory=set)
    heard_s: float = 0.0
    """When something came from it last, or when it was asked while it owed nothing."""

    moved_s: float = float("-inf")
    moves: int = -1
    """The block of which it sent bytes last."""

    gave_s: float = 0.0
    """When it gave its last block, or was asked while it owed nothing."""

    rests_until_s: float = float("-inf")
    rest_s: float = REST_S
    wrong_rest_s: float = WRONG_REST_S
    lacks: dict[int, float] = field(default_factory=dict)

    def hear(self, said: HoldsText | None, shape: TextShape) -> None:
        """Take its announcement over. Raises ProofError for what this text does not have."""
        if said is None or said == self.said:
            return
        self.mask = announced_mask(said, shape.num_blocks)
        self.said = said
        self.lacks.clear()

    def lacks_now(self, block: int, now_s: float) -> bool:
        """Whether it said of late that it does not hold a block."""
        return bool(self.lacks) and self.lacks.get(block, now_s) > now_s

    def lack(self, block: int, now_s: float) -> None:
        """It said that it does not hold a block, whatever it announced."""
        limits.keep_newest(self.lacks, block, now_s + LACKS_S, limits.LIST_ITEMS_MAX)

    def rest(self, now_s: float) -> None:
        """It gave nothing."""
        self.rests_until_s = max(self.rests_until_s, now_s + self.rest_s)
        self.rest_s = min(2.0 * self.rest_s, REST_S_MAX)

    def set_back(self, now_s: float) -> None:
        """It gave something wrong."""
        self.rests_until_s = now_s + self.wrong_rest_s
        self.wrong_rest_s = min(2.0 * self.wrong_rest_s, WRONG_REST_S_MAX)

    def move(self, block: int, now_s: float) -> None:
        """Bytes of a block came from it."""
        self.moves, self.heard_s, self.moved_s = block, now_s, now_s

    def gave(self, block: int, now_s: float, window_max: int) -> None:
        """It gave a block. Who is slow is asked for less at a time, and others for the rest."""
        each_s = now_s - self.gave_s
        if each_s * (self.window + 1) < PATIENCE_S / 2:
            self.window = min(self.window + 1, window_max)
        elif each_s * self.window > PATIENCE_S:
            self.window = max(1, self.window - 1)
        self.move(block, now_s)
        self.gave_s, self.rest_s = now_s, REST_S

    def is_moving(self, now_s: float) -> bool:
        """Whether bytes came from it of late."""
        return now_s < self.moved_s + MOVING_S

    @property
    def is_busy(self) -> bool:
        """Whether it owes as much as it may."""
        return len(self.asked) >= self.window


class Givers:
    """All of them, and of each block under way who was asked for it."""

    def __init__(self, shape: TextShape) -> None:
        self._shape = shape
        self.peers: dict[PeerId, Giver] = {}
        self.asked: dict[int, set[PeerId]] = {}
        self._gone: dict[PeerId, Giver] = {}
        """Who rested when it went: it rests on when it comes back."""

    def new(self, peer: PeerId) -> Giver:
        """A peer of which nothing is known yet."""
        return Giver(peer, self._shape.asked_together)

    def see(self, peer: PeerId, said: HoldsText | None) -> bool:
        """Whether its room is another one than before. Raises ProofError."""
        giver = self.peers.get(peer)
        if giver is None:
            if len(self.peers) >= limits.TEXT_MEMBERS_MAX - 1:  # This node is one more.
                return False
            giver = self._gone.pop(peer) if peer in self._gone else self.new(peer)
            self.peers[peer] = giver
        before = giver.said.room if giver.said else 0
        giver.hear(said, self._shape)
        return before != (giver.said.room if giver.said else 0)

    def forget(self, peer: PeerId) -> bool:
        """Whether it had room for blocks."""
        giver = self.peers.pop(peer, None)
        if giver is None:
            return False
        self._free(giver, tuple(giver.asked))
        had_room = giver.said is not None and giver.said.room > 0
        giver.said = giver.mask = None
        if giver.rests_until_s > 0.0:
            limits.keep_newest(self._gone, peer, giver, limits.TEXT_MEMBERS_MAX)
        return had_room

    def ask(self, peer: PeerId, block: int, now_s: float) -> None:
        """It owes a block from now on."""
        giver = self.peers[peer]
        if not giver.asked:
            giver.heard_s = giver.gave_s = now_s
        giver.asked.add(block)
        self.asked.setdefault(block, set()).add(peer)

    def gave(self, peer: PeerId, block: int, now_s: float) -> None:
        """It gave a block that it owed."""
        if self.end(peer, block):
            self.peers[peer].gave(block, now_s, REQUESTS_MAX * self._shape.asked_together)

    def end(self, peer: PeerId, block: int) -> bool:
        """It does not owe a block any more; whether it did."""
        giver = self.peers.get(peer)
        if giver is None or block not in giver.asked:
            return False
        self._free(giver, (block,))
        return True

    def give_up(self, now_s: float) -> list[PeerId]:
        """Those from which nothing came for too long: they owe nothing now, and rest."""
        silent = [
            giver
            for giver in self.peers.values()
            if giver.asked and now_s >= giver.heard_s + PATIENCE_S
        ]
        for giver in silent:
            self._free(giver, tuple(giver.asked))
            giver.rest(now_s)
        return [giver.peer for giver in silent]

    def is_moving(self, block: int, now_s: float) -> bool:
        """Whether bytes of a block came of late from somebody who owes it."""
        owing = (self.peers[peer] for peer in self.asked.get(block, ()))
        return any(giver.moves == block and giver.is_moving(now_s) for giver in owing)

    def _free(self, giver: Giver, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            giver.asked.discard(block)
            owing = self.asked[block]
            owing.discard(giver.peer)
            if not owing:
                del self.asked[block]
