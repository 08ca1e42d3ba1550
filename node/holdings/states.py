"""A sealed state of a shard, the outer step to the next one, its cells as they travel, and their
sizes."""

import mmap
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import cast

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.grid import CellSizes, Layout, MerkleTree, StateTree, cell_root, merkle_root
from protocol.manifest import RunManifest
from protocol.rounds.round_config import RoundConfig
from training.aggregation import AGGREGATORS
from training.compression import Codec, decode_to_read, lattice_of, result_codec
from training.numeric.memory import VectorSource, is_held_elsewhere
from training.outer.optimizers import (
    OuterInfo,
    OuterOptimizer,
    OuterStep,
    StepsOnLattice,
    blank_step,
    make_outer,
    steps_on_lattice,
)

Vector = NDArray[np.float32]

# Outer step ---------------------------------------------------------------------------------------
#
# An outer step taken cell by cell, as the cells of its result come.
#
# N elements of the shard; a step is on one fragment of it
#
# What is in the cache is decoded, stepped and hashed from there, and of whole vectors only those
# are made that stay. Until the last cell is here nobody sees any of it, so a step on the result of
# a LIST that does not become the sealed one costs its time, and nothing else.
#
# Where a state is large, that is all that is done before the seal: the roots of the next one are
# what votes and seals are about. Its vectors are made with the seal, in the memory of those before
# unless somebody holds them: a second step in place of a second state.


@dataclass(frozen=True, slots=True)
class StepRules:
    """What all outer steps of a shard have in common."""

    layout: Layout
    outer: OuterOptimizer
    codec: Codec
    """Of the results."""
    anchors: VectorSource
    """Where the anchors that steps make come from."""

    spare: VectorSource
    """Where the slots come from."""

    def step(
        self,
        before: Sequence[Vector],
        payload: bytes,
        round_index: int,
        out: OuterStep | None,
        *,
        is_checked: bool,
    ) -> OuterStep:
        """That of one cell: of its anchor and slots before, and its encoded result.

        Raises DecodeError for bytes that decode to no finite numbers, unless they were checked.
        """
        outer, codec, anchor_N = self.outer, self.codec, before[0]
        slots = dict(zip(outer.slots, before[1:], strict=True))
        info = OuterInfo(round=round_index, slots=slots)
        if is_checked and steps_on_lattice(type(outer)):
            lattice = lattice_of(codec, payload, len(anchor_N))
            out = out or blank_step(anchor_N, outer.slots)
            if lattice and cast("StepsOnLattice", outer).step_on_lattice(
                anchor_N, lattice, info, out
            ):
                return out
        aggregate_N = decode_to_read(codec, payload, len(anchor_N), is_checked=is_checked)
        return outer.step(anchor_N, aggregate_N, info, out)

    def sources(self) -> list[VectorSource]:
        """Of the anchor and of each slot."""
        return [self.anchors, *(self.spare for _ in self.outer.slots)]


