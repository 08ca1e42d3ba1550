"""`barnraise demo` as people run it: a process of its own, and all that it starts."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-P", "-m", "node.cli", "demo"]
TIMEOUT_S = 280.0


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A demo that has come to its end."""

    status: int
    report: dict[str, Any]
    progress: str


def run_demo(folder: Path, *arguments: str) -> Ended:
    """Run it with `--json`, elsewhere than in the source tree."""
    done = subprocess.run(
        [*COMMAND, "--json", "--out", str(folder / "demo"), *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-4000:]
    return Ended(status=done.returncode, report=json.loads(lines[-1]), progress=done.stderr)


@dataclass(slots=True)
class Running:
    """A demo under way; `folder` is in the command line of every process of it."""

    process: subprocess.Popen[str]
    folder: Path

    def wait_for(self, words: str) -> None:
        """Until a line of its output has these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"the demo ended before it said {words!r}")

    def processes(self) -> list[int]:
        """Ids of all processes that live and belong to it."""
        return [pid for pid, line in command_lines() if str(self.folder) in line]

    def wait_until_gone(self, limit_s: float) -> float:
        """Seconds until no process is left. Fails after `limit_s`."""
        began_s = time.monotonic()
        while left := self.processes():
            spent_s = time.monotonic() - began_s
            assert spent_s < limit_s, f"after {spent_s:.1f} s these still run: {left}"
            threading.Event().wait(0.05)
        return time.monotonic() - began_s


@contextmanager
def running_demo(folder: Path, *arguments: str) -> Iterator[Running]:
    """A demo in a process group of its own, as a terminal would start it; killed at the end."""
    out = folder / "demo"
    process = subprocess.Popen(
        [*COMMAND, "--out", str(out), *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    demo = Running(process, out)
    try:
        yield demo
    finally:
        for pid in demo.processes():
            os.kill(pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def command_lines() -> list[tuple[int, str]]:
    """Process id and command line of every process that is not a zombie."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [(int(row[0]), row[2]) for row in rows if len(row) == 3 and not row[1].startswith("Z")]
