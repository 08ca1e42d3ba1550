"""Child processes: what they inherit, how many threads they get, and how they end."""

import os
import sys
import sysconfig
from pathlib import Path

import trio

from training.channel.child_process import ONE_BLAS_THREAD

_CLOSE_GRACE_S = 0.25
_TERMINATE_GRACE_S = 0.25
"""Closed pipe, then terminate, then kill: together well under the second we promise."""


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
