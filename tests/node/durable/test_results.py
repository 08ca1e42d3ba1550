"""Files of results: written ahead in any order, whole and on the disk once they are kept."""

import errno
import random
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from node.holdings import journal as write_ahead
from node.holdings import results
from node.holdings.journal import FileJournal, WriteAhead
from node.holdings.results import ResultFiles
from protocol import limits
from protocol.grid import cell_root
from sim.world.files import Fate, SimFiles
from training.files.durable import SYSTEM_FILES, replace_durably

FOLDER = Path("/run/results")
DIGEST, OTHER = bytes(range(32)), bytes(32)


@pytest.fixture
def rng(seed):
    return random.Random(seed)


@pytest.fixture
def files(rng):
    return SimFiles(rng)


def made_up(rng: random.Random, count: int) -> list[bytes]:
    return [rng.randbytes(rng.randrange(1, 50)) for _ in range(count)]


def placed(cells: list[bytes]) -> list[tuple[int, bytes]]:
    return list(zip(accumulate(map(len, cells), initial=0), cells, strict=False))


def power_off(files: SimFiles, rng: random.Random, fates: Sequence[Fate] = tuple(Fate)) -> None:
    files.power_off([rng.choice(fates) for _ in range(files.num_unsynced)])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_result_written_ahead_in_any_order_is_the_same_file(rng, files, monkeypatch, share):
    monkeypatch.setattr(results, "SYNC_BYTES", 64)
    cells = made_up(rng, 20)
    plain = SimFiles(rng)
    ResultFiles(FOLDER, plain).keep(7, DIGEST, cells)
    ahead = [place for place in placed(cells) if rng.random() < share]
    rng.shuffle(ahead)
    folder = ResultFiles(FOLDER, files)
    for place in ahead:
        folder.write_ahead(7, DIGEST, [place])
    assert folder.of_round(7) == {}
    folder.keep(7, DIGEST, cells)
    (name,) = files.names(FOLDER)
    assert files.content(FOLDER / name) == plain.content(FOLDER / name)
    assert folder.of_round(7) == {DIGEST: b"".join(cells)}


def test_cells_that_changed_since_they_were_written_ahead_are_written_again(rng, files):
    cells = made_up(rng, 8)
    wrong = [bytes(len(cell)) for cell in cells]
    folder = ResultFiles(FOLDER, files)
    folder.write_ahead(7, DIGEST, placed(wrong))
    folder.write_ahead(7, DIGEST, [(10_000, b"of another grid")])
    folder.keep(7, DIGEST, cells)
    assert folder.of_round(7) == {DIGEST: b"".join(cells)}


def test_another_result_takes_the_place_of_one_that_was_written_ahead(rng, files):
    one, two = made_up(rng, 5), made_up(rng, 5)
    folder = ResultFiles(FOLDER, files)
    folder.write_ahead(7, DIGEST, placed(one))
    folder.write_ahead(7, OTHER, placed(two)[::-1])
    assert len(files.names(FOLDER)) == 1
    folder.keep(7, DIGEST, one)  # The round went on with the first one after all.
    folder.keep(7, OTHER, two)
    assert folder.of_round(7) == {DIGEST: b"".join(one), OTHER: b"".join(two)}
    assert len(files.names(FOLDER)) == 2


@pytest.mark.parametrize(("joined", "expected"), [(1, 20), (100, None), (1 << 20, 1)])
def test_cells_behind_one_another_are_written_together(rng, monkeypatch, joined, expected):
    """In whatever order they come; those with a gap between them are not."""
    monkeypatch.setattr(results, "JOINED_BYTES", joined)
    cells, writes = made_up(rng, 20), []
    files = SimFiles(rng, before=lambda operation, _: writes.append(operation))
    folder = ResultFiles(FOLDER, files)
    ahead = placed(cells)
    rng.shuffle(ahead)
    writes.clear()
    folder.write_ahead(7, DIGEST, ahead)
    count = writes.count("write")
    assert count == expected if expected else 1 < count < 20
    folder.write_ahead(8, OTHER, placed(cells)[::2])
    assert writes.count("write") == count + 10
    folder.keep(7, DIGEST, cells)
    assert folder.of_round(7) == {DIGEST: b"".join(cells)}


