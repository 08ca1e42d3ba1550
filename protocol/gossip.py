"""What gossip says: entries and their ids, digests of what is held, who lives, who knows whom.

Frames of a control stream, like those of `protocol.frames`, and as unsigned: the channel proves who
says it. Entries are signed by their writers, so whoever passes them on is not believed. Rumours are
hearsay: they make a node look for itself, and decide nothing.
"""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Annotated

from protocol import limits
from protocol.messages import Peer
from protocol.wire import Digest, Range, Size

Nonce = Annotated[int, Range(0, 2**62)]
"""Pairs a question with its answer."""

Incarnation = Annotated[int, Range(0, limits.INCARNATION_MAX)]
"""How often a peer has contradicted that it is gone. Of two rumours the one with more is newer."""

EncodedEntry = Annotated[bytes, Size(1, limits.ENTRY_BYTES_MAX)]
BucketDigest = Annotated[bytes, Size(limits.BUCKET_DIGEST_BYTES, limits.BUCKET_DIGEST_BYTES)]
Ids = Annotated[tuple[Digest, ...], Size(1, limits.GOSSIP_IDS_MAX)]
Addresses = Annotated[
    tuple[Annotated[str, Size(1, limits.GOSSIP_ADDRESS_BYTES_MAX)], ...],
    Size(0, limits.GOSSIP_ADDRESSES_MAX),
]


# Entries ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Signed entries, as their writers encoded them: as many as the bytes of a frame allow.

    `is_push` if they are news, to be pushed on by whom they are new to; else they were asked for.
    """

    is_push: bool
    entries: Annotated[tuple[EncodedEntry, ...], Size(1, 256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferIds:
    """The sender holds the entries of these ids; whoever lacks some asks for them."""

    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class WantEntries:
    """Please send the entries of these ids."""

    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Opens an exchange: `root` is over the digests of all buckets of the sender."""

    nonce: Nonce
    root: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Answers Compare: the digest of each bucket, cut short; none if the roots are equal."""

    nonce: Nonce
    buckets: Annotated[tuple[BucketDigest, ...], Size(0, limits.GOSSIP_BUCKETS)]

    def __post_init__(self) -> None:
        """Raise ValueError for some of the digests: they have no index of their own."""
        if len(self.buckets) not in (0, limits.GOSSIP_BUCKETS):
            raise ValueError(f"{len(self.buckets)} digests of {limits.GOSSIP_BUCKETS} buckets")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketIds:
    """All ids of a bucket that the sender holds from `first` to `last`, both included, ascending.

    The other side sends what is missing here and asks for what it lacks itself. A range, so that a
    bucket of any size fits several frames, each of which can be answered alone.
    """

    nonce: Nonce
    bucket: Annotated[int, Range(0, limits.GOSSIP_BUCKETS - 1)]
    first: Digest
    last: Digest
    ids: Annotated[tuple[Digest, ...], Size(0, limits.GOSSIP_IDS_MAX)]

    def __post_init__(self) -> None:
        """Raise ValueError for ids that are out of order or out of the range."""
        if any(one >= other for one, other in pairwise(self.ids)):
            raise ValueError("ids are not ascending")
        inside = (self.first, *self.ids[:1], *self.ids[-1:], self.last)
        if any(one > other for one, other in pairwise(inside)):
            raise ValueError("ids are outside of their range")


# Who lives ----------------------------------------------------------------------------------------


class RumourKind(IntEnum):
    """What is said of a peer."""

    ALIVE = 1
    SUSPECT = 2
    GONE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rumour:
    """Hearsay about a peer, in its incarnation that the teller knows of."""

    kind: RumourKind
    peer: Peer
    incarnation: Incarnation


Rumours = Annotated[tuple[Rumour, ...], Size(0, limits.RUMOURS_PER_FRAME_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Are you there? Answered by an Ack at once.

    `is_neighbour` if the sender counts the asked among its neighbours, and not for an errand.
    """

    nonce: Nonce
    is_neighbour: bool
    rumours: Rumours


@dataclass(frozen=True, slots=True, kw_only=True)
class PingFor:
    """Please ping `target` for the sender, which had no answer from it."""

    nonce: Nonce
    target: Peer
    addresses: Addresses
    rumours: Rumours


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Answers Ping, and PingFor once its target has answered; `is_there` is false if it has not."""

    nonce: Nonce
    is_there: bool
    incarnation: Incarnation
    rumours: Rumours


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """The sender leaves on purpose: nobody need look for it."""

    incarnation: Incarnation


# Who knows whom -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """A peer that somebody knows, how long ago it gave a sign of life, and where it listens."""

    peer: Peer
    age_s: Annotated[int, Range(0, limits.INTRODUCTION_AGE_S_MAX)]
    addresses: Addresses


Introductions = Annotated[tuple[Introduction, ...], Size(0, limits.INTRODUCTIONS_PER_FRAME_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """Some of the peers that the sender knows, itself among them; answered by as many."""

    nonce: Nonce
    known: Introductions


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Answers Shuffle."""

    nonce: Nonce
    known: Introductions


class NeighbourKind(IntEnum):
    """What is said about being neighbours: in each other's active views."""

    ASK = 1
    URGENT = 2
    YES = 3
    NO = 4
    END = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Asks to be neighbours, urgently if the sender has none; answers; or ends it."""

    kind: NeighbourKind


GossipFrame = (
    Entries
    | OfferIds
    | WantEntries
    | Compare
    | Digests
    | BucketIds
    | Ping
    | PingFor
    | Ack
    | Farewell
    | Shuffle
    | Shuffled
    | Neighbour
)

GOSSIP_FRAMES: dict[int, type[GossipFrame]] = {
    10: Entries,
    11: OfferIds,
    12: WantEntries,
    13: Compare,
    14: Digests,
    15: BucketIds,
    16: Ping,
    17: PingFor,
    18: Ack,
    19: Farewell,
    20: Shuffle,
    21: Shuffled,
    22: Neighbour,
}
"""Their type bytes on a control stream."""
