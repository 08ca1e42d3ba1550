"""A sealed state of a shard, its cells as they travel, and the sizes of all of them."""

import mmap
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from node.holdings.outer_step import OuterStepping
from protocol import limits
from protocol.grid import CellSizes, MerkleTree, StateTree, cell_root, merkle_root
from protocol.manifest import RunManifest
from protocol.rounds.round_config import RoundConfig
from training.aggregation import AGGREGATORS
from training.compression import result_codec
from training.outer.optimizers import make_outer

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class State:
    """Anchor and outer slots after a round. Nobody writes to the arrays once they are in here.

    `cell_roots` are those of each fragment's state cells.
    """

    anchor_N: Vector
    slots: Mapping[str, Vector]
    cell_roots: tuple[tuple[bytes, ...], ...]
    root: bytes

    @cached_property
    def tree(self) -> StateTree:
        """The tree over its cells."""
        return StateTree(self.cell_roots)


NO_STATE = State(np.empty(0, dtype=np.float32), {}, (), b"")
"""While one is made of the other."""


@dataclass(frozen=True, slots=True)
class StateRoots:
    """The roots of a state whose vectors are made when it is sealed."""

    cell_roots: tuple[tuple[bytes, ...], ...]
    root: bytes


@dataclass(frozen=True, slots=True)
class Item:
    """A stored cell as it travels: bytes, and the proof from its root to the tree's."""

    index: int
    payload: bytes
    proof: tuple[bytes, ...]


def cell_sizes(manifest: RunManifest, shard: int = 0) -> CellSizes:
    """The sizes of the cells of a run's shard."""
    vectors = 1 + len(make_outer(manifest.outer).slots)
    codec = result_codec(manifest.outer)
    numels = manifest.layout(shard).cell_numels
    return CellSizes(
        state=tuple(4 * numel for cells in numels for numel in cells * vectors),
        result=tuple(tuple(codec.payload_bytes(n) for n in cells) for cells in numels),
    )


def round_config(manifest: RunManifest, shard: int = 0) -> RoundConfig:
    """What the law of the run says to its round machine and to catching up, with no local taste."""
    return RoundConfig.from_manifest(
        manifest,
        shard,
        uses_gram=AGGREGATORS[manifest.outer.aggregator]().uses_stats,
        cell_sizes=cell_sizes(manifest, shard),
    )


def finished(stepping: OuterStepping, before: State, cells: Sequence[bytes]) -> State:
    """The state after a step on `before`, all cells of whose result are here."""
    anchor_N, slots, stepped = stepping.finish(cells)
    roots = list(before.cell_roots)
    roots[stepping.fragment] = stepped
    return make_state(anchor_N, slots, tuple(roots))


def foreseen(stepping: OuterStepping, before: State, cells: Sequence[bytes]) -> StateRoots:
    """As `finished`, of the roots alone."""
    roots = list(before.cell_roots)
    roots[stepping.fragment] = stepping.roots(cells)
    return StateRoots(tuple(roots), merkle_root([merkle_root(found) for found in roots]))


def wire_view(x_N: Vector) -> memoryview:
    """The bytes of a vector as they are hashed and sent: little-endian float32. No copy here."""
    return x_N.astype("<f4", copy=False).data.cast("B")


def make_state(
    anchor_N: Vector, slots: Mapping[str, Vector], cell_roots: tuple[tuple[bytes, ...], ...]
) -> State:
    """A state of which the roots of all cells are known."""
    root = merkle_root([merkle_root(roots) for roots in cell_roots])
    return State(anchor_N, slots, cell_roots, root)


# Result cells -------------------------------------------------------------------------------------
#
# The encoded result of one LIST, as far as it is here, and the roots of its cells.

ReadBack = Callable[[int, int], bytes]
"""Bytes of a result that lies in a file (`node.holdings.results`)."""

Proved = tuple[int, bytes, tuple[bytes, ...]]
"""Number, bytes and proof of a cell."""


