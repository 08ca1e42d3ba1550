"""States of own rounds on the disk: what is found there is what its root says, or nothing."""

import math
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from node.settings.footprint import trace_bytes
from protocol.auditing.audit_rounds import FETCHED_WITHIN, SUSPECT_RATE
from protocol.errors import CheckpointError
from protocol.grid import EMPTY_ROOT, cell_root
from protocol.manifest import AuditSpec
from protocol.segments import (
    TRACES_KEPT,
    SegmentPlace,
    SegmentState,
    Vector,
    WorkKind,
    cells_of,
    kept_states,
    nothing_left,
    root_of,
)
from tests.training.audits.test_segments import LAYOUT, MANIFEST, state
from training.audits.traces import StoredCells, TraceFolder, read_trace_names, reopen
from training.channel.exchange import TraceRoots
from training.models.genesis import shard_spec

SEGMENTS = MANIFEST.audits.segments
ALL = replace(MANIFEST, audits=AuditSpec(rate=1.0))
RARE = replace(MANIFEST, audits=AuditSpec(rate=0.25))
"""A run in which many states are kept as they are made, and one in which few are."""


def place_of(round_index: int) -> SegmentPlace:
    lease = ((100 * round_index, 8), (7, 3))
    return SegmentPlace(round=round_index, step=5 * round_index, segment=0, lease=lease)


class Chain:
    """Runs segments: each end is a function of state and place, so that two of a round differ."""

    def __init__(self) -> None:
        self.places: list[SegmentPlace] = []

    def run(self, state: SegmentState, place: SegmentPlace) -> SegmentState:
        self.places.append(place)
        factor = 1.0 + 0.01 * (1 + place.segment + 10 * place.round)
        vectors = [(factor * x_N).astype("f4") for x_N in (state.weights_N, *state.moments)]
        return SegmentState(vectors[0], tuple(vectors[1:]), state.steps + 1)


def write(
    folder: TraceFolder, round_index: int, *, has_residual: bool = True, begins=None
) -> TraceRoots:
    place, states = place_of(round_index), [begins or state(100 * round_index)]
    writer = folder.writer(place, states[0].weights_N)
    writer.add(states[0])
    for segment in range(SEGMENTS):
        states.append(Chain().run(states[-1], replace(place, segment=segment)))
        writer.add(states[-1])
    residual_N = state(99).weights_N if has_residual else None
    return writer.close(residual_N)


def end_of(round_index: int, begins=None) -> SegmentState:
    found = begins or state(100 * round_index)
    for segment in range(SEGMENTS):
        found = Chain().run(found, replace(place_of(round_index), segment=segment))
    return found


def bytes_in(folder: Path) -> float:
    """Of cells, per parameter."""
    return sum(path.stat().st_size for path in folder.glob("*.cells")) / LAYOUT.numel


@pytest.fixture
def folder(tmp_path: Path) -> TraceFolder:
    return TraceFolder(tmp_path / "traces", ALL)


@pytest.fixture
def rare(tmp_path: Path) -> TraceFolder:
    return TraceFolder(tmp_path / "traces", RARE)


def test_every_state_is_found_by_its_root_from_another_process(folder, tmp_path):
    roots = write(folder, 3)
    other = TraceFolder(tmp_path / "traces", ALL)
    found = state(300)
    for number, root in enumerate(roots.trace):
        cells = other.find(root)
        assert isinstance(cells, StoredCells)
        assert cells.is_kept == (number in kept_states(ALL))
        if cells.is_kept:
            assert tuple(cells) == found.cells(LAYOUT)
            assert cells.roots == tuple(map(cell_root, cells))
        found = Chain().run(found, replace(place_of(3), segment=number))
    residual = cells_of(LAYOUT, (state(99).weights_N,))
    assert tuple(other.find(root_of(residual))) == residual
    assert other.find(bytes(32)) == ()
    first = other.first(3)
    assert first is not None
    assert first.cells(LAYOUT) == state(300).cells(LAYOUT)
    assert roots.before == first.inner_root(LAYOUT)
    assert roots.after == end_of(3).inner_root(LAYOUT)
    assert other.first(2) is None
    assert roots.before != EMPTY_ROOT


def test_states_that_are_not_kept_are_made_again_from_the_last_before_them(rare):
    assert kept_states(RARE) == {0, 4, 8}
    roots = write(rare, 3)
    for number, root in enumerate(roots.trace):
        cells = rare.find(root)
        assert isinstance(cells, StoredCells)
        assert cells.is_kept == (number in (0, 4, 8))
        runs = Chain()
        assert reopen(root, rare, runs) == root
        assert len(runs.places) <= 1  # From the one before it, which was made again just now.
        assert [one.segment for one in runs.places] == ([] if number in (0, 4, 8) else [number - 1])
        assert all(replace(one, segment=0) == place_of(3) for one in runs.places)
        assert cells.is_kept
        assert root_of(tuple(cells)) == root
    assert reopen(bytes(32), rare, Chain()) == b""


