"""What is said to be on the disk was given to it, before what a crash must not see without it."""

import os

import pytest

from tests.training.syncs import Syncs
from training.files.durable import SYSTEM_FILES, fsync_file, make_folder_durably, replace_durably

posix = pytest.mark.skipif(os.name == "nt", reason="Windows opens no folders")


@pytest.fixture
def syncs(monkeypatch):
    return Syncs(monkeypatch)


def test_file_is_given_to_the_disk_by_each_call_that_says_so_and_by_no_other(tmp_path, syncs):
    path, synced = tmp_path / "file", ["sync file"]
    file = SYSTEM_FILES.create(path)
    file.write(b"bytes")
    assert syncs.take(path) == []
    file.sync()
    assert syncs.take(path) == synced
    file.relieve()
    assert syncs.take(path) == [], "nothing was written since"
    file.write(b"more")
    file.relieve()
    assert syncs.take(path) == synced
    file.close()
    SYSTEM_FILES.overwrite(path, 2, b"TES")
    assert syncs.take(path) == synced
    fsync_file(path)
    assert syncs.take(path) == synced
    assert path.read_bytes() == b"byTESmore"


@posix
def test_names_are_given_to_the_disk_from_the_highest_new_folder_down(tmp_path, syncs):
    SYSTEM_FILES.sync_folder(tmp_path)
    assert syncs.take(tmp_path) == [f"sync {tmp_path.name}"]
    one = tmp_path / "one"
    make_folder_durably(one / "two")
    places = (one, *tmp_path.parents, tmp_path)
    assert syncs.take(*places)[:2] == [f"sync {tmp_path.name}", "sync one"]


@posix
def test_replaced_file_has_its_bytes_before_its_name_and_its_name_in_the_end(tmp_path, syncs):
    path = tmp_path / "file"
    for content in (b"old", b"new", b""):
        replace_durably(path, [content])
        in_order = ["sync file", "name file", f"sync {tmp_path.name}"]
        assert syncs.take(path, tmp_path) == in_order
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]
