"""The loop of a network process, on a clock that goes on while the machine is suspended.

Python's monotonic clock stands still then on Linux and macOS. A laptop that wakes after a night
would take all its peers for alive and its own signatures for fresh (R3), renew what its router and
the directory have long forgotten when the rest of the hour is over, and wait for answers that
nobody sends any more. So its processes see what a frozen one sees, and do what that does.
"""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio
import trio.abc

from training.numeric.memory import keep_freed_memory

_Words = TypeVarTuple("_Words")


def _boot_time_s() -> float:
    if not hasattr(time, "clock_gettime"):
        return time.perf_counter()  # That of Windows counts what it slept.
    # Darwin's CLOCK_MONOTONIC goes on, unlike `time.monotonic` there.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class BootClock(trio.abc.Clock):
    """Seconds since some moment, suspended ones as well; `read` tells them."""

    def __init__(self, read: Callable[[], float] = _boot_time_s) -> None:
        self._read = read

    def start_clock(self) -> None:
        """See trio's Clock."""

    def current_time(self) -> float:
        """See trio's Clock."""
        return self._read()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See trio's Clock. What is left when the machine falls asleep the system waits for behind
        that, but a node's core asks to be woken a few times a second."""
        return deadline - self._read()


def run_loop(main: Callable[[*_Words], Awaitable[None]], *words: *_Words) -> None:
    """Run a network process to its end."""
    keep_freed_memory()
    trio.run(main, *words, clock=BootClock())
