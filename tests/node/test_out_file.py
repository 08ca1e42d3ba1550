"""What a command does not write over."""

import os
import stat
import sys
from pathlib import Path

import pytest

from node.using.run_on_disk import refuse_taken
from protocol.errors import ConfigError


def test_file_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    refuse_taken(out, force=False)
    out.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="--force"):
        refuse_taken(out, force=False)
    refuse_taken(out, force=True)


def test_folder_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        refuse_taken(tmp_path, force=True)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for out in (pipe, Path("/dev/null")):
        with pytest.raises(ConfigError, match="a device or a pipe"):
            refuse_taken(out, force=True)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
