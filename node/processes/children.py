"""Child processes: what they inherit, how many threads they get, what they say, and how they end.

Children that measure something say what they find, one JSON object per line of standard output.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import trio

from protocol.errors import StateError, first_of
from training.channel.child_process import ONE_BLAS_THREAD

_CLOSE_GRACE_S = 0.25
_TERMINATE_GRACE_S = 0.25
"""Closed pipe, then terminate, then kill: together well under the second we promise."""

_READ_BYTES = 64 * 1024

JsonLine = dict[str, Any]
"""One object that a child says."""


def trainer_threads(nodes_on_host: int) -> int:
    """The thread budget of each trainer when `nodes_on_host` of them share this machine."""
    return max(1, (os.cpu_count() or 1) // max(1, nodes_on_host))


def child_environment() -> dict[str, str]:
    """Our environment, with the folder that holds our packages on the child's path, and BLAS held
    to one thread: trainers set a budget of their own.

    An installed package is found anyway; naming its folder would put every library in it before
    the standard library.
    """
    environment = os.environ | ONE_BLAS_THREAD
    root = Path(sys.modules[__name__.partition(".")[0]].__path__[0]).resolve().parent
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    if root not in installed:
        parts = [str(root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    return environment


async def read_lines(process: trio.Process, *, longest: int = sys.maxsize) -> AsyncIterator[bytes]:
    """What a child prints, line by line, until it ends; a line of more bytes is dropped."""
    assert process.stdout is not None
    rest = b""
    with suppress(trio.BrokenResourceError):
        while data := await process.stdout.receive_some(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line
            if len(rest) > longest:
                rest = b""


async def end_child(process: trio.Process) -> None:
    """End a child and close its pipes, whatever it does and even when cancelled; within a second.

    First its standard input closes, which our children take as the word to end.
    """
    with trio.CancelScope(shield=True):
        if process.stdin is not None:
            await process.stdin.aclose()
        for grace_s, harder in (
            (_CLOSE_GRACE_S, process.terminate),
            (_TERMINATE_GRACE_S, process.kill),
        ):
            with trio.move_on_after(grace_s):
                await process.wait()
            if process.returncode is not None:
                break
            harder()
        await process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                await pipe.aclose()


class JsonChild:
    """A running child that says JSON objects; it is asked by lines of its standard input."""

    def __init__(self, what: str, process: trio.Process) -> None:
        """`what` names it in errors, such as "an end of the link"."""
        self.pid = process.pid
        self._what = what
        self._process = process
        self._rest = b""

    async def hear(self, within_s: float = float("inf")) -> JsonLine:
        """The next object. Raises StateError when it has ended instead, or says nothing so long."""
        assert self._process.stdout is not None
        with trio.move_on_after(within_s):
            while b"\n" not in self._rest:
                data = await self._process.stdout.receive_some(_READ_BYTES)
                if not data:
                    status = await self._process.wait()
                    raise StateError(f"{self._what} ended with status {status}")
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\n")
            said: JsonLine = json.loads(line)
            return said
        raise StateError(f"{self._what} said nothing for {within_s:.0f} s")

    async def ask(self, words: str, within_s: float = float("inf")) -> JsonLine:
        """One line to it, and what it says next. Raises StateError as `hear` does."""
        assert self._process.stdin is not None
        # Of a child that has died its end is read next.
        with suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(words.encode() + b"\n")
        return await self.hear(within_s)

    async def close_input(self) -> None:
        """Tell it that nothing more will be asked."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()


@asynccontextmanager
async def open_json_child(
    arguments: Sequence[str], what: str, *, is_killed: bool = False
) -> AsyncIterator[JsonChild]:
    """A child that does not outlive the block; Ctrl+C is ours to understand. One that has nothing
    to put away `is_killed` at its end, and says no word of how its connections break."""
    process = await _start(arguments, None, in_session=True)
    try:
        yield JsonChild(what, process)
    finally:
        if is_killed:
            process.kill()
        await end_child(process)


async def run_json_child(
    arguments: Sequence[str], hear: Callable[[JsonLine], None], *, stderr: BinaryIO | None = None
) -> int:
    """One child from its start to its end; `hear` gets each object. Its exit status.

    `stderr` is where its standard error goes, ours if None. Whatever ends us, it does not outlive
    us: its standard input is the pipe that tells it so.
    """
    process = await _start(arguments, stderr, in_session=False)
    try:
        async for line in read_lines(process):
            hear(json.loads(line))
        return await process.wait()
    finally:
        await end_child(process)


async def _start(
    arguments: Sequence[str], stderr: BinaryIO | None, *, in_session: bool
) -> trio.Process:
    # Shielded: a cancelled start would leave a process that nobody knows.
    with trio.CancelScope(shield=True):
        return await trio.lowlevel.open_process(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=child_environment(),
            start_new_session=in_session,
        )


def number(value: object) -> float:
    """A number of a line."""
    assert isinstance(value, int | float)
    return float(value)


@asynccontextmanager
async def first_error_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery of tasks that may raise StateError: the first one is raised, and no group.

    What follows from it is not the story.
    """
    found: list[BaseException] = []
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except* StateError as group:
        found.append(first_of(group))
    if found:
        # Out here: Pythons before 3.11.4 wrap what is raised inside of `except*`.
        raise found[0] from None
