"""A sealed state of a shard, its cells as they travel, and the sizes of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from node.cells.outer_step import OuterStepping
from protocol.grid import StateTree, merkle_root
from protocol.manifest import RunManifest
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


@dataclass(frozen=True, slots=True)
class CellSizes:
    """Bytes of each cell of a state, and for each fragment of each cell of a round's result."""

    state: tuple[int, ...]
    result: tuple[tuple[int, ...], ...]

    @classmethod
    def from_manifest(cls, manifest: RunManifest, shard: int = 0) -> "CellSizes":
        """Those of a run's shard."""
        vectors = 1 + len(make_outer(manifest.outer).slots)
        codec = result_codec(manifest.outer)
        numels = manifest.layout(shard).cell_numels
        return cls(
            state=tuple(4 * numel for cells in numels for numel in cells * vectors),
            result=tuple(tuple(codec.payload_bytes(n) for n in cells) for cells in numels),
        )

    def result_of(self, round_index: int) -> tuple[int, ...]:
        """Of each cell of that round's result."""
        return self.result[round_index % len(self.result)]


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
