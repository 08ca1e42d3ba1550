"""What a run's text is on the way between peers: blocks of one size, under one root."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol import limits
from protocol.entry_kinds import HoldsText, decode_runs, encode_runs
from protocol.errors import ProofError
from protocol.grid import check_merkle_proof
from protocol.identity import PeerId
from protocol.wire import DIGEST_BYTES

MIRROR = PeerId(bytes(32))
"""Stands for the mirrors where a peer is named: whoever acts asks one of them."""

BlockMask = NDArray[np.bool_]
"""Of each block of a text, whether something holds."""


@dataclass(frozen=True, slots=True)
class TextShape:
    """A text: the Merkle root over the digests of its blocks, and their number and bytes.

    Raises ValueError for what no text can be.
    """

    root: bytes
    num_blocks: int
    block_bytes: int

    def __post_init__(self) -> None:
        fits = 0 < self.num_blocks <= limits.TEXT_BLOCKS_MAX
        if not (fits and 0 < self.block_bytes <= limits.TEXT_BLOCK_BYTES_MAX):
            raise ValueError(f"no text: {self.num_blocks} blocks of {self.block_bytes} bytes")

    @property
    def asked_together(self) -> int:
        """Blocks that one request names: about a MiB."""
        return max(1, min(limits.TEXT_BLOCKS_ASKED_MAX, limits.MIB // self.block_bytes))

    def check(self, number: int, payload: bytes, proof: Sequence[bytes]) -> None:
        """Raise ProofError unless these are the bytes of that block."""
        if len(payload) != self.block_bytes:
            raise ProofError(f"block {number} has {len(payload)} bytes, not {self.block_bytes}")
        check_merkle_proof(
            self.root, block_digest(payload), proof, index=number, count=self.num_blocks
        )


def block_digest(payload: bytes | memoryview) -> bytes:
    """The leaf of a block in the tree of its text."""
    return blake3(payload).digest()


def mask_of(blocks: Iterable[int], num_blocks: int) -> BlockMask:
    """The mask in which these blocks are True; those that the text does not have are left out."""
    mask = np.zeros(num_blocks, np.bool_)
    mask[[block for block in blocks if 0 <= block < num_blocks]] = True
    return mask


def runs_of(mask: BlockMask) -> list[tuple[int, int]]:
    """The runs [first, stop) of blocks that are True."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def announcement(
    mask: BlockMask, *, room: int, hot: Sequence[int] = (), is_settled: bool = True
) -> HoldsText:
    """What a node says that holds the blocks of a mask."""
    runs, count = b"", int(mask.sum())
    found = runs_of(mask)
    if len(found) <= limits.TEXT_RUNS_BYTES_MAX // 2:
        runs = encode_runs(found)
    if len(runs) > limits.TEXT_RUNS_BYTES_MAX:
        runs = b""
    return HoldsText(room=room, count=count, runs=runs, hot=tuple(hot), is_settled=is_settled)


def announced_mask(said: HoldsText, num_blocks: int) -> BlockMask | None:
    """The blocks that an announcement names; None where it says only how many there are.

    Raises ProofError for blocks that the text does not have.
    """
    runs = decode_runs(said.runs)
    if said.count > num_blocks or (runs and runs[-1][1] > num_blocks):
        raise ProofError(f"holds blocks behind the last of {num_blocks}")
    if said.count and not runs:
        return np.ones(num_blocks, np.bool_) if said.count == num_blocks else None
    mask = np.zeros(num_blocks, np.bool_)
    for first, stop in runs:
        mask[first:stop] = True
    return mask


class DigestTree:
    """The Merkle tree over the digests of all blocks, for many proofs: 64 bytes a block."""

    def __init__(self, digests: bytes) -> None:
        """`digests` lie behind one another, 32 bytes each; at least one."""
        self._levels = [digests]
        while len(level := self._levels[-1]) > DIGEST_BYTES:
            pair = 2 * DIGEST_BYTES
            self._levels.append(
                b"".join(
                    blake3(b"\x01" + both).digest() if len(both) == pair else both
                    for both in (level[at : at + pair] for at in range(0, len(level), pair))
                )
            )

    @property
    def root(self) -> bytes:
        """The root over all of them."""
        return self._levels[-1]

    def proof(self, number: int) -> tuple[bytes, ...]:
        """The siblings on the way from a block's digest to the root, lowest first."""
        found = []
        for level in self._levels[:-1]:
            at = DIGEST_BYTES * (number ^ 1)
            if at < len(level):
                found.append(level[at : at + DIGEST_BYTES])
            number //= 2
        return tuple(found)