def test_state_that_cannot_be_made_again_to_the_bit_is_not_shown(rare):
    class Other(Chain):
        def run(self, state: SegmentState, place: SegmentPlace) -> SegmentState:
            found = super().run(state, place)
            return replace(found, steps=found.steps + 1)

    root = write(rare, 3).trace[3]
    assert reopen(root, rare, Other()) == b""
    cells = rare.find(root)
    assert isinstance(cells, StoredCells)
    assert not cells.is_kept


def test_rounds_that_nobody_asks_for_leave_their_anchor_alone(rare, tmp_path):
    traces = tmp_path / "traces"
    begins, numbers = None, []
    for index in range(1, TRACES_KEPT + 5):
        write(rare, index, begins=begins)
        last = end_of(index, begins)
        begins = replace(state(1000 + index), moments=last.moments, steps=last.steps)
        numbers.append(bytes_in(traces))
        if index > 1:
            rare.close(index - 1, still_open=())
        if index > 2:
            assert rare.first(index - 2) is None, "its moments are gone"
        assert rare.anchor(index - 1) is not None or index == 1
    # Two rounds of which all is kept, with the moments between them once, and the residual that
    # is the same in all here; and six anchors.
    assert max(numbers) == pytest.approx(2 * (4 + 12 + 12) + 8 + 4 + 6 * 4, abs=0.1)
    assert {path.suffix for path in traces.iterdir()} == {".trace", ".cells", ".open"}
    assert len(list(traces.glob("*.trace"))) == TRACES_KEPT
    rare.close(999, still_open=())
    assert rare.still_open(999) is None, "nothing of it is here"


def test_of_a_round_whose_beacon_drew_only_what_the_drawn_segments_begin_with_is_kept(
    rare, tmp_path
):
    """States 0, 4 and 8 are kept as they are made; 6 is made again from 4."""
    traces = tmp_path / "traces"
    drawn = {3: (SEGMENTS,), 4: (6,), 5: (2, SEGMENTS), 6: ()}
    roots = {index: write(rare, index, has_residual=index != 4) for index in (3, 4, 5, 6, 7)}
    for index, segments in drawn.items():
        rare.close(index, still_open=segments)
    rare.writer(place_of(8), state(0).weights_N)

    def kept(index: int) -> set[int]:
        found = set()
        for number, root in enumerate(roots[index].trace):
            cells = rare.find(root)
            assert isinstance(cells, StoredCells)
            found |= {number} if cells.is_kept else set()
        return found

    assert {index: kept(index) for index in roots} == {
        3: set(),
        4: {4},
        5: {0},
        6: set(),
        7: {0, 4, SEGMENTS},
    }
    # Of the last state the weights are there, which the encoding begins with; and the residual.
    weights = WorkKind("weights").cells(LAYOUT)
    for index in (3, 5):
        last = rare.find(roots[index].trace[-1])
        assert isinstance(last, StoredCells)
        assert last.are_kept(weights)
        assert not last.are_kept(range(len(last)))
    runs = Chain()
    assert reopen(roots[4].trace[6], rare, runs) == roots[4].trace[6]
    assert [place.segment for place in runs.places] == [4, 5]
    assert reopen(roots[6].trace[6], rare, runs) == b""
    residual = root_of(cells_of(LAYOUT, (state(99).weights_N,)))
    assert (traces / f"{residual.hex()}.cells").exists()
    rare.close(5, still_open=(2,))
    rare.close(3, still_open=())
    rare.close(7, still_open=())
    rare.writer(place_of(9), state(0).weights_N)
    assert kept(5) == {0}
    assert kept(7) == {0, 4, SEGMENTS}, "the newest comes back where no seal lists it"
    assert all(rare.anchor(index) is not None for index in roots)


def test_file_that_says_what_is_open_is_all_or_nothing(rare, tmp_path):
    write(rare, 3)
    rare.close(3, still_open=(2, 5))
    assert rare.still_open(3) == {2, 5}
    path = tmp_path / "traces" / "round-000003.open"
    torn = (b"", b"\x93\x01", b"\xc0", bytes(9000))
    no_segments = ([SEGMENTS + 1], [-1, 2], [float("inf")], ["2"], [[2]], b"\xff")
    for garbage in (*torn, *map(msgpack.packb, no_segments)):
        path.write_bytes(garbage)
        assert rare.still_open(3) is None


WHOLE_BYTES = 138.5
"""Per parameter, what audits took of the disk while all states of all rounds were kept."""


