"""`barnraise init`, `run` and `join` as people run them: processes of a terminal's group."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.demo_command import command_lines, environment

COMMAND = [sys.executable, "-P", "-m", "node.cli"]
LOOPBACK = ("--listen", "/ip4/127.0.0.1/tcp/0")
LINK = re.compile(r"barnraise://join/[A-Za-z0-9_-]+")
WAIT_S = 120.0

SMALL = {
    "rounds": "6",
    "inner_steps": "10",
    "batch": "4",
    "warmup_steps": "4",
    "layers": "1",
    "width": "32",
    "deadline_floor_s": "3.0",
    "suspect_s": "5.0",
}
"""A model and rounds with which a run on a busy machine is over in seconds."""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def write_run_file(folder: Path, name: str = "run.toml", **changes: str) -> None:
    """What `barnraise init` writes, with some values changed."""
    done = command(folder, "init", name)
    assert done.returncode == 0, done.stderr
    text = (folder / name).read_text("utf-8")
    for key, value in changes.items():
        text, count = re.subn(rf"(?m)^(?:# )?{key} = \S+", f"{key} = {value}", text)
        assert count == 1, key
    (folder / name).write_text(text, "utf-8")


def founds_alone(state: Path, arguments: Sequence[str]) -> list[str]:
    """The words of a command; `run` waits for nobody unless its node.toml says for how many."""
    file = state / "node.toml"
    is_said = file.exists() and re.search(r"(?m)^start_with", file.read_text("utf-8"))
    is_alone = arguments[0] == "run" and not is_said and "--start-with" not in arguments
    return [*arguments, *(["--alone"] if is_alone else [])]


class NodeCommand:
    """A node in the foreground of a terminal: its own process group, its output in a file."""

    def __init__(
        self, folder: Path, state: str, *arguments: str, inside: Sequence[str] = ()
    ) -> None:
        """`inside` is a command that runs the command behind it, on another machine as it were."""
        self.state = folder / state
        self._log = folder / f"{state}.out"
        # What an earlier start of the same state said is not this one's.
        self._start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *inside,
                    *COMMAND,
                    *founds_alone(self.state, arguments),
                    "--state",
                    str(self.state),
                ],
                cwd=folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """Everything that this start has printed."""
        return self._log.read_bytes()[self._start :].decode("utf-8", "replace")

    def wait_for(self, pattern: str, count: int = 1) -> str:
        """Until the output matches so often; the last match."""
        began_s = time.monotonic()
        while len(found := re.findall(pattern, self.said())) < count:
            assert self.process.poll() is None, self.said()[-4000:]
            assert time.monotonic() - began_s < WAIT_S, self.said()[-4000:]
            wait(0.05)
        return str(found[-1])

    def link(self) -> str:
        """The invite link that it prints."""
        return self.wait_for(LINK.pattern)

    def send(self, number: int) -> None:
        """A signal as the terminal sends it: to the whole group."""
        os.killpg(self.process.pid, number)

    def interrupt(self, number: int = signal.SIGINT) -> float:
        """Seconds from the signal until no process of the node is left."""
        began_s = time.monotonic()
        self.send(number)
        self.process.wait(WAIT_S)
        return wait_until_gone(self.state, began_s)

    def power_cut(self) -> None:
        """Both processes are gone at once."""
        for pid in processes(self.state):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(WAIT_S)

    def exit_status(self) -> int:
        """Wait for its end."""
        return self.process.wait(WAIT_S)


@contextmanager
def node(
    folder: Path, state: str, *arguments: str, inside: Sequence[str] = ()
) -> Iterator[NodeCommand]:
    """A node that is not there any more when the block ends."""
    one = NodeCommand(folder, state, *arguments, inside=inside)
    try:
        yield one
    finally:
        one.power_cut()


def processes(state: Path) -> list[int]:
    """Ids of all processes that live and belong to a node."""
    return [pid for pid, line in command_lines() if str(state) in line]


def wait_until_gone(state: Path, began_s: float) -> float:
    """Seconds since `began_s` until none is left."""
    while left := processes(state):
        assert time.monotonic() - began_s < WAIT_S, left
        wait(0.02)
    return time.monotonic() - began_s


def wait(seconds: float) -> None:
    """For something that no event tells."""
    threading.Event().wait(seconds)
