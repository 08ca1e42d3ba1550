"""Nodes as their parent holds them: two processes each, a pipe each way, a log file."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from node.processes.children import child_environment, read_lines
from protocol.errors import ConfigError, StateError
from sim.processes.events import LINE_BYTES_MAX, Event, TrainerStarted, parse_event

_LEAVE_GRACE_S = 1.2
"""For a clean leave. With the second that killing takes all of it stays below three."""

NODE_COMMAND = (sys.executable, "-P", "-m", "node.network_main")

TEST_SWITCHES = ("own-update", "flip-byte", "skip-outer-state", "no-directory")
"""For tests only: each breaks a node on purpose, to show that the laboratory's checks can fail.

own-update        the aggregate is replaced by one's own update
flip-byte         one byte of one part is flipped on its way
skip-outer-state  the outer state is skipped when a joiner synchronises
no-directory      looking peers up in the DHT finds nobody
"""

TAIL_LINES = 12
_TAIL_BYTES = 8192
_LINE_CHARACTERS_MAX = 400


class NodeProcess:
    """A started node. Its standard input stays open as long as we live: that is its lifeline."""

    def __init__(self, name: str, process: trio.Process, log: Path) -> None:
        assert process.stdin is not None
        self.name = name
        self.log = log
        self.trainer_pid: int | None = None
        """Of its second process, once `events` has told of it."""

        self.is_ending = False
        """Whether it has been told to end, or killed: then its end is no news."""

        self._process = process
        self._stdin = process.stdin

    @property
    def pid(self) -> int:
        """Process id of the network process."""
        return self._process.pid

    async def events(self) -> AsyncIterator[Event]:
        """What it tells until it ends."""
        async for line in read_lines(self._process, longest=LINE_BYTES_MAX):
            event = parse_event(line)
            if isinstance(event, TrainerStarted):
                self.trainer_pid = event.pid
            if event is not None:
                yield event

    async def exit_status(self) -> int:
        """Wait for the network process."""
        return await self._process.wait()

    def signal_both(self, number: int) -> None:
        """To both processes, as far as they live."""
        for pid in (self.pid, self.trainer_pid):
            _signal(pid, number)

    def kill(self, part: str = "node") -> None:
        """End both processes at once, as a power cut would; or the "network" process alone, or the
        "trainer", of which the other one ends."""
        self.is_ending = True
        if part != "trainer":
            self._process.kill()
        if part != "network":
            # On Windows every signal but the console's means TerminateProcess.
            _signal(self.trainer_pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    async def end(self) -> None:
        """Ask it to leave, and kill both processes if it does not; within two seconds, and also
        where it was frozen.

        Runs to its end even when cancelled.
        """
        self.is_ending = True
        with trio.CancelScope(shield=True):
            if hasattr(signal, "SIGCONT"):
                self.signal_both(signal.SIGCONT)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                with trio.move_on_after(_LEAVE_GRACE_S):
                    await self._stdin.send_all(b"leave\n")
            with trio.move_on_after(_LEAVE_GRACE_S):
                await self._process.wait()
            if self._process.returncode is None:
                self.kill()
            await self._process.wait()
            await self._stdin.aclose()


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


async def start_node(name: str, arguments: Sequence[str], log: Path) -> NodeProcess:
    """Start a node. Raises StateError if this machine cannot start one more process."""
    with log.open("ab") as stderr:
        try:
            process = await trio.lowlevel.open_process(
                list(arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=child_environment(),
            )
        except OSError as error:
            raise StateError(f"node {name} cannot be started: {error}") from error
    return NodeProcess(name, process, log)


async def end_nodes(processes: Iterable[NodeProcess | None]) -> None:
    """End all of them side by side; runs to its end even when cancelled."""
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for process in processes:
                if process is not None:
                    nursery.start_soon(process.end)


class ChangeBell:
    """Wakes those who wait for something that nodes tell."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def tell_change(self) -> None:
        """Something changed that somebody may wait for."""
        self._rung.set()
        self._rung = trio.Event()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Until that holds; looked at whenever a node tells something."""
        while not is_reached():
            await self._rung.wait()


def check_test_switch(switch: str | None) -> None:
    """Raises ConfigError for a switch that no node has."""
    if switch is not None and switch not in TEST_SWITCHES:
        raise ConfigError(f"no test switch {switch!r}; {', '.join(TEST_SWITCHES)}")


def node_name(number: int) -> str:
    """A, B, ..., Z, AA, AB, ...: what a node is called in front of people."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def log_tail(path: Path) -> str:
    """The last lines of a child's log, indented and made printable, for a message to people; a log
    that cannot be read says so."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
        lines = text.splitlines()[-TAIL_LINES:] or ["(an empty log)"]
        return "\n".join(f"  {_printable(line)}" for line in lines)
    return "  (no log)"


def _printable(line: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in line)
    return shown[:_LINE_CHARACTERS_MAX]
