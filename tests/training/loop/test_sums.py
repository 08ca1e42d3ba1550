"""The numbers that a contribution is encoded from, while they are written."""

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from protocol.errors import CheckpointError
from training.loop import sums
from training.loop.sums import SumsWriter, read_sums

CHUNK = sums._CHUNK_BYTES // 4


@pytest.mark.parametrize("cells", [(), (5,), (CHUNK,), (CHUNK - 3, 7, 2 * CHUNK + 1), (CHUNK,) * 9])
def test_what_was_added_is_the_file_whatever_the_cells_sizes_are(
    cells: tuple[int, ...], tmp_path: Path
) -> None:
    luck = np.random.default_rng(7)
    added = [luck.standard_normal(numel, dtype=np.float32) for numel in cells]
    writer = SumsWriter(tmp_path / "round.sums")
    for cell_N in added:
        copy_N = cell_N.copy()
        writer.add(copy_N)
        copy_N[:] = 0.0  # It is good until `add` returns.
    digest = writer.finish()
    whole = b"".join(cell_N.tobytes() for cell_N in added)
    assert (tmp_path / "round.sums").read_bytes() == whole
    assert digest == blake3(whole).digest()
    if cells:
        found_N = read_sums(tmp_path / "round.sums", sum(cells), digest)
        assert found_N.tobytes() == whole
        with pytest.raises(CheckpointError, match="not the file"):
            read_sums(tmp_path / "round.sums", sum(cells), bytes(32))


def test_encoder_waits_for_a_disk_that_is_behind_and_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SumsWriter(tmp_path / "round.sums")
    mapped = []
    monkeypatch.setattr("mmap.mmap", lambda *_: mapped.append(1))
    for number in range(3 * sums._CHUNKS):
        writer.add(np.full(CHUNK, number, dtype=np.float32))
        assert len(writer._waiting) <= sums._CHUNKS
    writer.finish()
    assert mapped == []


def test_what_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    writer = SumsWriter(tmp_path / "round.sums")
    writer.add(np.ones(CHUNK + 1, dtype=np.float32))
    writer.drop()
    assert list(tmp_path.iterdir()) == []
