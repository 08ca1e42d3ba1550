"""One sitting in the laboratory: options checked, a folder claimed, and run until it is over or a
signal comes."""

import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import trio
from rich.console import Console

from node.processes.interrupts import EXIT_BY_SIGNAL, handling
from protocol.errors import BarnraiseError, ConfigError

if TYPE_CHECKING:
    # libp2p brings stubs of trio that hide trio's own types; they know it by this name.
    from trio_typing import TaskStatus

_ROOT = Path(__file__).parent.parent.parent

Tell = Callable[[str], None]
"""Takes a line about what happens."""


def check_range(option: str, value: float | None, low: float, high: float) -> None:
    """Raises ConfigError for an option out of its bounds; None is one that was not given."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{option} {value} is not in {low}..{high}")


def check_choice(option: str, value: str | None, known: Iterable[str]) -> None:
    """Raises ConfigError for a name that there is not; None is one that was not given."""
    if value is not None and value not in known:
        raise ConfigError(f"{option} {value!r} is none of {', '.join(known)}")


def check_signal(option: str, name: str) -> None:
    """Raises ConfigError where this system has no such signal, which the option needs."""
    if not hasattr(signal, name):
        raise ConfigError(f"{option}: this system has no signal that does it")


def claim_folder(folder: Path, *parts: str, is_fresh: bool = True) -> None:
    """Make a folder with these parts. Raises ConfigError for one that cannot be used, and, if it
    is to be fresh, for one in which something lies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_fresh and any(folder.iterdir()):
            raise ConfigError(f"--out {folder} is not empty: name a new folder")
        for part in parts:
            (folder / part).mkdir()
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be used: {error.strerror}") from error


def clear_nodes(folder: Path) -> None:
    """Remove the nodes' keys and checkpoints, which take much space; traces and logs stay."""
    # A file that Windows still holds open is no reason to fail.
    shutil.rmtree(folder / "nodes", ignore_errors=True)


class Interrupted(Exception):
    """A signal ended the sitting; no process is left."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.status = EXIT_BY_SIGNAL + number


def run_until_signal(play: Callable[[], Awaitable[None]]) -> None:
    """Run it; Ctrl+C and SIGTERM end it cleanly. Raises Interrupted, and its BarnraiseErrors."""
    received: list[int] = []
    failure: BarnraiseError | None = None

    async def watch(
        scope: trio.CancelScope, task_status: "TaskStatus[None]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                received.append(number)
                scope.cancel()

    async def main() -> None:
        nonlocal failure
        async with trio.open_nursery() as nursery:
            # Before it plays: a signal that comes while it makes folders is to end it as well.
            await nursery.start(watch, nursery.cancel_scope)
            try:
                await play()
            except BarnraiseError as error:
                failure = error
            nursery.cancel_scope.cancel()

    trio.run(main)
    if received:
        raise Interrupted(received[0])
    if failure is not None:
        raise failure


@contextmanager
def until_signal() -> Iterator[None]:
    """Ctrl+C and SIGTERM leave the block, which puts away what it began. Raises Interrupted.

    For what blocks; what runs tasks has `run_until_signal`.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise Interrupted(number)

    with handling(leave):
        yield


async def keep_ticking(tick: Callable[[], None]) -> None:
    """Call it a few times a second, for what people watch."""
    while True:
        tick()
        await trio.sleep(0.3)


@dataclass(frozen=True, slots=True)
class Teller:
    """Lines about what happens, with the seconds since the command was given."""

    console: Console
    now_s: Callable[[], float]

    def __call__(self, line: str) -> None:
        """Tell one."""
        self.console.print(f"{self.now_s():7.1f} s  {line}", markup=False, soft_wrap=True)


def clock() -> Callable[[], float]:
    """Seconds since this was called."""
    began_s = time.monotonic()
    return lambda: time.monotonic() - began_s


def commit_named() -> str:
    """The commit of this source tree, with a plus where it was changed; empty if there is none."""
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        found = subprocess.run(
            [git, "-C", str(_ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def rounded(value: float | None, digits: int = 3) -> float | None:
    """Rounded for a report; None stays."""
    return None if value is None else round(value, digits)
