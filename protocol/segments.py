"""A round of training in segments, each of which others can run again (R10). Pure, without torch.

N elements of the shard, C cells of its grid, V vectors: weights and moments

A state is the V vectors one behind the other, each cut into the C cells of the grid as
little-endian float32, and one small cell behind them with the number of steps that the moments have
seen. Its root names it. Whoever begins with these bytes goes on exactly as their owner did, on a
machine of the same class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.grid import EMPTY_ROOT, Layout, cell_root, merkle_root
from protocol.leases import Lease, part_of_lease
from protocol.manifest import RunManifest

Vector = NDArray[np.float32]

MOMENTS = 2
"""AdamW's two; a trainer that keeps none has zeros there."""

TAIL_BYTES = 8
"""The last cell of a state: its steps, a little-endian int64."""

STEPS_MAX = 1 << 24
"""torch counts them in float32."""

TRACES_KEPT = 8
"""Rounds of which audits may ask for states: as many as are judged
(`protocol.auditing.audit_rounds`)."""

RECOMPUTED_MAX = 0.05
"""Of the own training, on average, what is run again to show states that were not kept: at the
rate of the run, where nobody stands out."""

ALONE = "alone"
"""The class of a device whose work nobody can run again to the bit."""

_END_DOMAIN = b"barnraise/encoded/1"
_LUCK_DOMAIN = b"barnraise/segment/1"


def cells_of(layout: Layout, vectors: Sequence[Vector]) -> tuple[bytes, ...]:
    """The cells of these vectors of N, one behind the other."""
    return tuple(_cells(layout, vectors))


def _cells(layout: Layout, vectors: Sequence[Vector]) -> Iterator[bytes]:
    spans = [layout.cell_range(0, cell) for cell in range(layout.num_cells(0))]
    for vector_N in vectors:
        wire_N = np.ascontiguousarray(vector_N, dtype="<f4")
        yield from (wire_N[start:stop].tobytes() for start, stop in spans)


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


def num_state_cells(layout: Layout) -> int:
    """Cells of a state."""
    return layout.num_cells(0) * (1 + MOMENTS) + 1


def state_bytes(layout: Layout) -> int:
    """Bytes of all cells of a state together."""
    return 4 * layout.numel * (1 + MOMENTS) + TAIL_BYTES


def work_cell_bytes(layout: Layout, index: int) -> int:
    """The exact size of a cell of a state; the first C are those of a residual, too. Raises
    ValueError for no such cell."""
    last = num_state_cells(layout) - 1
    if not 0 <= index <= last:
        raise ValueError(f"cell {index} of a state of {last + 1}")
    return TAIL_BYTES if index == last else 4 * layout.cell_numel(0, index % layout.num_cells(0))


def encoded_end(root: bytes, residual_after: bytes, after: bytes) -> bytes:
    """What names what comes of the encoding: contribution, residual and moments."""
    return blake3(_END_DOMAIN + root + residual_after + after).digest()


@dataclass(frozen=True)
class SegmentState:
    """Where a segment begins, and the one before it ends. Nobody writes to the vectors."""

    weights_N: Vector
    moments: tuple[Vector, ...]
    steps: int

    def cells(self, layout: Layout) -> tuple[bytes, ...]:
        """All cells, the tail last."""
        return (*cells_of(layout, (self.weights_N, *self.moments)), self._tail)

    def moments_root(self, layout: Layout) -> bytes:
        """What names moments and steps; EMPTY_ROOT where nothing was trained yet."""
        if self.is_fresh:
            return EMPTY_ROOT
        return root_of((*cells_of(layout, self.moments), self._tail))

    @cached_property
    def is_fresh(self) -> bool:
        """Whether moments and steps are zero."""
        return self.steps == 0 and not any(moment_N.any() for moment_N in self.moments)

    @property
    def _tail(self) -> bytes:
        return self.steps.to_bytes(TAIL_BYTES, "little", signed=True)


def state_of(layout: Layout, data: bytes | memoryview) -> SegmentState:
    """A state of its bytes. Raises ValueError for another size, or steps that nobody can do."""
    if len(data) != state_bytes(layout):
        raise ValueError(f"a state of {len(data)} bytes")
    view = memoryview(data)
    steps = int.from_bytes(view[-TAIL_BYTES:], "little", signed=True)
    if not 0 <= steps <= STEPS_MAX:
        raise ValueError(f"a state behind {steps} steps")
    flat = np.frombuffer(view[:-TAIL_BYTES], dtype="<f4").astype(np.float32)
    weights_N, *moments = flat.reshape(1 + MOMENTS, layout.numel)
    return SegmentState(weights_N, tuple(moments), steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """Which segment of whose round: `lease` is that of the whole round, and nobody else's; `step`
    is the sealed clock before it."""

    round: int
    step: int
    segment: int
    lease: Lease


class RunsSegments(Protocol):
    """SEAM: the inner loop of a trainer, from any state. Implementations:
    `training.loop.traced_inner`; the made-up trainer of `sim.local`."""

    def run(self, state: SegmentState, place: SegmentPlace) -> SegmentState:
        """The state behind that segment; the own training is as it was before."""
        ...


def steps_of_segment(manifest: RunManifest, segment: int) -> range:
    """The local steps of a segment: as many as of the others, or one more."""
    steps, segments = manifest.inner.inner_steps, manifest.audits.segments
    return range(steps * segment // segments, steps * (segment + 1) // segments)


def kept_states(manifest: RunManifest) -> frozenset[int]:
    """Which of the S + 1 states of a round are kept as they are made: the first and the last, and
    between them so few that what has to be run again is no more than RECOMPUTED_MAX."""
    segments, rate = manifest.audits.segments, manifest.audits.rate
    for every in range(segments, 1, -1):
        again = sum(number % every for number in range(segments)) / segments
        if rate * again / segments <= RECOMPUTED_MAX:
            return frozenset((*range(0, segments, every), segments))
    return frozenset(range(segments + 1))


def batch_lease(manifest: RunManifest, lease: Lease, step: int) -> Lease:
    """The samples of local step `step`."""
    batch = manifest.inner.batch
    return part_of_lease(lease, step * batch, batch)


def luck_of(manifest: RunManifest, round_index: int, lease: Lease, segment: int) -> int:
    """What seeds whatever a segment draws, 63 bits: of its place alone, and leases are disjoint."""
    begins = b"".join(first.to_bytes(8, "little") for first, _ in lease)
    text = f"{round_index}/{segment}/".encode()
    digest = blake3(_LUCK_DOMAIN + manifest.digest + text + begins).digest(length=8)
    return int.from_bytes(digest, "little") >> 1
