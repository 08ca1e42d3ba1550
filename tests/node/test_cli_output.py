"""What a command writes, on terminals of all kinds."""

import subprocess
import sys
from pathlib import Path

from node.processes.children import child_environment


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "node.cli", "init", str(tmp_path / "日.toml")]
    environment = child_environment() | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?.toml is written" in done.stdout
