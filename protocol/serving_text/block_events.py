"""What a BlockKeeper is told, and what it wants done. Times are monotonic seconds."""

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.entry_kinds import HoldsText
from protocol.identity import PeerId
from protocol.serving_text.placement import Placement

# Events -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseTaken:
    """The blocks of the own lease, in the order in which they are needed, and of the next one."""

    blocks: tuple[int, ...]
    next_blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockUsed:
    """The trainer is through with a block of its lease."""

    block: int


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """A peer is in reach; `said` is its newest announcement, if there is one."""

    peer: PeerId
    said: HoldsText | None


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A peer left, or is taken for dead."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class PlacementMade:
    """The answer to PlaceBlocks."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class BlockMoves:
    """Bytes of a block come in, at a pace that is worth waiting for."""

    peer: PeerId
    block: int


@dataclass(frozen=True, slots=True)
class BlockCame:
    """A block was given, led to the root, and is stored."""

    peer: PeerId
    block: int


@dataclass(frozen=True, slots=True)
class BlocksNotGiven:
    """A giver ended without these blocks; `is_lacking` if it said that it does not hold them."""

    peer: PeerId
    blocks: tuple[int, ...]
    is_lacking: bool


@dataclass(frozen=True, slots=True)
class BlockWrong:
    """What a giver sent is not the block; nothing of it was kept."""

    peer: PeerId
    block: int


@dataclass(frozen=True, slots=True)
class BlockLost:
    """The own disk does not have a block any more, or has other bytes."""

    block: int


@dataclass(frozen=True, slots=True)
class BlocksWanted:
    """A peer asks for blocks."""

    peer: PeerId
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextTick:
    """Time passes. To be told every TICK_S while the keeper waits for something."""


TextEvent = (
    LeaseTaken
    | BlockUsed
    | MemberSeen
    | MemberGone
    | PlacementMade
    | BlockMoves
    | BlockCame
    | BlocksNotGiven
    | BlockWrong
    | BlockLost
    | BlocksWanted
    | TextTick
)

# Actions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskForBlocks:
    """Ask a peer, or a mirror where it is MIRROR, for blocks, ascending; tell what comes of it."""

    peer: PeerId
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopAsking:
    """Nothing comes from that peer: end what was asked of it. It is not to be told of again."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class GiveBlocks:
    """Send blocks to who asked, `wait_s` seconds from now; `lacking` are not here."""

    peer: PeerId
    blocks: tuple[int, ...]
    lacking: tuple[int, ...]
    wait_s: float


@dataclass(frozen=True, slots=True)
class DropBlock:
    """Remove a block from the disk: there is no room for it."""

    block: int


@dataclass(frozen=True, slots=True)
class BlockArrived:
    """A block of the own lease, or of the next one, is here."""

    block: int


@dataclass(frozen=True, slots=True)
class BlockNamed:
    """For `sought_s` seconds nobody gave a block of the own lease: it is shown, and the lease's
    part may be given back. The founder and the mirrors are asked for it on and on."""

    block: int
    sought_s: float


@dataclass(frozen=True, slots=True)
class GiverSetBack:
    """A peer did wrong, or asks for more than its share: a fault of it."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class PlaceBlocks:
    """Compute who keeps what, among members with so much room, and tell PlacementMade."""

    rooms: Mapping[PeerId, int]


@dataclass(frozen=True, slots=True)
class AnnounceText:
    """Say in gossip what this node holds."""

    said: HoldsText


TextAction = (
    AskForBlocks
    | StopAsking
    | GiveBlocks
    | DropBlock
    | BlockArrived
    | BlockNamed
    | GiverSetBack
    | PlaceBlocks
    | AnnounceText
)
