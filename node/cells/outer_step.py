"""An outer step taken cell by cell, as the cells of its result come.

N elements of the shard; a step is on one fragment of it

What is in the cache is decoded, stepped and hashed from there, and of whole vectors only those are
made that stay. Until the last cell is here nobody sees any of it, so a step on the result of a LIST
that does not become the sealed one costs its time, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.grid import Layout, cell_root
from training.compression import Codec, decode_to_read
from training.outer import OuterInfo, OuterOptimizer
from training.spare_vectors import SpareVectors

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepRules:
    """What all outer steps of a shard have in common."""

    layout: Layout
    outer: OuterOptimizer
    codec: Codec
    """Of the results."""
    spare: SpareVectors
    """Where the vectors that a step makes come from."""


class OuterStepping:
    """The step on one result, from one state. Cells may come in any order, and from any thread."""

    def __init__(
        self,
        rules: StepRules,
        anchor_N: Vector,
        slots: Mapping[str, Vector],
        *,
        round_index: int,
    ) -> None:
        """`anchor_N` and `slots` are the state before, which is only read."""
        self._layout, self._outer, self._codec = rules.layout, rules.outer, rules.codec
        self._before_N, self._slots = anchor_N, slots
        self._round = round_index
        self.fragment = rules.layout.fragment_of(round_index)
        num_cells = rules.layout.num_cells(self.fragment)
        self._vectors = [rules.spare.take() for _ in range(1 + len(rules.outer.slots))]
        self._roots: list[list[bytes]] = [[b""] * num_cells for _ in self._vectors]
        self._taken: dict[int, bytes] = {}

    def take(self, cell: int, payload: bytes) -> None:
        """Step one cell, unless these very bytes of it were taken.

        Raises DecodeError for bytes that decode to no finite numbers.
        """
        if self._taken.get(cell) is payload:
            return
        span = self._layout.cell_span(self.fragment, cell)
        aggregate_N = decode_to_read(self._codec, payload, span.stop - span.start)
        names = self._outer.slots
        slots = {name: self._slots[name][span] for name in names}
        info = OuterInfo(round=self._round, slots=slots)
        step = self._outer.step(self._before_N[span], aggregate_N, info)
        pieces = (step.anchor_N, *(step.slots[name] for name in names))
        for vector_N, roots, piece_N in zip(self._vectors, self._roots, pieces, strict=True):
            vector_N[span] = piece_N
            roots[cell] = cell_root(piece_N.astype("<f4", copy=False).data)
        self._taken[cell] = payload

    def finish(self, cells: Sequence[bytes]) -> tuple[Vector, dict[str, Vector], tuple[bytes, ...]]:
        """Step what is left of all cells: the new anchor and slots, and the roots of the fragment's
        state cells. The other fragments are what they were before."""
        for cell, payload in enumerate(cells):
            self.take(cell, payload)
        stepped = self._layout.fragment_span(self.fragment)
        before = (self._before_N, *(self._slots[name] for name in self._outer.slots))
        for vector_N, before_N in zip(self._vectors, before, strict=True):
            for rest in (slice(stepped.start), slice(stepped.stop, None)):
                vector_N[rest] = before_N[rest]
        slots = dict(zip(self._outer.slots, self._vectors[1:], strict=True))
        return self._vectors[0], slots, tuple(root for found in self._roots for root in found)
