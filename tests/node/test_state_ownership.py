"""Folders and keys of somebody else, or that somebody else may change, are not taken silently."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node.state import ownership
from node.state.folder import KEY_FILE, make_folder
from node.state.keystore import load_or_create_identity, read_psk, write_new_psk
from node.state.lock import locked_state
from protocol.errors import ConfigError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")

GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Makes a file or folder that of somebody else."""

    def give(path: Path) -> None:
        if os.geteuid() == ownership.ROOT_UID:
            os.chown(path, 65_534, 65_534)
        else:  # Whoever is not the superuser gives nothing away, so we are somebody else.
            someone = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: someone)

    return give


@pytest.fixture(autouse=True)
def fresh_warnings() -> None:
    ownership._warn.cache_clear()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with a key in it."""
    load_or_create_identity(tmp_path / "s")
    return tmp_path / "s"


def test_folder_of_somebody_else_is_refused_before_anything_is_in_it(
    tmp_path: Path, give_away: GiveAway
) -> None:
    folder = tmp_path / "s"
    folder.mkdir(mode=0o777)
    give_away(folder)
    for take in (make_folder, load_or_create_identity):
        with pytest.raises(ConfigError, match=r"belongs to user .*--state.*chown"):
            take(folder)
    with pytest.raises(ConfigError, match="belongs to user"), locked_state(folder):
        pass
    assert os.listdir(folder) == []


def test_folder_that_everybody_may_write_to_is_refused_unless_it_is_ours_to_close(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "x").touch()
    folder.chmod(0o1777)
    with pytest.raises(ConfigError, match=r"everybody on this machine may write.*chmod go-w"):
        make_folder(folder)
    (folder / "x").unlink()
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_folder_that_its_group_may_write_to_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "x").touch()
    folder.chmod(0o775)
    for _ in range(3):
        make_folder(folder)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the group of" in record.getMessage()


def test_key_of_somebody_else_is_refused(state: Path, give_away: GiveAway) -> None:
    give_away(state / KEY_FILE)
    with pytest.raises(ConfigError, match="belongs to user"):
        load_or_create_identity(state)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_key_that_others_may_write_to_is_refused(state: Path, mode: int) -> None:
    (state / KEY_FILE).chmod(mode)
    with pytest.raises(ConfigError, match=r"others may write to the key .*chmod 600"):
        load_or_create_identity(state)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_key_that_others_can_read_is_said(
    state: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    (state / KEY_FILE).chmod(mode)
    load_or_create_identity(state)
    (record,) = caplog.records
    assert "others on this machine can read the key" in record.getMessage()


def test_psk_is_looked_at_as_the_key_is(
    tmp_path: Path, give_away: GiveAway, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "swarm.key"
    write_new_psk(path)
    assert len(read_psk(path)) == 32
    path.chmod(0o644)
    read_psk(path)
    assert "can read the PSK" in caplog.text
    path.chmod(0o646)
    with pytest.raises(ConfigError, match="others may write to the PSK"):
        read_psk(path)
    path.chmod(0o600)
    give_away(path)
    with pytest.raises(ConfigError, match="belongs to user"):
        read_psk(path)


def test_disk_without_rights_is_no_reason_to_refuse(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FAT has it: every file is for everybody, whatever chmod is asked for."""
    (state / KEY_FILE).chmod(0o777)
    state.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    monkeypatch.setattr(ownership, "_has_rights", lambda _: False)
    load_or_create_identity(state)


def test_disk_with_rights_is_known_by_what_it_keeps(tmp_path: Path) -> None:
    assert ownership._has_rights(tmp_path)


def test_own_closed_folder_and_key_are_taken_without_a_word(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_or_create_identity(state)
    assert caplog.records == []
