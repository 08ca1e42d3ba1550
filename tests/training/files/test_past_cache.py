"""Files written past the page cache have the bytes that they were given, wherever these lie."""

import errno
import itertools
import mmap
import os
import random

import numpy as np
import pytest
from safetensors.numpy import load, save

from training.files import durable as past_cache
from training.files.durable import (
    BLOCK_BYTES,
    DIRECT_BYTES_MIN,
    SYSTEM_FILES,
    PastCache,
    in_blocks,
    replace_durably,
)
from training.files.state import file_parts


@pytest.fixture
def rng(seed):
    return random.Random(seed)


@pytest.fixture
def direct(monkeypatch):
    """How many bytes went past the cache, by the calls that were made."""
    counts = []
    write = PastCache.put

    def counting(self, start, view):
        counts.append(write(self, start, view))
        return counts[-1]

    monkeypatch.setattr(PastCache, "put", counting)
    return counts


def takes_direct(folder) -> bool:
    file = PastCache(folder / "probe")
    (folder / "probe").touch()
    try:
        return file.put(0, memoryview(bytes(DIRECT_BYTES_MIN))) > 0
    finally:
        file.close()


@pytest.mark.parametrize("is_refused", [False, True])
def test_large_and_small_pieces_in_any_order_make_one_file(
    tmp_path, rng, direct, monkeypatch, is_refused
):
    if is_refused:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    whole = rng.randbytes(11 * DIRECT_BYTES_MIN + rng.randrange(1, BLOCK_BYTES))
    cuts = [0, *sorted(rng.sample(range(1, len(whole)), 3)), 5 * DIRECT_BYTES_MIN, len(whole)]
    cuts = sorted({*cuts, 6 * DIRECT_BYTES_MIN})
    places = list(itertools.pairwise(cuts))
    rng.shuffle(places)
    file = SYSTEM_FILES.create(tmp_path / "file")
    for start, stop in places:
        file.put(start, whole[start:stop])
        file.relieve()
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == whole
    expected = 0 if is_refused or not takes_direct(tmp_path) else DIRECT_BYTES_MIN
    assert sum(direct) >= expected


def test_parts_of_any_size_are_replaced_durably_and_large_ones_begin_at_blocks(
    tmp_path, rng, direct
):
    sizes = [rng.choice((0, 7, 5000, 700_000, 1 << 20, 3_000_001)) for _ in range(12)]
    parts = [rng.randbytes(size) for size in [*sizes, 5 << 20]]
    chunks = [bytes(chunk) for chunk in in_blocks(parts)]
    assert b"".join(chunks) == b"".join(parts)
    assert all(len(chunk) % BLOCK_BYTES == 0 for chunk in chunks[:-1])
    replace_durably(tmp_path / "file", parts)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    if takes_direct(tmp_path):
        assert sum(direct) >= 4 << 20


@pytest.mark.parametrize("begins_at_page", [True, False])
def test_what_begins_at_a_page_is_written_from_where_it_lies(
    tmp_path, rng, direct, monkeypatch, begins_at_page
):
    size = 5 * DIRECT_BYTES_MIN + 77
    copied: list[mmap.mmap] = []
    whole = np.frombuffer(mmap.mmap(-1, size + BLOCK_BYTES), dtype=np.uint8)
    data = whole[: size + 1][0 if begins_at_page else 1 :][:size].data
    data[:] = rng.randbytes(size)
    monkeypatch.setattr(past_cache, "_stages", copied)
    file = SYSTEM_FILES.create(tmp_path / "file")
    file.put(0, data)
    was_copied = bool(copied)
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(data)
    if takes_direct(tmp_path):
        assert direct[0] == size - size % BLOCK_BYTES
        assert was_copied is not begins_at_page


def test_what_begins_between_blocks_goes_past_the_cache_but_for_its_ends(tmp_path, rng, direct):
    data, start = rng.randbytes(3 * DIRECT_BYTES_MIN), rng.randrange(1, BLOCK_BYTES)
    file = SYSTEM_FILES.create(tmp_path / "file")
    file.put(start, data)
    file.put(0, data[:start])
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == data[:start] + data
    if takes_direct(tmp_path):
        assert direct[0] == 3 * DIRECT_BYTES_MIN - BLOCK_BYTES


