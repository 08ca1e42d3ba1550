"""States between the segments of a round: their cells, roots and bounds."""

from collections.abc import Collection
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
    WorkKind,
    batch_lease,
    begins_rightly,
    cells_of_fragment,
    luck_of,
    nothing_left,
    num_state_cells,
    root_of,
    state_bytes,
    state_of,
    state_sizes,
    steps_of_segment,
    work_cell_sizes,
)
from tests.training.replicas import small_manifest
from training.models.genesis import shard_spec

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
    assert tuple(map(len, cells)) == state_sizes(LAYOUT)
    assert all(len(cell) in work_cell_sizes(LAYOUT, index) for index, cell in enumerate(cells))
    assert sum(map(len, cells)) == state_bytes(LAYOUT)
    found = state_of(LAYOUT, b"".join(cells))
    assert found.weights_N.tobytes() == one.weights_N.tobytes()
    assert [m.tobytes() for m in found.moments] == [m.tobytes() for m in one.moments]
    assert found.steps == 7
    assert root_of(found.cells(LAYOUT)) == root_of(cells)


def test_root_of_moments_is_of_moments_and_steps_and_nothing_else(seed):
    one = state(seed)
    root = one.inner_root(LAYOUT)
    assert root == replace(one, weights_N=one.weights_N + 1).inner_root(LAYOUT)
    other = {
        replace(one, steps=8).inner_root(LAYOUT),
        replace(one, moments=one.moments[::-1]).inner_root(LAYOUT),
    }
    assert len(other | {root, EMPTY_ROOT}) == 4
    zeros_N = np.zeros_like(one.weights_N)
    fresh = SegmentState(one.weights_N, (zeros_N, zeros_N), 0)
    assert fresh.inner_root(LAYOUT) == EMPTY_ROOT
    assert replace(fresh, steps=1).inner_root(LAYOUT) != EMPTY_ROOT
    assert replace(fresh, moments=(zeros_N, one.weights_N)).inner_root(LAYOUT) != EMPTY_ROOT


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
            work_cell_sizes(LAYOUT, index)


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


# Several fragments

CUT = replace(MANIFEST, shards=(shard_spec(MANIFEST.model, fragments=3),)).layout(0)


def cut_state(seed: int) -> SegmentState:
    luck = np.random.default_rng(seed)
    vectors = luck.normal(size=(1 + MOMENTS, CUT.numel)).astype(np.float32)
    return SegmentState(vectors[0], (vectors[1], vectors[2]), 7, (b"1" * 32, b"2" * 32, b"3" * 32))


def test_state_of_several_fragments_comes_back_with_what_was_left(seed):
    one = cut_state(seed)
    cells = one.cells(CUT)
    assert tuple(map(len, cells)) == state_sizes(CUT)
    assert len(cells) == num_state_cells(CUT)
    found = state_of(CUT, b"".join(cells))
    assert found.cells(CUT) == cells
    assert (found.left, found.steps) == (one.left, 7)
    for fragment in range(3):
        sizes = WorkKind("residual", fragment).sizes(CUT)
        residual = cells_of_fragment(CUT, fragment, one.weights_N[CUT.fragment_span(fragment)])
        assert tuple(map(len, residual)) == sizes
        assert all(size in work_cell_sizes(CUT, index) for index, size in enumerate(sizes))


def test_inner_root_binds_the_weights_that_were_left_and_no_others(seed):
    one = cut_state(seed)
    other = replace(one, weights_N=one.weights_N + 1)
    assert one.inner_root(CUT) == other.inner_root(CUT)
    handed = [state.handed_on(CUT).inner_root(CUT) for state in (one, other)]
    assert len({one.inner_root(CUT), *handed}) == 3
    zeros_N = np.zeros_like(one.weights_N)
    fresh = SegmentState(one.weights_N, (zeros_N, zeros_N), 0, nothing_left(CUT))
    assert fresh.inner_root(CUT) == EMPTY_ROOT
    # Of plain gradient descent there are no moments, and yet the weights of others go on.
    assert fresh.handed_on(CUT).inner_root(CUT) != EMPTY_ROOT
    assert state(seed).handed_on(LAYOUT) is not None
    assert state(seed).handed_on(LAYOUT).left == ()


def test_round_begins_with_the_anchor_or_with_what_was_left_of_fragments_that_no_round_was_about(
    seed,
):
    left = cut_state(seed)
    anchor_N = cut_state(seed + 1).weights_N
    goes_on = left.handed_on(CUT)

    def begins(kept: Collection[int], *, since: int, round_index: int) -> bool:
        weights_N = anchor_N.copy()
        for fragment in kept:
            span = CUT.fragment_span(fragment)
            weights_N[span] = left.weights_N[span]
        one = replace(goes_on, weights_N=weights_N)
        return begins_rightly(CUT, one, anchor_N, since=since, round_index=round_index)

    anew = replace(goes_on, left=nothing_left(CUT), weights_N=anchor_N)
    assert begins_rightly(CUT, anew, anchor_N, since=0, round_index=1)
    anew = replace(anew, weights_N=left.weights_N)
    assert not begins_rightly(CUT, anew, anchor_N, since=0, round_index=1), "nothing was left"
    # Round 3 was about the first fragment, and round 4, which does not list it, about the second.
    assert begins((1, 2), since=3, round_index=4)
    assert not begins((0, 1, 2), since=3, round_index=4)
    assert begins((2,), since=3, round_index=5)
    assert not begins((1, 2), since=3, round_index=5)
    assert begins((), since=3, round_index=10**6)
    for fragment in range(3):
        assert not begins((fragment,), since=3, round_index=6)
    bent_N = anchor_N.copy()
    bent_N[CUT.fragment_span(2)] += np.float32(1)
    bent = replace(goes_on, weights_N=bent_N)
    assert not begins_rightly(CUT, bent, anchor_N, since=3, round_index=4)
