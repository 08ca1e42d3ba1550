"""A round of training in segments, each of which others can run again (R10). Pure, without torch.

N elements of the shard, C cells of its grid, F fragments, V vectors: weights and moments

A state is the V vectors one behind the other, each cut into the C cells of the grid as
little-endian float32, and one small cell behind them, the tail, with the number of steps that the
moments have seen. Its root names it. Whoever begins with these bytes goes on exactly as their owner
did, on a machine of the same class.

Of several fragments a round syncs one, and the others go on with weights that nobody else has. So
there the tail has, for each fragment, what names the weights that its owner's last listed round
left: a round begins with these, or with the sealed anchor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.grid import EMPTY_ROOT, Layout, cell_root, merkle_root, state_place
from protocol.leases import Lease, part_of_lease
from protocol.manifest import RunManifest

Vector = NDArray[np.float32]

MOMENTS = 2
"""AdamW's two; a trainer that keeps none has zeros there."""

STEPS_BYTES, ROOT_BYTES = 8, 32
"""In the last cell of a state: its steps, a little-endian int64, and of several fragments a root of
each."""

STEPS_MAX = 1 << 24
"""torch counts them in float32."""

TRACES_KEPT = 8
"""Rounds of which audits may ask for states: as many as are judged
(`protocol.auditing.audit_rounds`)."""

RECOMPUTED_MAX = 0.1
"""Of the own training, on average, what is run again to show states that were not kept: at the
rate of the run, where nobody stands out. It is run while the trainer waits for an outcome; half of
it would take a third more of the disk."""

ALONE = "alone"
"""The class of a device whose work nobody can run again to the bit."""

_ENCODED_DOMAIN = b"barnraise/encoded/2"
_TRAINED_DOMAIN = b"barnraise/trained/1"
_LUCK_DOMAIN = b"barnraise/segment/1"


def cells_of(layout: Layout, vectors: Sequence[Vector]) -> tuple[bytes, ...]:
    """The cells of these vectors of N, one behind the other."""
    return tuple(_cells_of(layout, vectors))


def _cells_of(layout: Layout, vectors: Sequence[Vector]) -> Iterator[bytes]:
    for vector_N in vectors:
        for fragment in range(layout.num_fragments):
            yield from _cells(layout, fragment, vector_N[layout.fragment_span(fragment)])


def cells_of_fragment(layout: Layout, fragment: int, vector_N: Vector) -> tuple[bytes, ...]:
    """The cells of one vector of that fragment, a residual say."""
    return tuple(_cells(layout, fragment, vector_N))


def _cells(layout: Layout, fragment: int, vector_N: Vector) -> Iterator[bytes]:
    wire_N = np.ascontiguousarray(vector_N, dtype="<f4")
    for cell in range(layout.num_cells(fragment)):
        start, stop = layout.cell_range(fragment, cell)
        yield wire_N[start:stop].tobytes()


def root_of(cells: Sequence[bytes]) -> bytes:
    """What names them; EMPTY_ROOT of none."""
    return merkle_root([cell_root(cell) for cell in cells])


def roots_of_fragments(layout: Layout, roots: Sequence[bytes]) -> tuple[bytes, ...]:
    """What names a vector's fragments, by the roots of its C cells."""
    stops = list(accumulate(layout.fragment_cells, initial=0))
    return tuple(merkle_root(roots[start:stop]) for start, stop in pairwise(stops))


def num_cells(layout: Layout) -> int:
    """Cells of a vector of N."""
    return sum(layout.fragment_cells)


def num_state_cells(layout: Layout, moments: int = MOMENTS) -> int:
    """Cells of a state."""
    return num_cells(layout) * (1 + moments) + 1


def tail_bytes(layout: Layout) -> int:
    """Bytes of the last cell of a state."""
    is_cut = layout.num_fragments > 1
    return STEPS_BYTES + ROOT_BYTES * layout.num_fragments * is_cut


def state_bytes(layout: Layout, moments: int = MOMENTS) -> int:
    """Bytes of all cells of a state together."""
    return 4 * layout.numel * (1 + moments) + tail_bytes(layout)


def state_sizes(layout: Layout, moments: int = MOMENTS) -> tuple[int, ...]:
    """The exact size of each cell of a state."""
    each = tuple(4 * numel for numels in layout.cell_numels for numel in numels)
    return (*each * (1 + moments), tail_bytes(layout))


def work_cell_sizes(layout: Layout, index: int) -> frozenset[int]:
    """The sizes that a cell of a state or residual may have; the tail may stand behind any vector,
    for in simulated worlds there are fewer. Raises ValueError for no such cell."""
    each, last = num_cells(layout), num_state_cells(layout) - 1
    if not 0 <= index <= last:
        raise ValueError(f"cell {index} of a state of {last + 1}")
    fragment, cell = state_place(layout.fragment_cells, index % each)
    found = {4 * layout.cell_numel(fragment, cell)} if index < last else set()
    fragments = range(layout.num_fragments)
    found |= {4 * layout.cell_numel(f, index) for f in fragments if index < layout.num_cells(f)}
    return frozenset(found | ({tail_bytes(layout)} if index and index % each == 0 else set()))


def encoded_end(root: bytes, residual_after: bytes) -> bytes:
    """What names what comes of the encoding: contribution and residual."""
    return blake3(_ENCODED_DOMAIN + root + residual_after).digest()


