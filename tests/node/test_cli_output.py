"""What a command writes, on terminals of all kinds."""

import subprocess
import sys
from pathlib import Path

import pytest

from node.processes.children import child_environment


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "node.cli", "init", str(tmp_path / "日.toml")]
    environment = child_environment() | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?.toml is written" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="closes the output as a POSIX shell does")
def test_json_that_nobody_takes_is_no_error(tmp_path: Path) -> None:
    script = '"$0" -P -m node.cli init "$1" --json >&-'
    command = ["sh", "-c", script, sys.executable, str(tmp_path / "run.toml")]
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
