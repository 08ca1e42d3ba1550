"""Copies of logs that are about to be cut: there when it happens, and no more than two."""

import random

import pytest

from node.holdings.record_log import SET_ASIDE_FOLDER, keep_log
from sim.world.files import Fate, SimFiles
from tests.node.journal_history import FOLDER
from training.files.durable import make_folder_durably

LOG = FOLDER / "chain.log"


@pytest.fixture
def files(seed: int) -> SimFiles:
    """A machine with an empty folder of a run."""
    machine = SimFiles(random.Random(f"{seed}/set-aside"))
    make_folder_durably(FOLDER, machine)
    return machine


def write(files: SimFiles, data: bytes) -> None:
    file = files.create(LOG)
    file.write(data)
    file.sync()
    files.sync_folder(FOLDER)


def test_copy_of_a_log_outlives_a_power_cut_right_behind_it(files: SimFiles) -> None:
    write(files, b"damaged")
    kept = keep_log(LOG, files)
    files.power_off([Fate.LOST] * files.num_unsynced)
    assert files.content(kept) == b"damaged"


def test_log_that_a_crash_left_uncut_is_kept_once(files: SimFiles) -> None:
    write(files, b"damaged")
    assert keep_log(LOG, files) == keep_log(LOG, files)
    assert files.names(FOLDER / SET_ASIDE_FOLDER) == [LOG.name]


def test_of_many_damaged_logs_the_longest_stays_and_the_last_that_was_not_longer(
    files: SimFiles,
) -> None:
    for data in (b"long", b"longest", b"one", b"two"):
        write(files, data)
        assert files.content(keep_log(LOG, files)) == data
    folder = FOLDER / SET_ASIDE_FOLDER
    assert [files.content(folder / name) for name in files.names(folder)] == [b"longest", b"two"]