def test_file_system_that_refuses_gets_the_bytes_through_the_cache(tmp_path, rng, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "no direct writes here")

    monkeypatch.setattr(os, "pwrite", refuse)
    data = rng.randbytes(3 * DIRECT_BYTES_MIN)
    replace_durably(tmp_path / "file", [data])
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writes on this system")
def test_full_disk_is_an_error_and_leaves_the_old_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "file").write_bytes(b"old")
    if not takes_direct(tmp_path):
        pytest.skip("no direct writes on this file system")
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        replace_durably(tmp_path / "file", [bytes(2 * DIRECT_BYTES_MIN)])
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "probe"]


def test_write_that_stops_short_goes_on_through_the_cache(tmp_path, rng, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[: 3 * BLOCK_BYTES], at))
    data = rng.randbytes(2 * DIRECT_BYTES_MIN)
    replace_durably(tmp_path / "file", [data])
    assert (tmp_path / "file").read_bytes() == data


def read_as_the_library_writes(data: bytes) -> bytes:
    """Without the blanks by which the tensors begin at a block."""
    stop = 8 + int.from_bytes(data[:8], "little")
    head = data[8:stop].rstrip(b" ")
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data[stop:]


def test_tensors_in_a_file_are_those_bytes_that_the_library_writes(rng):
    tensors = {
        name: np.arange(rng.randrange(40), dtype="<f4").reshape(-1, 1)
        for name in ("b", "a/ü", 'quo"ted', "layer.10.w", "layer.2.w")
    }
    for found in (tensors, {"one": np.ones((2, 3), "<f4")}, {}):
        head, *parts = map(bytes, file_parts(found))
        assert len(head) % BLOCK_BYTES == 0
        data = b"".join((head, *parts))
        assert read_as_the_library_writes(data) == save(found)
        read = load(data)
        assert sorted(read) == sorted(found)
        assert all(np.array_equal(read[name], found[name]) for name in found)


def test_tensors_behind_one_another_are_one_piece_and_no_others(rng):
    vector_N = np.arange(100, dtype="<f4")
    names = "abcdefg"
    a, b, c = vector_N[:40].reshape(4, 10), vector_N[40:41], vector_N[41:90]
    for views, num_pieces in (
        ((a, b, c), 1),
        ((a, b, c, vector_N[91:]), 2),  # One element is missing.
        ((b, a, c), 3),
        ((a, b.copy(), c), 3),
        ((c, vector_N), 2),
        ((vector_N.astype("<f4").copy(), a, b), 2),
        ((vector_N.reshape(10, 10).T.copy(), a), 2),
        ((np.frombuffer(vector_N.tobytes()[4:], "<f4")[:3], a), 2),
    ):
        tensors = dict(zip(names, views, strict=False))
        _, *parts = file_parts(tensors)
        assert len(parts) == num_pieces
        assert b"".join(map(bytes, parts)) == b"".join(view.tobytes() for view in views)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no direct writes on this system")
def test_tensors_that_begin_at_a_page_are_written_from_there(tmp_path, monkeypatch):
    if not takes_direct(tmp_path):
        pytest.skip("no direct writes on this file system")
    pages = mmap.mmap(-1, 8 * DIRECT_BYTES_MIN)
    vector_N = np.frombuffer(pages, dtype="<f4")
    vector_N[:] = np.arange(len(vector_N))
    tensors = {"a": vector_N[:1000], "b": vector_N[1000:-7], "c": vector_N[-7:]}
    begin, direct = vector_N.ctypes.data, []
    write = os.pwrite

    def counts(descriptor, data, at):
        address = np.frombuffer(data, np.uint8).ctypes.data
        direct.append(begin <= address < begin + vector_N.nbytes)
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", counts)
    replace_durably(tmp_path / "file", file_parts(tensors))
    assert direct
    assert all(direct)
    read = load((tmp_path / "file").read_bytes())
    assert all(np.array_equal(read[name], tensors[name]) for name in tensors)
