"""Which members keep which blocks: of each block those with room whose hash with it is least. Pure.

Every member computes this for itself, from what the others announce. A member that leaves changes
nothing but the blocks that it kept: of each of them the next in order makes a copy. Room is given
out copy by copy: every block has its first copy before any block has its second.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol import limits
from protocol.identity import PeerId

COPIES = 3
"""Of each block, unless the run says otherwise: any two members may go at once."""

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

NOBODY = -1
"""In `Placement.holders`, where there is no room for a copy."""

_FARTHEST = np.uint64(2**64 - 1)
_ROWS_TOGETHER = 1 << 14
"""Blocks whose hashes with all members are in memory at once: 8 MiB for 64 members."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """`holders` has a row of `copies` for each block: indices into `members`, or NOBODY, int16."""

    root: bytes
    members: tuple[PeerId, ...]
    holders: NDArray[np.int16]

    def kept_by(self, peer: PeerId) -> Numbers:
        """The blocks that a peer is to keep, ascending."""
        if peer not in self.members:
            return np.empty(0, np.int64)
        return np.flatnonzero((self.holders == self.members.index(peer)).any(axis=1))

    def members_of(self, block: int) -> tuple[PeerId, ...]:
        """Who is to keep a block, in order."""
        return tuple(self.members[at] for at in self.holders[block].tolist() if at != NOBODY)

    def order_of(self, block: int) -> tuple[PeerId, ...]:
        """All members in the order in which they are to keep a block, whether or not they do."""
        hashes = _hashes(_keys(self.root, self.members), np.array([block]))[0]
        return tuple(self.members[at] for at in np.argsort(hashes).tolist())


def place_blocks(
    root: bytes, num_blocks: int, rooms: Mapping[PeerId, int], copies: int = COPIES
) -> Placement:
    """Which of the members, each with room for so many blocks, keep which of the blocks.

    Raises ValueError for more members or blocks than there may be.
    """
    if len(rooms) > limits.TEXT_MEMBERS_MAX or not 0 < num_blocks <= limits.TEXT_BLOCKS_MAX:
        raise ValueError(f"{num_blocks} blocks among {len(rooms)} members")
    members = tuple(sorted(peer for peer, room in rooms.items() if room > 0))
    free = np.array([min(rooms[peer], num_blocks) for peer in members], np.int64)
    holders = np.full((num_blocks, copies), NOBODY, np.int16)
    if not members:
        return Placement(root, members, holders)
    keys = _keys(root, members)
    if len(members) > copies:
        _fill_with_least(keys, holders)
        taken = np.bincount(holders.ravel(), minlength=len(members))
        if (taken <= free).all():
            return Placement(root, members, holders)
        holders[:] = NOBODY
    for layer in range(min(copies, len(members))):
        _fill_layer(keys, free, holders, layer)
    return Placement(root, members, holders)


def _keys(root: bytes, members: tuple[PeerId, ...]) -> Hashes:
    """A number of each member that nobody chooses freely."""
    digests = b"".join(blake3(root + peer).digest(length=8) for peer in members)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _hashes(keys: Hashes, blocks: Numbers) -> Hashes:
    """The hash of each block with each member: the finaliser of SplitMix64."""
    steps = (blocks.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    found = steps[:, None] + keys[None, :]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found ^= found >> np.uint64(shift)
        found *= np.uint64(factor)
    found ^= found >> np.uint64(31)
    return found


def _fill_with_least(keys: Hashes, holders: NDArray[np.int16]) -> None:
    """As if everybody had room."""
    num_blocks, copies = holders.shape
    for start in range(0, num_blocks, _ROWS_TOGETHER):
        rows = np.arange(start, min(start + _ROWS_TOGETHER, num_blocks))
        hashes = _hashes(keys, rows)
        least = np.argpartition(hashes, copies - 1, axis=1)[:, :copies]
        order = np.argsort(np.take_along_axis(hashes, least, axis=1), axis=1)
        holders[rows] = np.take_along_axis(least, order, axis=1)


def _fill_layer(keys: Hashes, free: Numbers, holders: NDArray[np.int16], layer: int) -> None:
    """Give one more copy of each block to somebody with room; `free` is what is left of it.

    Each block asks the member whose hash is least. Whoever is asked by more than it has room for
    keeps those of least hash, and the others ask on. No order of asking changes what comes out.
    """
    closed = np.where(free > 0, _FARTHEST, np.uint64(0))
    """Of each member the hash from which on it refuses."""
    hashes = np.full(len(holders), _FARTHEST)
    rows = np.arange(len(holders))
    while rows.size:
        for start in range(0, rows.size, _ROWS_TOGETHER):
            some = rows[start : start + _ROWS_TOGETHER]
            holders[some, layer], hashes[some] = _nearest(keys, closed, some, holders[some, :layer])
        column = holders[:, layer]
        asked = np.bincount(column[column != NOBODY], minlength=len(free))
        refused = []
        for member in np.flatnonzero(asked > free).tolist():
            mine = np.flatnonzero(column == member)
            room = int(free[member])
            closed[member] = np.partition(hashes[mine], room)[room]
            refused.append(mine[hashes[mine] >= closed[member]])
        rows = np.concatenate(refused) if refused else np.empty(0, np.int64)
    column = holders[:, layer]
    free -= np.bincount(column[column != NOBODY], minlength=len(free))


def _nearest(
    keys: Hashes, closed: Hashes, rows: Numbers, before: NDArray[np.int16]
) -> tuple[NDArray[np.int64], Hashes]:
    """Of each row the member of least hash that is open to it and has no copy yet, or NOBODY."""
    found = _hashes(keys, rows)
    found[found >= closed] = _FARTHEST
    for copy in range(before.shape[1]):
        at = np.flatnonzero(before[:, copy] != NOBODY)
        found[at, before[at, copy]] = _FARTHEST
    nearest = found.argmin(axis=1)
    hashes = found[np.arange(len(rows)), nearest]
    return np.where(hashes == _FARTHEST, NOBODY, nearest), hashes
