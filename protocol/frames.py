"""The unsigned frames between two linked peers, and the headers of bulk streams.

A control frame is one type byte and the canonical bytes of one of the dataclasses below. The
stream proves who sent it, so these need no signature; nothing in them is passed on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Annotated

from protocol import limits
from protocol.entry_kinds import BlockNumber
from protocol.errors import DecodeError
from protocol.gossip import GOSSIP_FRAMES, GossipFrame
from protocol.identity import PeerId
from protocol.invitations import CREDENTIAL_BYTES_MAX
from protocol.messages import MESSAGE_ID_BYTES, Peer, Round, SealCertificate, SignedMessage
from protocol.wire import DIGEST_BYTES, Digest, Range, Size, decode, encode

MessageId = Annotated[bytes, Size(MESSAGE_ID_BYTES, MESSAGE_ID_BYTES)]
"""The first eight bytes of a message digest: enough to ask for it, never to believe it."""

CellIndex = Annotated[int, Range(0, 2**31)]
"""A cell of a fragment, or of a state, which has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First frame of both sides: wire version, run, and where we listen."""

    wire: int
    run: Digest
    addresses: Annotated[
        tuple[Annotated[str, Size(0, limits.ADDRESS_BYTES_MAX)], ...],
        Size(0, limits.ADDRESSES_PER_PEER_MAX),
    ]
    credential: Annotated[bytes, Size(0, CREDENTIAL_BYTES_MAX)] = b""
    """In runs for the invited, what lets the sender in, encoded; founders have none."""

    started_ms: Annotated[int, Range(0, 2**53)] = 0
    """When the sender's process began, by its clock: two that take turns have one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Second frame of both sides in runs for the invited: the other one may come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the hello was refused; `manifest` lets the other side name the first differing field."""

    reason: Annotated[str, Size(0, 256)]
    manifest: Annotated[bytes, Size(0, limits.CONTROL_FRAME_BYTES_MAX - 1 * limits.KIB)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchEnd:
    """Where a node stands that is on a branch (R4): its last final round, and the branch's head."""

    final: Round
    head: Digest


class Phase(IntEnum):
    """What a member does for a round, in the order in which it does that."""

    BEGIN = 1
    """Whatever is before the first step: a new anchor is taken over, perhaps validated."""

    TRAIN = 2
    ENCODE = 3
    """Whatever is between the last step and the COMMIT."""

    FETCH = 4
    """It gathers the parts that it is to hold; counted in pieces of cells."""

    RESULT = 5
    """It fetches what the round came to; counted in pieces of cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the sender is with its work for a round of a shard: `done` of `total` steps or cells,
    and in how many seconds it expects this phase to end, 0 while it cannot tell."""

    shard: Annotated[int, Range(0, 2**16 - 1)]
    round: Round
    phase: Phase
    done: Annotated[int, Range(0, 2**31)]
    total: Annotated[int, Range(1, 2**31)]
    end_s: Annotated[int, Range(0, limits.PHASE_S_MAX)]


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Sign of life; `held` names the messages of the current round, so that gaps are filled.

    `round` is the round under way, `head` the digest of the seal that it stands on, the last final
    one unless `branch` says otherwise; `links` are the peers that the sender is linked to (so that
    nobody forwards what the origin has sent there itself), `silent` those of them that it has not
    heard of late: for the others it stands surety. `progress` is of the shards for which it works.
    """

    round: Round
    head: Digest
    held: Annotated[tuple[MessageId, ...], Size(0, limits.MESSAGES_PER_ROUND_MAX)]
    links: Annotated[tuple[Peer, ...], Size(0, 256)]
    silent: Annotated[tuple[Peer, ...], Size(0, 256)] = ()
    branch: Annotated[tuple[BranchEnd, ...], Size(0, 1)] = ()
    progress: Annotated[tuple[Progress, ...], Size(0, limits.SHARDS_WORKED_MAX)] = ()

    @cached_property
    def held_set(self) -> frozenset[bytes]:
        """`held`, to look things up in; made once."""
        return frozenset(self.held)

    @cached_property
    def link_set(self) -> frozenset[PeerId]:
        """`links`, likewise."""
        return frozenset(self.links)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Signed messages, as they are: as many as the bytes of a frame allow."""

    messages: Annotated[tuple[SignedMessage, ...], Size(1, 256)]


class Bulk(IntEnum):
    """What a bulk stream carries."""

    PART = 1
    RESULT = 2
    STATE = 3
    STEP = 4
    """The result of a round that is final: without proofs, for the sealed root is one."""

    WORK = 5
    """An inner state, or a residual, named by its root: what an audit begins with (R10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Please push these cells: `first`, and those behind it of which a bit of `bits` is set.

    `subject` is a COMMIT digest for parts, a LIST digest for results, a seal digest for state,
    whose cells are those of the anchor and of each outer slot in turn, and for a step: the result
    that leads from the state before that seal to its own. For work it is the root over the cells.

    Bit 0 is the lowest of the first byte, and stands for `first`. So many cells take a byte for
    eight, and are not looked at where the subject is not here.
    """

    bulk: Bulk
    subject: Digest
    first: CellIndex
    bits: Annotated[bytes, Size(1, limits.WANT_CELLS_MAX // 8)]

    def __post_init__(self) -> None:
        if not (self.bits[:1] and self.bits[0] & 1 and self.bits[-1]):
            raise ValueError("the bits of a Want begin with its first cell and end with its last")

    @property
    def cells(self) -> tuple[int, ...]:
        """The cells, ascending."""
        marks = bin(int.from_bytes(self.bits, "little"))[:1:-1]
        return tuple(self.first + at for at, mark in enumerate(marks) if mark == "1")


def wants(bulk: Bulk, subject: bytes, cells: Iterable[int]) -> Iterator[Want]:
    """As few Wants as name these cells."""
    near: list[int] = []
    for cell in sorted(cells):
        if near and cell - near[0] >= limits.WANT_CELLS_MAX:
            yield _want(bulk, subject, near)
            near = []
        near.append(cell)
    if near:
        yield _want(bulk, subject, near)


def _want(bulk: Bulk, subject: bytes, cells: Sequence[int]) -> Want:
    first = cells[0]
    bits = bytearray((cells[-1] - first) // 8 + 1)
    for cell in cells:
        bits[(cell - first) >> 3] |= 1 << ((cell - first) & 7)
    return Want(bulk=bulk, subject=subject, first=first, bits=bytes(bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """The answer to a Want of state or step where nothing of that subject is here: ask others."""

    bulk: Bulk
    subject: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WantChain:
    """Please send the final seals from this round on."""

    first: Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Final seals in ascending, unbroken order."""

    seals: Annotated[tuple[SealCertificate, ...], Size(1, limits.CHAIN_SEALS_PER_FRAME_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantBranch:
    """Please send the provisional seals that you stand on behind this final seal (R4)."""

    final: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A provisional seal with the PSEALs that made it one; as many frames as the branch has seals.

    They ascend from the seal `final` on; the last frame has none. `lock` is a SEAL of the round
    behind `final`, of the latest attempt of which the sender knows one; empty if it knows none.
    """

    final: Digest
    seals: Annotated[tuple[SealCertificate, ...], Size(0, limits.CHAIN_SEALS_PER_FRAME_MAX)]
    lock: Annotated[bytes, Size(0, limits.NESTED_MESSAGE_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAsk:
    """A peer that slept asks where the others are (R3); `nonce` pairs question and answer."""

    nonce: Annotated[int, Range(0, 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """Where the answering peer is. Its signed messages of the round came before, as Messages."""

    nonce: Annotated[int, Range(0, 2**62)]
    round: Round
    head: Digest


Frame = (
    Hello
    | Refusal
    | Heartbeat
    | Messages
    | Want
    | WantChain
    | Chain
    | StatusAsk
    | StatusAnswer
    | GossipFrame
    | WantBranch
    | Branch
    | Welcome
    | Lacking
)

HELLO_TYPE = b"\x01"
"""The type byte of a hello, in every wire version."""

_TYPES: dict[int, type[Frame]] = {
    HELLO_TYPE[0]: Hello,
    2: Refusal,
    3: Heartbeat,
    4: Messages,
    5: Want,
    6: WantChain,
    7: Chain,
    8: StatusAsk,
    9: StatusAnswer,
    **GOSSIP_FRAMES,
    23: WantBranch,
    24: Branch,
    25: Welcome,
    26: Lacking,
}
_NUMBERS = {kind: number for number, kind in _TYPES.items()}


def encode_frame(frame: Frame) -> bytes:
    """One type byte, then the canonical bytes."""
    data = bytes([_NUMBERS[type(frame)]]) + encode(frame)
    assert len(data) <= limits.CONTROL_FRAME_BYTES_MAX, f"a frame of {len(data)} bytes"
    return data


def decode_frame(data: bytes) -> Frame:
    """Inverse of `encode_frame`. Raises DecodeError."""
    kind = _TYPES.get(data[0]) if data else None
    if kind is None:
        raise DecodeError(f"no frame of type {data[:1].hex() or 'nothing'}")
    return decode(kind, data[1:], max_bytes=limits.CONTROL_FRAME_BYTES_MAX - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkHeader:
    """First frame of a bulk stream: what follows, and how many items.

    `round` is the one that the cells are of, or whose seal the state is of: it says of which
    fragment they are, and so how long (R5).
    """

    bulk: Bulk
    subject: Digest
    round: Round
    items: Annotated[int, Range(1, limits.WANT_CELLS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """What is said of an item: its place, its length, and the proof of its root, node behind node.

    The proof leads to COMMIT.root, AGG.root or the seal's root.
    """

    index: CellIndex
    length: Annotated[int, Range(0, limits.CHUNK_BYTES)]
    proof: Annotated[bytes, Size(0, DIGEST_BYTES * limits.PROOF_NODES_MAX)]

    def __post_init__(self) -> None:
        if len(self.proof) % DIGEST_BYTES:
            raise ValueError("a proof is whole digests")

    @property
    def nodes(self) -> tuple[bytes, ...]:
        """The nodes of the proof."""
        proof, starts = self.proof, range(0, len(self.proof), DIGEST_BYTES)
        return tuple([proof[at : at + DIGEST_BYTES] for at in starts])


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkItems:
    """Before the bytes of one item or of some, which lie behind one another.

    The bytes come in pieces of `piece` bytes, the last one shorter; the taker answers a byte for
    each. Several items are one piece together.
    """

    items: Annotated[tuple[BulkItem, ...], Size(1, limits.ITEMS_TOGETHER_MAX)]
    piece: Annotated[int, Range(limits.PIECE_BYTES_LEAST, limits.PIECE_BYTES_MAX)]

    def __post_init__(self) -> None:
        if len(self.items) > 1 and sum(item.length for item in self.items) > self.piece:
            raise ValueError("several items are one piece together")


# Blocks of the run's text -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WantBlocks:
    """First frame of a stream for text: please send these blocks of the text with that root.

    Each is answered in its turn by a BlockHeader, and by the bytes of the block if it is there.
    """

    root: Digest
    blocks: Annotated[tuple[BlockNumber, ...], Size(1, limits.TEXT_BLOCKS_ASKED_MAX)]

    def __post_init__(self) -> None:
        if list(self.blocks) != sorted(set(self.blocks)):
            raise ValueError("wanted blocks must ascend, none twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """Before the bytes of one block, or in their place if `length` is 0: it is not here.

    `proof` leads from the block's digest to the root of the text, lowest node first.
    """

    number: BlockNumber
    length: Annotated[int, Range(0, limits.TEXT_BLOCK_BYTES_MAX)]
    proof: Annotated[bytes, Size(0, DIGEST_BYTES * limits.PROOF_NODES_MAX)]

    def __post_init__(self) -> None:
        if len(self.proof) % DIGEST_BYTES:
            raise ValueError("a proof is whole digests")
