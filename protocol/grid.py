"""The fixed layout of a model, and Merkle trees over it.

shard > fragment > cell. The layout is a function of the manifest alone, never of
who is present, so a commitment stays valid whatever happens to the reducers.

    cell root   BLAKE3 with CELL_KEY (bytes)              one payload
    node        BLAKE3(01 | left | right)                 an odd node goes up unchanged
    root        tree of cell roots of one fragment; a seal's root is the tree of fragment roots
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated

from blake3 import blake3

from protocol import limits
from protocol.errors import ProofError
from protocol.wire import OneOf, Range, Size, Spelled

EMPTY_ROOT = blake3(b"barnraise/empty/1").digest()
"""Root of a tree with no leaves: of an absent residual, of an empty aggregate."""

TENSOR_NAME_BYTES_MAX = 256

CELL_KEY = blake3(b"barnraise/cell/1").digest()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of one parameter."""

    name: Annotated[str, Size(1, TENSOR_NAME_BYTES_MAX)]
    shape: Annotated[tuple[Annotated[int, Range(1, 2**31)], ...], Size(0, 8)]
    dtype: Annotated[str, OneOf(("float32",))] = "float32"

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a node holds, what its replica group synchronises: tensors, cut into fragments.

    `tensors` are sorted by name. `fragments` lists, per fragment, indices into `tensors` in
    ascending order; together they name every tensor once.
    """

    name: Annotated[str, Spelled("a-z0-9_", 1, 64)]
    tensors: Annotated[tuple[TensorSpec, ...], Size(1, limits.TENSORS_MAX)]
    fragments: Annotated[
        tuple[Annotated[tuple[int, ...], Size(1, limits.TENSORS_MAX)], ...],
        Size(1, limits.FRAGMENTS_MAX),
    ]

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if names != sorted(set(names)):
            raise ValueError("tensors must be sorted by name, each once")
        indices = sorted(index for fragment in self.fragments for index in fragment)
        if indices != list(range(len(names))):
            raise ValueError("fragments must name every tensor exactly once")
        if any(list(fragment) != sorted(fragment) for fragment in self.fragments):
            raise ValueError("a fragment lists its tensors in ascending order")


@dataclass(frozen=True)
class Layout:
    """Cells of every fragment of one shard.

    A fragment is the flat concatenation of its tensors, float32, in the order of the schema. The
    vector of a shard is its fragments behind one another.
    """

    shard: ShardSpec
    cell_elements: int

    @cached_property
    def fragment_numels(self) -> tuple[int, ...]:
        """Elements per fragment."""
        return tuple(
            sum(self.shard.tensors[index].numel for index in fragment)
            for fragment in self.shard.fragments
        )

    @cached_property
    def fragment_starts(self) -> tuple[int, ...]:
        """First element of each fragment in the vector of the shard."""
        return tuple(accumulate(self.fragment_numels[:-1], initial=0))

    @property
    def numel(self) -> int:
        """Elements of the shard."""
        return sum(self.fragment_numels)

    @property
    def num_fragments(self) -> int:
        """How many fragments are synced in turn."""
        return len(self.shard.fragments)

    def fragment_of(self, round_index: int) -> int:
        """The fragment that a round is about: r mod F, whatever the rounds before sealed (R5)."""
        return round_index % self.num_fragments

    def fragment_span(self, fragment: int) -> slice:
        """Where a fragment lies in the vector of the shard."""
        start = self.fragment_starts[fragment]
        return slice(start, start + self.fragment_numels[fragment])

    @cached_property
    def fragment_cells(self) -> tuple[int, ...]:
        """Cells per fragment; the last of each may be shorter than the others."""
        return tuple(-(-numel // self.cell_elements) for numel in self.fragment_numels)

    @cached_property
    def cell_numels(self) -> tuple[tuple[int, ...], ...]:
        """For each fragment the elements of each of its cells."""
        return tuple(
            tuple(self.cell_numel(fragment, cell) for cell in range(count))
            for fragment, count in enumerate(self.fragment_cells)
        )

    def num_cells(self, fragment: int) -> int:
        """Cells of `fragment`."""
        return self.fragment_cells[fragment]

    def cell_range(self, fragment: int, cell: int) -> tuple[int, int]:
        """First element of a cell and the one behind its last, within the fragment."""
        start = cell * self.cell_elements
        return start, min(start + self.cell_elements, self.fragment_numels[fragment])

    def cell_span(self, fragment: int, cell: int) -> slice:
        """Where a cell lies in the vector of the shard."""
        start, stop = self.cell_range(fragment, cell)
        first = self.fragment_starts[fragment]
        return slice(first + start, first + stop)

    def cell_numel(self, fragment: int, cell: int) -> int:
        """Elements of one cell."""
        start, stop = self.cell_range(fragment, cell)
        return stop - start


def _parents(level: Sequence[bytes]) -> list[bytes]:
    parents = [
        blake3(b"\x01" + level[index] + level[index + 1]).digest()
        for index in range(0, len(level) - 1, 2)
    ]
    if len(level) % 2:
        parents.append(level[-1])
    return parents


def merkle_root(nodes: Sequence[bytes]) -> bytes:
    """Root over `nodes` (32-byte digests, in order); EMPTY_ROOT if there are none."""
    if not nodes:
        return EMPTY_ROOT
    level = list(nodes)
    while len(level) > 1:
        level = _parents(level)
    return level[0]


class MerkleTree:
    """All nodes of the tree over `nodes`, for many proofs; a leaf that is not known is None.

    A node above one that is not known is not known either.
    """

    def __init__(self, nodes: Sequence[bytes | None]) -> None:
        self._levels = [list(nodes)]
        while len(self._levels[-1]) > 1:
            self._levels.append(_known_parents(self._levels[-1]))

    @property
    def root(self) -> bytes | None:
        """The root over all leaves; EMPTY_ROOT if there are none."""
        return self._levels[-1][0] if self._levels[-1] else EMPTY_ROOT

    def node(self, height: int, index: int) -> bytes | None:
        """The node over the leaves from `index << height` on, `1 << height` of them at most."""
        return self._levels[height][index]

    def proof(self, index: int) -> tuple[bytes, ...]:
        """As `merkle_proof`, of a tree of which all is known."""
        found = []
        for height, place in _siblings(len(self._levels[0]), index):
            node = self._levels[height][place]
            assert node is not None, "a proof needs the whole tree"
            found.append(node)
        return tuple(found)


def _siblings(count: int, index: int) -> Iterator[tuple[int, int]]:
    """Height and place of the siblings on the way from leaf `index` of `count` to the root."""
    height = 0
    while count > 1:
        if index ^ 1 < count:
            yield height, index ^ 1
        index //= 2
        count = (count + 1) // 2
        height += 1


def _known_parents(level: Sequence[bytes | None]) -> list[bytes | None]:
    found: list[bytes | None] = []
    for left, right in zip(level[::2], level[1::2], strict=False):
        is_known = left is not None and right is not None
        found.append(_parents([left, right])[0] if is_known else None)  # type: ignore[list-item]
    if len(level) % 2:
        found.append(level[-1])
    return found


def merkle_proof(nodes: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings on the way from `nodes[index]` to the root, lowest first."""
    proof = []
    level = list(nodes)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            proof.append(level[sibling])
        level = _parents(level)
        index //= 2
    return tuple(proof)


