"""Key files of private swarms, and runs that stay private."""

import stat
import sys

import pytest

from node.state.keystore import check_private, read_psk, write_new_psk
from protocol.errors import ConfigError


def test_new_psk_is_read_back_and_is_no_other(tmp_path):
    write_new_psk(tmp_path / "a")
    write_new_psk(tmp_path / "b")
    first = read_psk(tmp_path / "a")
    assert len(first) == 32
    assert first == read_psk(tmp_path / "a") != read_psk(tmp_path / "b")


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_new_psk_is_for_its_owner_alone(tmp_path):
    write_new_psk(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_psk_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "key").write_text("precious")
    with pytest.raises(ConfigError, match="is there already"):
        write_new_psk(tmp_path / "key")
    assert (tmp_path / "key").read_text() == "precious"


def test_psk_of_other_programs_is_read(tmp_path):
    (tmp_path / "key").write_bytes(b"/key/swarm/psk/1.0.0/\r\n/base16/\r\n" + b"aB" * 32 + b"\r\n")
    assert read_psk(tmp_path / "key") == b"\xab" * 32


@pytest.mark.parametrize(
    "text",
    ["", "ab" * 32, "/key/swarm/psk/1.0.0/\n/base16/\n" + "ab" * 31, "\x00" * 5000],
    ids=["empty", "bare", "short", "long"],
)
def test_what_is_no_psk_is_refused_and_not_shown(tmp_path, text):
    (tmp_path / "key").write_text(text)
    with pytest.raises(ConfigError, match="is no PSK") as refused:
        read_psk(tmp_path / "key")
    assert "abab" not in str(refused.value)


def test_psk_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the PSK"):
        read_psk(tmp_path / "none")


def test_run_that_began_in_private_does_not_go_on_in_public(tmp_path):
    check_private(tmp_path, b"k" * 32)
    check_private(tmp_path, b"k" * 32)
    with pytest.raises(ConfigError, match="this run is private"):
        check_private(tmp_path, None)
    with pytest.raises(ConfigError, match="another PSK"):
        check_private(tmp_path, b"l" * 32)
    assert b"k" * 8 not in (tmp_path / "private").read_bytes()


def test_public_run_is_left_alone(tmp_path):
    check_private(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
