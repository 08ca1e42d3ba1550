"""Simulated files: what is synced stays; the rest may be lost, torn, or there by itself."""

import errno
import random
from itertools import product
from pathlib import Path

import pytest

from sim.world.files import SECTOR_BYTES, Fate, SimFiles
from training.files.durable import (
    SYSTEM_FILES,
    WRITING,
    Bytes,
    make_folder_durably,
    replace_durably,
)

FOLDER = Path("/a/b")
FILE = FOLDER / "file"


@pytest.fixture
def files() -> SimFiles:
    files = SimFiles(random.Random(0))
    make_folder_durably(FOLDER, files)
    return files


def synced(files: SimFiles, data: bytes, path: Path = FILE) -> None:
    file = files.append(path)
    file.write(data)
    file.sync()
    files.sync_folder(path.parent)


def off(files: SimFiles, *fates: Fate) -> None:
    files.power_off(fates)
    assert files.num_unsynced == 0


def test_synced_bytes_and_names_outlive_the_power_and_the_process_keeps_all(files):
    synced(files, b"kept")
    file = files.append(FILE)
    file.write(b" lost")
    file.truncate(2)
    files.unlink(FILE)
    files.append(FOLDER / "new").write(b"x")
    assert files.names(FOLDER) == ["new"]
    off(files, *[Fate.LOST] * files.num_unsynced)
    assert files.names(FOLDER) == ["file"]
    assert files.content(FILE) == b"kept"


def test_each_write_fares_by_itself(files):
    for fates in product((Fate.LOST, Fate.WHOLE), repeat=3):
        files.create(FILE).sync()
        synced(files, b"0")
        file = files.append(FILE)
        for data in (b"11", b"22", b"33"):
            file.write(data)
        assert files.content(FILE) == b"0112233"
        off(files, *fates)
        parts = [
            data if fate is Fate.WHOLE else b"\0\0"
            for data, fate in zip((b"11", b"22", b"33"), fates, strict=True)
        ]
        while parts and parts[-1] == b"\0\0":
            parts.pop()  # Nothing behind it made the file so long.
        assert files.content(FILE) == b"0" + b"".join(parts)


@pytest.mark.parametrize(
    ("fates", "names", "content"),
    [
        ((Fate.LOST, Fate.LOST), ["file"], b"old"),
        ((Fate.WHOLE, Fate.LOST), ["file", "new"], b"old"),
        ((Fate.LOST, Fate.WHOLE), ["file"], b"new"),
        ((Fate.WHOLE, Fate.WHOLE), ["file"], b"new"),
    ],
)
def test_names_fare_by_themselves_and_a_rename_is_whole_or_not(files, fates, names, content):
    synced(files, b"old")
    new = files.create(FOLDER / "new")
    new.write(b"new")
    new.sync()
    files.rename(FOLDER / "new", FILE)
    off(files, *fates)
    assert (files.names(FOLDER), files.content(FILE)) == (names, content)


def test_file_is_gone_with_the_folder_whose_name_was_never_synced(files):
    files.make_folder(FOLDER / "c")
    synced(files, b"x", FOLDER / "c" / "file")
    off(files, Fate.LOST)
    assert not files.exists(FOLDER / "c")
    assert not files.exists(FOLDER / "c" / "file")
    with pytest.raises(FileNotFoundError):
        files.content(FOLDER / "c" / "file")


@pytest.mark.parametrize("fate", [Fate.PREFIX, Fate.SECTORS, Fate.ZEROS])
def test_torn_write_leaves_a_part_of_it_and_nothing_else(fate):
    found = set()
    data = bytes(range(1, 251)) * 10
    for seed in range(40):
        files = SimFiles(random.Random(seed))
        make_folder_durably(FOLDER, files)
        synced(files, b"." * 100)
        files.append(FILE).write(data)
        off(files, fate)
        content = files.content(FILE)
        assert content[:100] == b"." * 100
        torn = content[100:]
        found.add(torn)
        if fate is Fate.PREFIX:
            assert data.startswith(torn)
        else:
            assert len(torn) == len(data)
            for start, byte in enumerate(torn):
                assert byte in (0, data[start])
        if fate is Fate.SECTORS:
            # The first sector begins before the write does.
            stops = range(SECTOR_BYTES, 100 + len(data), SECTOR_BYTES)
            for stop in stops:
                sector = content[max(stop - SECTOR_BYTES, 100) : stop]
                assert not any(sector) or 0 not in sector
    assert len(found) > 1 or fate is Fate.ZEROS


def test_overwritten_bytes_are_the_old_or_the_new_ones():
    for seed in range(20):
        files = SimFiles(random.Random(seed))
        make_folder_durably(FOLDER, files)
        synced(files, b"o" * 2000)
        files.before = lambda operation, path: stop_at(operation, "sync")
        with pytest.raises(Stopped):
            files.overwrite(FILE, 100, b"n" * 1500)
        files.before = None
        off(files, random.Random(seed).choice(list(Fate)))
        content = files.content(FILE)
        assert len(content) == 2000
        assert set(content) <= set(b"on")
        assert content[:100] == b"o" * 100


class Stopped(Exception):
    """The process ends."""