def check_merkle_proof(
    root: bytes, node: bytes, proof: Sequence[bytes], *, index: int, count: int
) -> None:
    """Raise ProofError unless `node` is number `index` of the `count` nodes under `root`."""
    found, rest = _climb(node, proof, index=index, count=count)
    if rest or found != root:
        raise ProofError("Merkle proof does not lead to the committed root")


def _climb(
    node: bytes, proof: Sequence[bytes], *, index: int, count: int
) -> tuple[bytes, Sequence[bytes]]:
    """The root over `count` nodes to which a proof leads, and what is left of the proof."""
    if not 0 <= index < count:
        raise ProofError(f"index {index} of a tree with {count} nodes")
    position, remaining = 0, count
    while remaining > 1:
        if index ^ 1 < remaining:
            if position == len(proof):
                raise ProofError("Merkle proof is too short")
            sibling = proof[position]
            position += 1
            pair = sibling + node if index % 2 else node + sibling
            node = blake3(b"\x01" + pair).digest()
        index //= 2
        remaining = (remaining + 1) // 2
    return node, proof[position:]


class StateTree:
    """The tree over the cells of a state: of each fragment, and over the roots of the fragments.

    State cells are numbered fragment by fragment. A cell that is not known is None.
    """

    def __init__(self, cell_roots: Sequence[Sequence[bytes | None]]) -> None:
        self._trees = [MerkleTree(roots) for roots in cell_roots]
        self._top = MerkleTree([tree.root for tree in self._trees])
        self._counts = [len(roots) for roots in cell_roots]

    @property
    def root(self) -> bytes | None:
        """What a seal names as its root; None while a cell is not known."""
        return self._top.root

    def proof(self, index: int) -> tuple[bytes, ...]:
        """From a cell to the root, lowest first; all cells are known."""
        fragment, place = state_place(self._counts, index)
        return (*self._trees[fragment].proof(place), *self._top.proof(fragment))

    def beside(self, index: int) -> Iterator[tuple[range, bytes | None]]:
        """For each node of a cell's proof: the cells that are under it, and what it is here."""
        fragment, place = state_place(self._counts, index)
        count, first = self._counts[fragment], sum(self._counts[:fragment])
        for height, number in _siblings(count, place):
            start, stop = number << height, min((number + 1) << height, count)
            yield range(first + start, first + stop), self._trees[fragment].node(height, number)
        starts = list(accumulate(self._counts, initial=0))
        for height, number in _siblings(len(self._counts), fragment):
            last = min((number + 1) << height, len(self._counts))
            yield range(starts[number << height], starts[last]), self._top.node(height, number)


