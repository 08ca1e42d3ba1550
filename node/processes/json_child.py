"""A child process that says what it finds, one JSON object per line of its standard output."""

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import BinaryIO

import trio

from node.processes.children import child_environment, end_child

Line = dict[str, object]

_READ_BYTES = 64 * 1024


async def run_json_child(
    arguments: Sequence[str], hear: Callable[[Line], None], *, stderr: BinaryIO | None = None
) -> int:
    """One child from its start to its end; `hear` gets each object. Its exit status.

    `stderr` is where its standard error goes, ours if None. Whatever ends us, it does not outlive
    us: its standard input is the pipe that tells it so.
    """
    process = await trio.lowlevel.open_process(
        list(arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=child_environment(),
    )
    try:
        assert process.stdout is not None
        rest = b""
        while data := await process.stdout.receive_some(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                hear(json.loads(line))
        return await process.wait()
    finally:
        await end_child(process)


def number(value: object) -> float:
    """A number of a line."""
    assert isinstance(value, int | float)
    return float(value)