def stop_at(operation: str, name: str) -> None:
    if operation == name:
        raise Stopped


def failing(name: str):
    def before(operation: str, path: Path) -> None:
        if operation == name:
            raise OSError(errno.EIO, "Input/output error", str(path))

    return before


def test_sync_that_fails_has_lost_what_it_was_for_and_the_next_one_succeeds(files):
    synced(files, b"kept ")
    file = files.append(FILE)
    file.write(b"gone")
    files.before = failing("sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    files.before = None
    file.sync()
    assert files.content(FILE) == b"kept gone", "the cache still has it"
    file.write(b" back")
    file.sync()
    off(files)
    assert files.content(FILE) == b"kept \0\0\0\0 back"


def test_write_that_fails_leaves_a_part(files):
    synced(files, b"")
    seen = set()
    for _ in range(40):
        files.before = failing("write")
        with pytest.raises(OSError, match="Input/output"):
            files.append(FILE).write(b"abcd")
        files.before = None
        seen.add(files.content(FILE))
        files.append(FILE).truncate(0)
    assert seen == {b"", b"a", b"ab", b"abc", b"abcd"}


def test_image_holds_everything_and_what_is_restored_is_durable(files):
    synced(files, b"x")
    files.append(FILE).write(b"y")
    disk = SimFiles(random.Random(0))
    disk.restore(files.image())
    off(disk)
    assert disk.content(FILE) == b"xy"
    assert disk.image() == files.image()
    disk.append(FILE).write(b"z")
    assert files.content(FILE) == b"xy"


def test_flipped_bit_is_on_the_disk_and_in_the_cache(files):
    synced(files, b"aaa")
    files.flip(FILE, 9)
    assert files.content(FILE) == b"aca"
    off(files)
    assert files.content(FILE) == b"aca"


# Both kinds of files ----------------------------------------------------------------------------


@pytest.fixture(params=["system", "simulated"])
def both(request, tmp_path):
    """Files, and a folder in which they may work."""
    if request.param == "system":
        return SYSTEM_FILES, tmp_path
    files = SimFiles(random.Random(0))
    make_folder_durably(FOLDER, files)
    return files, FOLDER


def test_system_and_simulator_do_the_same(both):
    files, folder = both
    path, other = folder / "file", folder / "other"
    file = files.append(path)
    file.write(b"one")
    file.write(memoryview(b" two"))
    file.write(b"")
    file.sync()
    file.close()
    assert (files.content(path), files.content(path, 2, 3), files.content(path, 4)) == (
        b"one two",
        b"e t",
        b"two",
    )
    again = files.append(path)
    again.truncate(3)
    again.write(b"!")
    again.close()
    assert files.content(path) == b"one!"
    files.overwrite(path, 1, b"ld")
    assert files.content(path) == b"old!"
    with_new = files.create(other)
    with_new.write(b"new")
    with_new.close()
    files.rename(other, path)
    assert (files.names(folder), files.content(path)) == (["file"], b"new")
    files.create(path).close()
    assert files.content(path) == b""
    for _ in range(2):
        files.unlink(path)
        files.make_folder(folder / "deep")
    make_folder_durably(folder / "deep" / "deeper" / "deepest", files)
    files.sync_folder(folder)
    assert files.exists(folder / "deep" / "deeper" / "deepest")
    assert not files.exists(path)
    for fails in (files.content, files.names, files.sync_folder):
        with pytest.raises(FileNotFoundError):
            fails(folder / "missing")
    for fails in (files.append, files.create, files.make_folder):
        with pytest.raises(FileNotFoundError):
            fails(folder / "missing" / "x")
    with pytest.raises(FileNotFoundError):
        files.rename(folder / "missing", folder / "x")


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_replaced_file_has_all_parts_small_and_large(both, size):
    files, folder = both
    large = random.Random(size).randbytes(size)
    parts: list[Bytes] = [
        b"a",
        memoryview(b"bc"),
        large,
        memoryview(large).cast("B"),
        b"",
        *[b"d" * 1000] * 1500,
    ]
    replace_durably(folder / "file", iter(parts), files)
    assert files.content(folder / "file") == b"abc" + large * 2 + b"d" * 1_500_000
    assert files.names(folder) == ["file"]


def test_replacing_is_all_or_nothing_at_every_operation():
    seen: list[str] = []
    stop = 0
    while stop <= len(seen):
        for fates in product(Fate, repeat=2):
            files = SimFiles(random.Random(stop))
            make_folder_durably(FOLDER, files)
            synced(files, b"old")
            seen.clear()

            def before(operation: str, path: Path, *, stop: int = stop) -> None:
                seen.append(operation)
                if len(seen) > stop:
                    raise Stopped

            files.before = before
            is_done = True
            try:
                replace_durably(FILE, [b"new"], files)
            except Stopped:
                is_done = False
            files.before = None
            count = files.num_unsynced
            assert count <= 2
            off(files, *fates[:count])
            assert files.content(FILE) in ((b"new",) if is_done else (b"old", b"new"))
            assert set(files.names(FOLDER)) <= {"file", WRITING + "file"}
        stop += 1
    assert is_done
