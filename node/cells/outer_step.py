"""An outer step taken cell by cell, as the cells of its result come.

N elements of the shard; a step is on one fragment of it

What is in the cache is decoded, stepped and hashed from there, and of whole vectors only those are
made that stay. Until the last cell is here nobody sees any of it, so a step on the result of a LIST
that does not become the sealed one costs its time, and nothing else.

Where a state is large, that is all that is done before the seal: the roots of the next one are what
votes and seals are about. Its vectors are made with the seal, in the memory of those before unless
somebody holds them: a second step in place of a second state.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from protocol.grid import Layout, cell_root
from training.compression import Codec, decode_to_read, lattice_of
from training.numeric.spare_vectors import VectorSource, is_held_elsewhere
from training.outer.optimizers import (
    OuterInfo,
    OuterOptimizer,
    OuterStep,
    StepsOnLattice,
    blank_step,
    steps_on_lattice,
)

Vector = NDArray[np.float32]


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