class OuterStepping:
    """The step on one result, from one state. Cells may come in any order, and from any thread."""

    def __init__(
        self,
        rules: StepRules,
        anchor_N: Vector,
        slots: Mapping[str, Vector],
        *,
        round_index: int,
        keeps: bool = True,
        is_checked: bool = False,
    ) -> None:
        """`anchor_N` and `slots` are the state before, which is only read. Without `keeps` only the
        roots of the next one are found. With `is_checked` all cells were, before they come here."""
        self._rules, self._layout = rules, rules.layout
        self._before_N, self._slots = anchor_N, slots
        self._round = round_index
        self.fragment = rules.layout.fragment_of(round_index)
        num_cells = rules.layout.num_cells(self.fragment)
        self.keeps = keeps
        self._is_checked = is_checked
        sources = rules.sources()
        self._vectors = [source.take() for source in sources] if keeps else []
        self._roots: list[list[bytes]] = [[b""] * num_cells for _ in sources]
        self._taken: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def take(self, cell: int, payload: bytes) -> None:
        """Step one cell, unless these very bytes of it were taken, or what came of all is given
        away already.

        Raises DecodeError for bytes that decode to no finite numbers, unless they were checked.
        """
        # A cell that comes from two peers may be stepped in the loop and in a worker, and a step on
        # its way to the next vector leaves something else there.
        with self._lock:
            if not self._is_over:
                self._step(cell, payload)

    def _step(self, cell: int, payload: bytes) -> None:
        if self._taken.get(cell) is payload:
            return
        span = self._layout.cell_span(self.fragment, cell)
        names = self._rules.outer.slots
        before = [self._before_N[span], *(self._slots[name][span] for name in names)]
        out = _step_into([vector_N[span] for vector_N in self._vectors], names)
        step = self._rules.step(before, payload, self._round, out, is_checked=self._is_checked)
        pieces = (step.anchor_N, *(step.slots[name] for name in names))
        for roots, piece_N in zip(self._roots, pieces, strict=True):
            roots[cell] = cell_root(piece_N.astype("<f4", copy=False).data)
        self._taken[cell] = payload

    def roots(self, cells: Sequence[bytes]) -> tuple[bytes, ...]:
        """Step what is left of all cells: the roots of the fragment's state cells."""
        for cell, payload in enumerate(cells):
            self.take(cell, payload)  # Nobody waits for longer than one cell.
        with self._lock:
            self._is_over = True
            for cell, payload in enumerate(cells):
                self._step(cell, payload)  # Again what another one took meanwhile, if anything.
        return tuple(root for found in self._roots for root in found)

    def finish(self, cells: Sequence[bytes]) -> tuple[Vector, dict[str, Vector], tuple[bytes, ...]]:
        """Step what is left of all cells: the new anchor and slots, and the roots of the fragment's
        state cells. The other fragments are what they were before."""
        roots = self.roots(cells)
        stepped = self._layout.fragment_span(self.fragment)
        names = self._rules.outer.slots
        before = (self._before_N, *(self._slots[name] for name in names))
        for vector_N, before_N in zip(self._vectors, before, strict=True):
            for rest in (slice(stepped.start), slice(stepped.stop, None)):
                vector_N[rest] = before_N[rest]
        slots = dict(zip(names, self._vectors[1:], strict=True))
        return self._vectors[0], slots, roots


def _step_into(pieces: list[Vector], slots: Sequence[str]) -> OuterStep | None:
    """Where a step is written to; None of no vectors."""
    return OuterStep(pieces[0], dict(zip(slots, pieces[1:], strict=True))) if pieces else None


def step_over(
    rules: StepRules, vectors: list[Vector], cells: Sequence[bytes], round_index: int
) -> list[Vector]:
    """The step on a result that was stepped before, of the anchor and slots that are `vectors`: in
    the memory of those that nobody else holds.

    The caller has no other name for any of them, and nobody can come by one meanwhile. Their list
    is empty when this returns.
    """
    layout, fragment = rules.layout, rules.layout.fragment_of(round_index)
    targets = []
    for place, source in enumerate(rules.sources()):
        is_free = not is_held_elsewhere(vectors, place) and source.made(vectors[place])
        targets.append(vectors[place] if is_free else source.take())
    for cell, payload in enumerate(cells):
        span = layout.cell_span(fragment, cell)
        before = [vector_N[span] for vector_N in vectors]
        out = _step_into([target_N[span] for target_N in targets], rules.outer.slots)
        rules.step(before, payload, round_index, out, is_checked=True)
    whole = layout.fragment_span(fragment)
    for target_N, vector_N in zip(targets, vectors, strict=True):
        if target_N is not vector_N:
            for rest in (slice(whole.start), slice(whole.stop, None)):
                target_N[rest] = vector_N[rest]
    if all(target_N is vector_N for target_N, vector_N in zip(targets, vectors, strict=True)):
        for source in rules.sources():
            source.trim()  # A spare one was not needed.
    vectors.clear()
    return targets


# State --------------------------------------------------------------------------------------------


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