@pytest.mark.parametrize("fragments", [1, 4])
def test_disk_is_what_check_says_and_in_fragments_half_of_what_it_was(
    fragments: int, seed: int, tmp_path: Path
) -> None:
    """As a round ends, at the usual rate, with as many draws as many auditors make."""
    shards = (shard_spec(MANIFEST.model, fragments=fragments),)
    manifest = replace(MANIFEST, shards=shards, audits=AuditSpec(rate=0.2))
    layout, segments = manifest.layout(0), manifest.audits.segments
    luck = np.random.default_rng(seed)

    def vector(numel: int = layout.numel) -> Vector:
        return luck.standard_normal(numel, dtype=np.float32)

    traces, anchor_N, weights_N = TraceFolder(tmp_path, manifest), vector(), vector()
    moments, taken = (vector(), vector()), []
    for index in range(1, 97):
        weights_N, anchor_N = weights_N.copy(), anchor_N.copy()
        synced = layout.fragment_of(index - 1)
        span = layout.fragment_span(synced)
        anchor_N[span] = weights_N[span] = vector(layout.fragment_numels[synced])
        writer = traces.writer(place_of(index), anchor_N)
        writer.add(SegmentState(weights_N, moments, index - 1, nothing_left(layout)))
        for _ in range(segments):
            weights_N, moments = vector(), (vector(), vector())
            writer.add(SegmentState(weights_N, moments, index, nothing_left(layout)))
        writer.close(vector(layout.fragment_numels[layout.fragment_of(index)]))
        taken.append(sum(path.stat().st_size for path in tmp_path.glob("*.cells")))
        is_drawn = luck.random() < 1.0 - math.exp(-SUSPECT_RATE)
        drawn = (int(luck.integers(segments)), segments) if is_drawn else ()
        traces.close(index - 1, still_open=drawn)
        traces.close(index - 2 - FETCHED_WITHIN, still_open=())
    mean = np.mean(taken[TRACES_KEPT:])
    assert mean == pytest.approx(trace_bytes(manifest), rel=0.1)
    assert mean / layout.numel < WHOLE_BYTES * (0.5 if fragments > 1 else 0.75)


def test_newest_round_is_kept_whole_though_it_is_closed(rare):
    write(rare, 1)
    rare.close(1, still_open=())
    rare.writer(place_of(2), state(2).weights_N)
    first = rare.first(1)
    assert first is not None
    assert first.cells(LAYOUT) == state(100).cells(LAYOUT)


def test_rounds_that_nobody_asks_for_go_and_so_do_those_of_a_future_that_was_given_up(folder):
    kept = {index: write(folder, index) for index in range(1, TRACES_KEPT + 3)}
    newest = TRACES_KEPT + 2
    for index, roots in kept.items():
        assert bool(folder.find(roots.trace[0])) == (index > newest - TRACES_KEPT), index
    again = write(folder, newest - 1)
    assert folder.find(kept[newest].trace[0]) == ()
    assert folder.find(again.trace[0])


def test_damaged_cell_is_not_there_and_the_others_are(folder, tmp_path):
    roots = write(folder, 3, has_residual=False)
    weights = cells_of(LAYOUT, (state(300).weights_N,))
    path = tmp_path / "traces" / f"{root_of(weights).hex()}.cells"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    cells = folder.find(roots.trace[0])
    with pytest.raises(IndexError, match="damaged"):
        cells[0]
    assert cells[1] == state(300).cells(LAYOUT)[1]
    assert folder.anchor(3) is None
    assert folder.first(3) is None
    path.unlink()
    with pytest.raises(IndexError, match="gone"):
        cells[1]


def test_file_that_is_torn_or_of_another_run_is_none(folder, tmp_path):
    roots = write(folder, 3)
    path = tmp_path / "traces" / "round-000003.trace"
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[: len(whole) // 2], b"", bytes(len(whole))):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError):
            read_trace_names(path, ALL)
        assert folder.find(roots.trace[0]) == ()
    path.write_bytes(whole)
    other = replace(ALL, title="another run")
    with pytest.raises(CheckpointError, match="another run"):
        read_trace_names(path, other)
    assert folder.find(roots.trace[0])


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (2, -3),
        (2, 3.0),
        (3, "0"),
        (4, [[0, float("inf")]]),
        (4, [[0, -1]]),
        (4, [[0, 1, 2]]),
        (4, 7),
    ],
)
def test_file_whose_place_is_none_of_a_run_is_torn(folder, tmp_path, field, said):
    """Round, step and lease are numbers from zero on."""
    write(folder, 3)
    path = tmp_path / "traces" / "round-000003.trace"
    body = msgpack.unpackb(path.read_bytes())
    assert body[2:4] == [3, place_of(3).step]
    body[field] = said
    path.write_bytes(msgpack.packb(body))
    with pytest.raises(CheckpointError):
        read_trace_names(path, ALL)
    assert folder.anchor(3) is None


def test_round_that_was_not_ended_leaves_nothing(folder, tmp_path):
    writer = folder.writer(place_of(4), state(1).weights_N)
    writer.add(state(1))
    kept = write(folder, 5)  # The process died meanwhile: the next one begins another round.
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert [name for name in names if name.endswith(".trace")] == ["round-000005.trace"]
    lost = root_of(cells_of(LAYOUT, (state(1).weights_N,))).hex()
    assert f"{lost}.cells" not in names
    folder.writer(place_of(6), end_of(5).weights_N)
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == names
    assert folder.find(kept.trace[0])