def state_place(counts: Sequence[int], index: int) -> tuple[int, int]:
    """Fragment and place in it of a state cell; `counts` are the state cells of the fragments.

    Raises ProofError where there is no such cell.
    """
    place = index
    for fragment, count in enumerate(counts):
        if 0 <= place < count:
            return fragment, place
        place -= count
    raise ProofError(f"index {index} of a state with {sum(counts)} cells")


def check_state_proof(
    root: bytes, node: bytes, proof: Sequence[bytes], *, index: int, counts: Sequence[int]
) -> None:
    """Raise ProofError unless `node` is state cell `index` under `root`; see StateTree."""
    fragment, place = state_place(counts, index)
    found, rest = _climb(node, proof, index=place, count=counts[fragment])
    check_merkle_proof(root, found, rest, index=fragment, count=len(counts))


def cell_root(payload: bytes | memoryview) -> bytes:
    """Root of one cell's bytes. The tree below it is BLAKE3's own, over leaves of 1 KiB."""
    # Under a key no cell is a node of another tree. In one piece it costs three fifths of what
    # leaves do that each begin with a byte of ours: those fill no whole number of lanes.
    return blake3(memoryview(payload).cast("B"), key=CELL_KEY).digest()


@dataclass(frozen=True, slots=True)
class CellSizes:
    """Bytes of each cell of a state, and for each fragment of each cell of a round's result."""

    state: tuple[int, ...]
    result: tuple[tuple[int, ...], ...]

    def result_of(self, round_index: int) -> tuple[int, ...]:
        """Of each cell of that round's result."""
        return self.result[round_index % len(self.result)]


NO_CELLS = CellSizes(state=(), result=((),))
"""Of a machine that never catches up."""