def test_disk_that_fails_while_a_result_is_written_ahead_costs_nothing(rng, monkeypatch):
    monkeypatch.setattr(results, "SYNC_BYTES", 1)
    monkeypatch.setattr(results, "JOINED_BYTES", 1)
    cells, seen = made_up(rng, 6), []

    def before(operation: str, path: Path) -> None:
        seen.append(operation)
        if seen.count("sync") == 2 and operation == "sync":
            raise OSError(errno.EIO, "made up")

    files = SimFiles(rng, before=before)
    folder = ResultFiles(FOLDER, files)
    folder.write_ahead(7, DIGEST, placed(cells))
    assert not files.names(FOLDER)  # The next sync would succeed without what this one lost.
    folder.keep(7, DIGEST, cells)
    power_off(files, rng)
    assert ResultFiles(FOLDER, files).of_round(7) == {DIGEST: b"".join(cells)}


def test_result_that_could_not_be_kept_is_written_anew_by_who_tries_again(rng):
    """A sync that failed has lost what it was for, and the next one would not say so."""
    cells, is_failing = made_up(rng, 6), True

    def before(operation: str, path: Path) -> None:
        if operation == "sync" and is_failing:
            raise OSError(errno.EIO, "made up")

    files = SimFiles(rng, before=before)
    is_failing = False
    folder = ResultFiles(FOLDER, files)
    folder.write_ahead(7, DIGEST, placed(cells)[::2])
    is_failing = True
    with pytest.raises(OSError, match="made up"):
        folder.keep(7, DIGEST, cells)
    assert files.names(FOLDER) == []
    assert folder.reader(7, DIGEST) is None
    is_failing = False
    folder.keep(7, DIGEST, cells)
    power_off(files, rng, [Fate.LOST])
    assert ResultFiles(FOLDER, files).of_round(7) == {DIGEST: b"".join(cells)}


def test_result_that_was_removed_is_written_again_and_one_that_is_kept_is_not(rng, files):
    cells = made_up(rng, 3)
    newest = 7 + limits.RESULT_ROUNDS_KEPT
    folder = ResultFiles(FOLDER, files)
    for round_index in (7, newest):
        folder.keep(round_index, DIGEST, cells)
        folder.write_ahead(round_index, DIGEST, placed(cells))
        folder.keep(round_index, DIGEST, made_up(rng, 3))
    assert len(files.names(FOLDER)) == 2, "nothing is written ahead of what is kept"
    folder.remove_before(newest)
    assert (folder.reader(7, DIGEST), folder.of_round(7)) == (None, {})
    assert folder.of_round(newest) == {DIGEST: b"".join(cells)}
    folder.keep(7, DIGEST, cells)
    assert folder.of_round(7) == {DIGEST: b"".join(cells)}


@pytest.mark.parametrize("fates", [tuple(Fate), (Fate.LOST,)], ids=["drawn", "lost"])
def test_what_was_kept_is_on_the_disk_and_what_was_only_written_ahead_is_gone(
    rng, files, monkeypatch, fates
):
    monkeypatch.setattr(results, "SYNC_BYTES", rng.randrange(1, 200))
    kept, begun = made_up(rng, 9), made_up(rng, 9)
    folder = ResultFiles(FOLDER, files)
    folder.write_ahead(7, DIGEST, placed(kept)[::2])
    folder.keep(7, DIGEST, kept)
    folder.write_ahead(7, OTHER, placed(begun))
    power_off(files, rng, fates)
    again = ResultFiles(FOLDER, files)
    assert again.of_round(7) == {DIGEST: b"".join(kept)}
    assert len(files.names(FOLDER)) == 1


