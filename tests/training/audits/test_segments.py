"""States between the segments of a round: their cells, roots and bounds."""

from dataclasses import replace

import numpy as np
import pytest

from protocol.auditing.audit_rounds import ROUNDS_KEPT
from protocol.grid import EMPTY_ROOT
from protocol.manifest import AuditSpec
from protocol.segments import (
    MOMENTS,
    STEPS_MAX,
    TRACES_KEPT,
    SegmentState,
    batch_lease,
    luck_of,
    num_state_cells,
    root_of,
    state_bytes,
    state_of,
    steps_of_segment,
    work_cell_bytes,
)
from tests.training.replicas import small_manifest

MANIFEST = replace(small_manifest(), trust="open", survive="quorum", audits=AuditSpec(rate=0.5))
LAYOUT = MANIFEST.layout(0)


def state(seed: int, steps: int = 7) -> SegmentState:
    luck = np.random.default_rng(seed)
    vectors = luck.normal(size=(1 + MOMENTS, LAYOUT.numel)).astype(np.float32)
    return SegmentState(vectors[0], (vectors[1], vectors[2]), steps)


def test_state_comes_back_from_its_cells_to_the_bit(seed):
    one = state(seed)
    cells = one.cells(LAYOUT)
    assert len(cells) == num_state_cells(LAYOUT)
    assert [len(cell) for cell in cells] == [
        work_cell_bytes(LAYOUT, index) for index in range(len(cells))
    ]
    assert sum(map(len, cells)) == state_bytes(LAYOUT)
    found = state_of(LAYOUT, b"".join(cells))
    assert found.weights_N.tobytes() == one.weights_N.tobytes()
    assert [m.tobytes() for m in found.moments] == [m.tobytes() for m in one.moments]
    assert found.steps == 7
    assert root_of(found.cells(LAYOUT)) == root_of(cells)


def test_root_of_moments_is_of_moments_and_steps_and_nothing_else(seed):
    one = state(seed)
    root = one.moments_root(LAYOUT)
    assert root == replace(one, weights_N=one.weights_N + 1).moments_root(LAYOUT)
    other = {
        replace(one, steps=8).moments_root(LAYOUT),
        replace(one, moments=one.moments[::-1]).moments_root(LAYOUT),
    }
    assert len(other | {root, EMPTY_ROOT}) == 4
    zeros_N = np.zeros_like(one.weights_N)
    fresh = SegmentState(one.weights_N, (zeros_N, zeros_N), 0)
    assert fresh.moments_root(LAYOUT) == EMPTY_ROOT
    assert replace(fresh, steps=1).moments_root(LAYOUT) != EMPTY_ROOT
    assert replace(fresh, moments=(zeros_N, one.weights_N)).moments_root(LAYOUT) != EMPTY_ROOT


@pytest.mark.parametrize("steps", [-1, STEPS_MAX + 1, 2**63 - 1])
def test_steps_that_nobody_can_have_done_are_no_state(seed, steps):
    data = b"".join(state(seed).cells(LAYOUT))[:-8] + steps.to_bytes(8, "little", signed=True)
    with pytest.raises(ValueError, match="steps"):
        state_of(LAYOUT, data)


@pytest.mark.parametrize("change", [-8, -1, 1, 4096])
def test_state_of_another_size_is_none(seed, change):
    data = b"".join(state(seed).cells(LAYOUT))
    with pytest.raises(ValueError, match="bytes"):
        state_of(LAYOUT, data[:change] if change < 0 else data + bytes(change))


def test_cells_beyond_a_state_have_no_size():
    for index in (-1, num_state_cells(LAYOUT)):
        with pytest.raises(ValueError, match="cell"):
            work_cell_bytes(LAYOUT, index)


def test_segments_share_the_steps_of_a_round_and_their_samples():
    inner = replace(MANIFEST.inner, inner_steps=11, batch=3)
    manifest = replace(MANIFEST, inner=inner, audits=AuditSpec(rate=0.5, segments=4))
    steps = [steps_of_segment(manifest, segment) for segment in range(4)]
    assert [len(one) for one in steps] == [2, 3, 3, 3]
    lease = ((10, 20), (50, 73))
    taken = [batch_lease(manifest, lease, step) for one in steps for step in one]
    samples = [n for part in taken for first, stop in part for n in range(first, stop)]
    assert samples == [*range(10, 20), *range(50, 73)]


def test_luck_follows_from_round_segment_and_lease():
    places = [(1, ((0, 4),), 0), (2, ((0, 4),), 0), (1, ((4, 8),), 0), (1, ((0, 4),), 1)]
    drawn = [luck_of(MANIFEST, *place) for place in places]
    assert len(set(drawn)) == len(places)
    assert all(0 <= one < 2**63 for one in drawn)
    assert luck_of(MANIFEST, *places[0]) == drawn[0]


def test_as_many_rounds_are_kept_as_are_judged():
    assert TRACES_KEPT == ROUNDS_KEPT
