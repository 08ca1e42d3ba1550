"""States of own rounds on the disk: what is found there is what its root says, or nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from protocol.errors import CheckpointError
from protocol.grid import EMPTY_ROOT, cell_root
from tests.training.test_segments import LAYOUT, MANIFEST, state
from training.exchange import TraceRoots
from training.segments import TRACES_KEPT, cells_of, root_of
from training.traces import StoredCells, TraceFolder, read_trace_names

SEGMENTS = MANIFEST.audits.segments


def write(folder: TraceFolder, round_index: int, *, has_residual: bool = True) -> TraceRoots:
    writer = folder.writer(round_index)
    states = [state(100 * round_index + number, number) for number in range(SEGMENTS + 1)]
    for one in states:
        writer.add(one)
    residual_N = state(99).weights_N if has_residual else None
    return writer.close(states[-1], residual_N)


@pytest.fixture
def folder(tmp_path: Path) -> TraceFolder:
    return TraceFolder(tmp_path / "traces", MANIFEST)


def test_every_state_is_found_by_its_root_from_another_process(folder, tmp_path):
    roots = write(folder, 3)
    other = TraceFolder(tmp_path / "traces", MANIFEST)
    for number, root in enumerate(roots.trace):
        cells = other.find(root)
        assert isinstance(cells, StoredCells)
        assert tuple(cells) == state(300 + number, number).cells(LAYOUT)
        assert cells.roots == tuple(map(cell_root, cells))
    residual = cells_of(LAYOUT, (state(99).weights_N,))
    assert tuple(other.find(root_of(residual))) == residual
    assert other.find(bytes(32)) == ()
    first = other.first(3)
    assert first is not None
    assert first.cells(LAYOUT) == state(300, 0).cells(LAYOUT)
    assert roots.before == first.moments_root(LAYOUT)
    assert roots.after == state(300 + SEGMENTS, SEGMENTS).moments_root(LAYOUT)
    assert other.first(2) is None
    assert roots.before != EMPTY_ROOT


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
    path = tmp_path / "traces" / "round-000003.trace"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    cells = folder.find(roots.trace[0])
    with pytest.raises(IndexError, match="damaged"):
        cells[0]
    assert cells[1] == state(300, 0).cells(LAYOUT)[1]
    assert folder.first(3) is None
    path.unlink()
    with pytest.raises(IndexError, match="gone"):
        cells[1]


def test_file_that_is_torn_or_of_another_run_is_none(folder, tmp_path):
    roots = write(folder, 3)
    path = tmp_path / "traces" / "round-000003.trace"
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"x", bytes(len(whole))):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError):
            read_trace_names(path, MANIFEST)
        assert folder.find(roots.trace[0]) == ()
    path.write_bytes(whole)
    other = replace(MANIFEST, title="another run")
    with pytest.raises(CheckpointError, match="another run"):
        read_trace_names(path, other)
    assert folder.find(roots.trace[0])


def test_round_that_was_not_ended_leaves_nothing(folder, tmp_path):
    writer = folder.writer(4)
    writer.add(state(1))
    kept = write(folder, 5)  # The process died meanwhile: the next one begins another round.
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == ["round-000005.trace"]
    folder.writer(6).drop()
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == names
    assert folder.find(kept.trace[0])
