"""The state folder: who may read it, and writes that leave the old content or the new."""

import errno
import os
import stat
from pathlib import Path

import pytest

from node.state import folder as state_folder
from node.state.folder import (
    KEY_FILE,
    default_state,
    has_history,
    keep_port,
    make_folder,
    read_port,
    run_folder,
    write_atomically,
)
from node.state.keystore import load_or_create_identity
from node.state.ownership import shown_state
from protocol.errors import ConfigError

posix = pytest.mark.skipif(os.name != "posix", reason="file modes are those of POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_usual_place_is_one_folder_of_ours() -> None:
    assert default_state().is_absolute()
    assert "barnraise" in default_state().name


def test_run_has_its_folder_by_the_first_digits() -> None:
    assert run_folder(Path("s"), bytes.fromhex("ab" * 32)) == Path("s/runs/abababababab")


@posix
def test_new_folders_are_on_the_disk_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[Path, list[str]]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((place, os.listdir(place)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path, ["a"]) in synced
    assert (tmp_path / "a", ["b"]) in synced


@posix
def test_folder_is_for_the_user_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700


@posix
@pytest.mark.parametrize(("content", "expected"), [(None, 0o700), (KEY_FILE, 0o700), ("x", 0o755)])
def test_folder_that_is_there_is_closed_if_it_is_ours(
    tmp_path: Path, content: str | None, expected: int
) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    folder.chmod(0o755)
    if content is not None:
        (folder / content).touch()
    make_folder(folder)
    assert mode(folder) == expected


def test_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot use the folder .*--state"):
        make_folder(tmp_path / "file" / "s")


@posix
def test_new_content_replaces_the_old_and_is_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o600
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    owner = os if call == "fsync" else Path
    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_content_is_on_the_disk_before_it_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        done.append("fsync")
        fsync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        done.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_atomically(tmp_path / "f", b"x")
    assert done[:2] == ["fsync", "replace"]
    assert done[2:] == (["fsync"] if os.name == "posix" else [])


def test_port_is_kept(tmp_path: Path) -> None:
    assert read_port(tmp_path) == 0
    keep_port(tmp_path, 43210)
    assert read_port(tmp_path) == 43210


@pytest.mark.parametrize("text", [b"", b"x", b"-1", b"80", b"70000", b"9" * 1000, b"\xff", b"1.5"])
def test_port_file_that_says_nothing_sound_is_no_port(tmp_path: Path, text: bytes) -> None:
    (tmp_path / state_folder.PORT_FILE).write_bytes(text)
    assert read_port(tmp_path) == 0


def test_history_is_what_a_node_signed_or_sealed(tmp_path: Path) -> None:
    assert not has_history(tmp_path)
    (tmp_path / "slots.log").touch()
    (tmp_path / "checkpoints").mkdir()
    assert not has_history(tmp_path)
    (tmp_path / "checkpoints" / "round-000001").mkdir()
    assert has_history(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "slots.log").write_bytes(b"x")
    assert has_history(other)


@posix
def test_key_behind_a_link_whose_disk_is_not_there_is_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / KEY_FILE
    link.symlink_to(tmp_path / "unmounted" / KEY_FILE)
    with pytest.raises(ConfigError, match=rf"{KEY_FILE} is a link to .*unmounted.* mount its disk"):
        load_or_create_identity(tmp_path)
    assert link.is_symlink()


def test_place_that_help_texts_name_is_the_one_that_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: default_state().parent)
    assert Path(shown_state("a")) == Path("~") / default_state().name / "a"
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert shown_state() == str(default_state())
