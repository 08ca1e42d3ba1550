"""Inner states and residuals as content that their roots name: what audits begin with (R10).

N elements of the shard, C cells of it

A state is weights and moments, one vector behind the other, each cut into the C cells of the grid
as little-endian float32; a residual is one such vector. Whoever has one may serve it.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from node.cells.states import Item
from protocol.errors import LimitError
from protocol.grid import Layout, cell_root, check_merkle_proof, merkle_proof, merkle_root

Vector = NDArray[np.float32]
FindOwn = Callable[[bytes], Sequence[bytes]]
"""The cells that the own trainer keeps under a root; empty for another one."""


def cells_of(layout: Layout, vectors: Sequence[Vector]) -> tuple[bytes, ...]:
    """The cells of these vectors of N, one behind the other."""
    spans = [layout.cell_range(0, cell) for cell in range(layout.num_cells(0))]
    wire = [np.ascontiguousarray(vector_N, dtype="<f4") for vector_N in vectors]
    return tuple(wire_N[start:stop].tobytes() for wire_N in wire for start, stop in spans)


def root_of(cells: Sequence[bytes]) -> bytes:
    """What names them; EMPTY_ROOT of none."""
    return merkle_root([cell_root(cell) for cell in cells])


def vectors_of(layout: Layout, cells: Sequence[bytes]) -> list[Vector]:
    """Inverse of `cells_of`. Raises ValueError where they are no whole vectors."""
    each = layout.num_cells(0)
    if len(cells) % each:
        raise ValueError(f"{len(cells)} cells of vectors of {each}")
    joined = [b"".join(cells[start : start + each]) for start in range(0, len(cells), each)]
    vectors = [np.frombuffer(data, dtype="<f4").astype(np.float32) for data in joined]
    if any(len(vector_N) != layout.numel for vector_N in vectors):
        raise ValueError("vectors of another length")
    return vectors


class WorkStore:
    """What was fetched for audits, and what is served. Memory is bounded by what is asked for."""

    def __init__(self, layout: Layout, find_own: FindOwn) -> None:
        self._layout = layout
        self._find_own = find_own
        self._found: dict[bytes, dict[int, bytes]] = {}

    def put(self, subject: bytes, item: Item, *, count: int) -> None:
        """Keep a cell of a subject that has so many. Raises LimitError or ProofError: the sender's
        fault."""
        if item.index >= count:
            raise LimitError(f"cell {item.index} of {count}")
        numel = self._layout.cell_numel(0, item.index % self._layout.num_cells(0))
        if len(item.payload) != 4 * numel:
            raise LimitError(f"cell {item.index} has {len(item.payload)} bytes")
        node = cell_root(item.payload)
        check_merkle_proof(subject, node, item.proof, index=item.index, count=count)
        self._found.setdefault(subject, {})[item.index] = item.payload

    def items(self, subject: bytes, cells: Sequence[int]) -> list[Item]:
        """Those of them that are here, with their proofs; only of what is here as a whole."""
        held = self.cells(subject)
        roots = [cell_root(cell) for cell in held]
        wanted = [index for index in dict.fromkeys(cells) if index < len(held)]
        return [Item(index, held[index], merkle_proof(roots, index)) for index in wanted]

    def cells(self, subject: bytes) -> Sequence[bytes]:
        """All cells of a subject; empty where some are missing."""
        own = self._find_own(subject)
        if own:
            return own
        found = self._found.get(subject, {})
        held = [found[index] for index in sorted(found)]
        return held if held and root_of(held) == subject else ()

    def keep(self, subjects: Collection[bytes]) -> None:
        """Forget what else was fetched."""
        self._found = {s: cells for s, cells in self._found.items() if s in subjects}
