"""What users get wrong, and what they are told."""

import errno
import io
import random
from pathlib import Path

import pytest

from node.daemon.running import INPUT_LINE_BYTES_MAX, read_line
from node.processes.exit_codes import user_error
from node.state.stored_manifest import read_signed_manifest
from protocol.errors import ConfigError, UnreachableError
from protocol.identity import Ed25519Signer
from protocol.wire import encode
from tests.node.edge import signed, toy_manifest

SIGNER = Ed25519Signer(b"r" * 32)


@pytest.mark.parametrize(
    "data",
    [b"", random.Random(4).randbytes(100), encode(signed(toy_manifest()))[:-1] + b"\x00"],
    ids=["empty", "random", "damaged"],
)
def test_file_that_is_no_manifest_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.file"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"some\.file is no manifest"):
        read_signed_manifest(path, SIGNER)


def test_full_disk_is_told_with_the_folder() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    error = user_error(ExceptionGroup("", [ExceptionGroup("", [full])]), Path("here"))
    assert isinstance(error, ConfigError)
    assert str(error).startswith("cannot use here: No space left on device; make room")


def test_error_of_ours_is_told_as_it_is() -> None:
    error = UnreachableError("nobody")
    assert user_error(ExceptionGroup("", [error, OSError()]), Path()) is error


def test_standard_input_may_be_closed_or_hold_any_bytes() -> None:
    assert read_line(None) == b""
    wild = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00\nleave\n" + b"x" * 10_000))
    assert [read_line(wild), read_line(wild)] == [b"\xff\xfe\x00\n", b"leave\n"]
    assert len(read_line(wild)) == INPUT_LINE_BYTES_MAX
