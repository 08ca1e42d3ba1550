"""One node of the demo as its parent holds it: two processes, a pipe each way, a log file."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from node.demo.events import LINE_BYTES_MAX
from node.processes.children import child_environment
from protocol.errors import StateError

_READ_BYTES = 64 * 1024
_LEAVE_GRACE_S = 1.2
"""For a clean leave. With the second that killing takes all of it stays below three."""

WAIT_SEATS_S = 60.0
"""How long the founder waits for the others. Where cores are free they are there in seconds."""

NODE_COMMAND = (sys.executable, "-P", "-m", "node.network_main")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetting:
    """What one node is started with. `bootstrap` is the only address that it is told."""

    state: Path
    manifest: Path
    log: Path
    bootstrap: str | None
    wait_seats: int = 0
    threads: int = 1
    validate_every: int = 1
    switches: tuple[str, ...] = ()
    command: tuple[str, ...] = NODE_COMMAND

    def arguments(self) -> list[str]:
        """The command line."""
        line = [*self.command, "--state", str(self.state), "--manifest", str(self.manifest)]
        line += ["--listen", "/ip4/127.0.0.1/tcp/0", "--threads", str(self.threads)]
        # Five small models share a GPU badly, and in bf16 the tuned numbers are others.
        line += ["--device", "cpu"]
        line += ["--validate-every", str(self.validate_every), "--events"]
        if self.bootstrap is None:
            line += ["--wait-seats", str(self.wait_seats), "--wait-seats-s", str(WAIT_SEATS_S)]
        else:
            line += ["--bootstrap", self.bootstrap]
        for switch in self.switches:
            line += ["--test-switch", switch]
        return line


class NodeProcess:
    """A started node. Its standard input stays open as long as we live: that is its lifeline."""

    def __init__(self, name: str, process: trio.Process, log: Path) -> None:
        assert process.stdin is not None
        self.name = name
        self.log = log
        self.is_ending = False
        """Whether it has been told to end, or killed: then its end is no news."""
        self._process = process
        self._stdin = process.stdin

    @property
    def pid(self) -> int:
        """Process id of the network process."""
        return self._process.pid

    async def lines(self) -> AsyncIterator[bytes]:
        """What it prints, line by line, until it ends; a line beyond the bound is dropped."""
        stdout = self._process.stdout
        assert stdout is not None
        rest = b""
        with suppress(trio.BrokenResourceError):
            while data := await stdout.receive_some(_READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > LINE_BYTES_MAX:
                    rest = b""

    async def exit_status(self) -> int:
        """Wait for the network process."""
        return await self._process.wait()

    def kill(self, trainer_pid: int | None) -> None:
        """End both processes at once, as a power cut would."""
        self.is_ending = True
        self._process.kill()
        if trainer_pid is not None:
            # On Windows every signal but the console's means TerminateProcess.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(trainer_pid, getattr(signal, "SIGKILL", signal.SIGTERM))

    async def end(self, trainer_pid: int | None) -> None:
        """Ask it to leave, and kill both processes if it does not; within two seconds.

        Runs to its end even when cancelled.
        """
        self.is_ending = True
        with trio.CancelScope(shield=True):
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                with trio.move_on_after(_LEAVE_GRACE_S):
                    await self._stdin.send_all(b"leave\n")
            with trio.move_on_after(_LEAVE_GRACE_S):
                await self._process.wait()
            if self._process.returncode is None:
                self.kill(trainer_pid)
            await self._process.wait()
            await self._stdin.aclose()


async def start_node(name: str, setting: NodeSetting) -> NodeProcess:
    """Start a node. Raises StateError if this machine cannot start one more process."""
    log = setting.log.open("ab")
    with log:
        try:
            process = await trio.lowlevel.open_process(
                setting.arguments(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(),
            )
        except OSError as error:
            raise StateError(f"node {name} cannot be started: {error}") from error
    return NodeProcess(name, process, setting.log)