def trained_end(root: bytes, after: bytes) -> bytes:
    """What names what comes of the last segment of training: the last state, and what the next
    round is to go on from."""
    return blake3(_TRAINED_DOMAIN + root + after).digest()


@dataclass(frozen=True, slots=True, order=True)
class WorkKind:
    """What of a subject an audit begins with: a state, the weights of one fragment in a state, or a
    residual of that fragment."""

    what: Literal["state", "weights", "residual"]
    fragment: int = 0

    def sizes(self, layout: Layout, moments: int = MOMENTS) -> tuple[int, ...]:
        """The exact size of each cell of the subject."""
        if self.what == "residual":
            return tuple(4 * numel for numel in layout.cell_numels[self.fragment])
        return state_sizes(layout, moments)

    def cells(self, layout: Layout, moments: int = MOMENTS) -> range:
        """Those of its cells that are needed."""
        if self.what == "state":
            return range(num_state_cells(layout, moments))
        is_within = self.what == "weights"
        first = sum(layout.fragment_cells[: self.fragment]) if is_within else 0
        return range(first, first + layout.num_cells(self.fragment))


STATE = WorkKind("state")


@dataclass(frozen=True)
class SegmentState:
    """Where a segment begins, and the one before it ends. Nobody writes to the vectors.

    `left` are the roots of the weights that the last listed round of its owner left, by fragment;
    zeros of whoever begins, none where there is one fragment: it begins with its anchor.
    """

    weights_N: Vector
    moments: tuple[Vector, ...]
    steps: int
    left: tuple[bytes, ...] = ()

    def cells(self, layout: Layout) -> tuple[bytes, ...]:
        """All cells, the tail last."""
        return tuple(self.each_cell(layout))

    def each_cell(self, layout: Layout) -> Iterator[bytes]:
        """The same, one in memory at a time."""
        yield from _cells_of(layout, (self.weights_N, *self.moments))
        yield self.tail

    def inner_root(self, layout: Layout, roots: Sequence[bytes] = ()) -> bytes:
        """What names all of it but the weights; EMPTY_ROOT of whoever begins. The `roots` are those
        of its cells, where they are known, with whatever tail."""
        if self.is_fresh:
            return EMPTY_ROOT
        moments = list(roots[num_cells(layout) : -1])
        if not moments:
            moments = [cell_root(cell) for cell in _cells_of(layout, self.moments)]
        return merkle_root([*moments, cell_root(self.tail)])

    def handed_on(self, layout: Layout, roots: Sequence[bytes] = ()) -> "SegmentState":
        """What the next round goes on from, if this is the end of a round that is listed. The
        `roots` are those of its cells, where they are known."""
        if not self.left:
            return self
        of_weights = list(roots[: num_cells(layout)])
        if not of_weights:
            of_weights = [cell_root(cell) for cell in _cells_of(layout, (self.weights_N,))]
        return replace(self, left=roots_of_fragments(layout, of_weights))

    @cached_property
    def is_fresh(self) -> bool:
        """Whether there is nothing but weights."""
        has_left = any(map(any, self.left))
        return self.steps == 0 and not has_left and not any(one_N.any() for one_N in self.moments)

    @property
    def tail(self) -> bytes:
        """The last cell."""
        return self.steps.to_bytes(STEPS_BYTES, "little", signed=True) + b"".join(self.left)


def nothing_left(layout: Layout) -> tuple[bytes, ...]:
    """The `left` of a state of whoever begins."""
    return (bytes(ROOT_BYTES),) * layout.num_fragments if layout.num_fragments > 1 else ()


def state_of(layout: Layout, data: bytes | memoryview, moments: int = MOMENTS) -> SegmentState:
    """A state of its bytes. Raises ValueError for another size, or steps that nobody can do."""
    if len(data) != state_bytes(layout, moments):
        raise ValueError(f"a state of {len(data)} bytes")
    view = memoryview(data)
    tail = bytes(view[len(view) - tail_bytes(layout) :])
    steps = int.from_bytes(tail[:STEPS_BYTES], "little", signed=True)
    if not 0 <= steps <= STEPS_MAX:
        raise ValueError(f"a state behind {steps} steps")
    left = [tail[at : at + ROOT_BYTES] for at in range(STEPS_BYTES, len(tail), ROOT_BYTES)]
    flat = np.frombuffer(view[: len(view) - len(tail)], dtype="<f4").astype(np.float32)
    weights_N, *others = flat.reshape(1 + moments, layout.numel)
    return SegmentState(weights_N, tuple(others), steps, tuple(left))


def begins_rightly(
    layout: Layout, state: SegmentState, anchor_N: Vector, *, since: int, round_index: int
) -> bool:
    """Whether the weights that a round begins with are sealed ones, or those that its owner left in
    round `since`, its last listed one, of fragments about which no round was since then."""
    first = max(since, round_index - layout.num_fragments)
    moved = {layout.fragment_of(index) for index in range(first, round_index)}
    for fragment, left in enumerate(state.left or (b"",)):
        span = layout.fragment_span(fragment)
        weights_N = state.weights_N[span]
        if weights_N.tobytes() == anchor_N[span].tobytes():
            continue
        if fragment in moved or root_of(cells_of_fragment(layout, fragment, weights_N)) != left:
            return False
    return True


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
    for num_kept in range(1, segments):
        every = -(-segments // num_kept)
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