class ResultCells:
    """Cells by number. Every cell is hashed once, however often it is sent."""

    def __init__(self, cells: Iterable[bytes] = ()) -> None:
        """Begins with these cells, the first of the grid."""
        self._payloads = dict(enumerate(cells))
        self._roots: dict[int, bytes] = {}
        self._trees: dict[tuple[int, int], MerkleTree] = {}
        self._read: ReadBack | None = None
        self._starts: list[int] = []

    def __len__(self) -> int:
        return max(len(self._payloads), len(self._starts) - 1)

    @property
    def is_on_disk(self) -> bool:
        """Whether its cells are read from a file when they are asked for."""
        return self._read is not None

    def leave_to_disk(self, read: ReadBack, sizes: Sequence[int]) -> None:
        """All cells, of these sizes, lie behind one another where `read` reads: their memory goes,
        and who asks for one waits for the disk. Their roots stay."""
        self._tree(0, len(sizes))
        self._read, self._starts = read, list(accumulate(sizes, initial=0))
        self._payloads.clear()

    def get(self, cell: int) -> bytes | None:
        """The bytes of a cell; None while it is not here, or if the disk has other ones by now."""
        payload = self._payloads.get(cell)
        if payload is None and self._read is not None and cell + 1 < len(self._starts):
            start, stop = self._starts[cell : cell + 2]
            try:
                payload = self._read(start, stop - start)
            except OSError:
                return None
            if cell_root(payload) != self._roots[cell]:
                return None
        return payload

    def whole(self) -> list[bytes]:
        """All cells from the first on; none if one of them is not here."""
        found = [self.get(cell) for cell in range(len(self))]
        payloads = [payload for payload in found if payload is not None]
        return payloads if len(payloads) == len(found) else []

    def roots(self) -> list[bytes]:
        """Of all cells, when it is whole."""
        return self._roots_of(range(len(self)))

    def put(self, cell: int, payload: bytes, root: bytes) -> None:
        """Keep a cell that has this root; it replaces another one."""
        if self._roots.get(cell) == root and (self.is_on_disk or cell in self._payloads):
            return  # It came late, and would take memory again, or be stepped again.
        if self._roots.get(cell) != root:
            self._trees.clear()
        self._payloads[cell], self._roots[cell] = payload, root

    def proofs(self, first: int, stop: int) -> Iterator[Proved]:
        """Cells [first, stop), their bytes and proofs in the tree over them; none if one lacks."""
        found = [(cell, self.get(cell)) for cell in range(first, stop)]
        payloads = [(cell, payload) for cell, payload in found if payload is not None]
        if len(payloads) < len(found):
            return
        tree = self._tree(first, stop)
        for cell, payload in payloads:
            yield cell, payload, tree.proof(cell - first)

    def proved(self, cell: int, first: int, stop: int) -> Proved | None:
        """One of `proofs`; None if it is not here. Who sends a slice from the disk reads it so."""
        payload = self.get(cell)
        if payload is None:
            return None
        return cell, payload, self._tree(first, stop).proof(cell - first)

    def root(self, first: int, stop: int) -> bytes:
        """Merkle root over the roots of cells [first, stop), which are here."""
        root = self._tree(first, stop).root
        assert root is not None
        return root

    def _tree(self, first: int, stop: int) -> MerkleTree:
        tree = self._trees.get((first, stop))
        if tree is None:
            tree = self._trees[first, stop] = MerkleTree(self._roots_of(range(first, stop)))
        return tree

    def _roots_of(self, cells: range) -> list[bytes]:
        for cell in cells:
            if cell not in self._roots:
                self._roots[cell] = cell_root(self._payloads[cell])
        return [self._roots[cell] for cell in cells]


# Cell memory --------------------------------------------------------------------------------------
#
# Memory for cells that come: each begins at a page, and is used again once nobody holds it.
#
# On the heap cells and small things lie in turn, so that a cell that was let go of leaves a hole
# into which a small thing goes and no cell fits any more: a node's heap grew to a third more than
# it held.

LARGE_BYTES = 64 * limits.KIB
"""Smaller cells are the heap's: their number is that of small models."""

FREE_BYTES_MAX = 2048 * limits.MIB
"""That are kept for the next round; more goes back to the system."""

_PAGE_BYTES = mmap.PAGESIZE

_PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
"""Places that lie side by side are one mapping then, of which Linux gives a process 65 530: each by
itself, two rounds of eight contributions of 4096 cells are more. Its pages come faster, too."""


class CellMemory:
    """Of one node. A place is taken from any thread, and given back by whichever lets go of it."""

    def __init__(self) -> None:
        self._free: defaultdict[int, deque[mmap.mmap]] = defaultdict(deque)
        self.free_bytes = 0
        """About: several threads count."""

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, `LARGE_BYTES` at least, of which any may stand there."""
        whole = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        try:
            pages = self._free[whole].pop()
            self.free_bytes -= whole
        except IndexError:
            try:
                pages = mmap.mmap(-1, whole, **_PRIVATE)
            except OSError:  # Of mappings, too, there are only so many.
                return np.empty(size, dtype=np.uint8).data
        place = np.frombuffer(pages, dtype=np.uint8)
        # Views of it hold it; behind the last of them the pages are nobody's.
        weakref.finalize(place, self._give_back, pages).atexit = False
        return place[:size].data

    def copied(self, payload: bytes) -> bytes:
        """The same bytes, to be read only; those of a small cell as they are."""
        if len(payload) < LARGE_BYTES:
            return bytes(payload)
        place = self.take(len(payload))
        place[:] = payload
        return place.toreadonly()  # type: ignore[return-value]  # read like bytes

    def _give_back(self, pages: mmap.mmap) -> None:
        if self.free_bytes < FREE_BYTES_MAX:
            self._free[len(pages)].append(pages)
            self.free_bytes += len(pages)