def test_result_with_a_byte_changed_or_missing_or_added_is_left_out(rng, files, caplog):
    cells = made_up(rng, 7)
    folder = ResultFiles(FOLDER, files)
    folder.keep(7, DIGEST, cells, [cell_root(cell) for cell in cells])
    (name,) = files.names(FOLDER)
    whole = files.content(FOLDER / name)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        for data in (bytes(changed), whole[:at], whole + whole[: at + 1]):
            files.unlink(FOLDER / name)
            replace_durably(FOLDER / name, [data], files)
            assert ResultFiles(FOLDER, files).of_round(7) == {}, (at, len(data), len(whole))
    assert "not what was written" in caplog.text
    files.unlink(FOLDER / name)
    replace_durably(FOLDER / name, [whole], files)
    assert ResultFiles(FOLDER, files).of_round(7) == {DIGEST: b"".join(cells)}


def test_result_that_the_disk_cannot_read_is_left_out(rng, files, caplog, monkeypatch):
    results = ResultFiles(FOLDER, files)
    results.keep(7, DIGEST, [b"cells"])
    results.keep(7, OTHER, [b"others"])
    content = files.content

    def fails(path: Path, start: int = 0, size: int = -1) -> bytes:
        if DIGEST.hex() in path.name:
            raise OSError(errno.EIO, "Input/output error", str(path))
        data: bytes = content(path, start, size)
        return data

    monkeypatch.setattr(files, "content", fails)
    assert results.of_round(7) == {OTHER: b"others"}
    assert f"{DIGEST.hex()}.bin reason=[Errno {errno.EIO}]" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a file that cannot be read")
def test_file_that_cannot_be_read_is_named():
    # There is nothing at address 0.
    with pytest.raises(OSError, match="/proc/self/mem") as raised:
        SYSTEM_FILES.content(Path("/proc/self/mem"))
    assert raised.value.errno == errno.EIO


def test_result_whose_roots_are_not_its_cells_is_left_out(rng, files):
    cells = made_up(rng, 3)
    wrong = [cell_root(cell) for cell in cells[::-1]]
    ResultFiles(FOLDER, files).keep(7, DIGEST, cells, wrong)
    assert ResultFiles(FOLDER, files).of_round(7) == {}


class Recorder(FileJournal):
    """Writes down what it is told, and keeps nothing."""

    def __init__(self, files: SimFiles) -> None:
        super().__init__(FOLDER.parent, files=files)
        self.ahead: list[tuple[bytes, list[int]]] = []
        self.kept: list[bytes] = []

    def write_ahead(self, round_index, digest, cells) -> None:
        self.ahead.append((digest, [start for start, _ in cells]))

    def keep_result(self, round_index, digest, cells, roots=()) -> None:
        self.kept.append(digest)


async def test_cells_are_written_in_batches_and_of_the_newest_result_only(files, monkeypatch):
    monkeypatch.setattr(write_ahead, "SMALL_BYTES", 10)
    monkeypatch.setattr(write_ahead, "BATCH_BYTES", 30)
    journal = Recorder(files)
    ahead = WriteAhead(journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ahead.run)
        ahead.offer(7, DIGEST, [(0, bytes(10)), (10, bytes(10)), (20, bytes(9))])
        await trio.testing.wait_all_tasks_blocked()
        assert not journal.ahead  # Too little to wake a thread for; and one is too small.
        ahead.offer(7, OTHER, [(0, bytes(10)), (10, bytes(10))])
        ahead.offer(7, OTHER, [(20, bytes(10))])
        with trio.fail_after(60):
            while not journal.ahead:
                await trio.lowlevel.checkpoint()
        ahead.offer(7, OTHER, [(30, bytes(10))])
        await ahead.keep(7, OTHER, [], [])
        nursery.cancel_scope.cancel()
    assert journal.ahead == [(OTHER, [0, 10, 20])]
    assert journal.kept == [OTHER]
