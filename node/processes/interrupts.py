"""Signals that ask a process to end, and the end at once where there is nothing to put away."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], None]

EXIT_BY_SIGNAL = 128


def end_signals() -> tuple[signal.Signals, ...]:
    """Ctrl+C, a service manager's word, a closed terminal: those that this system has."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    found = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # nohup means it: a closed terminal is then no reason to end.
    return tuple(
        one for one in found if one.name != "SIGHUP" or signal.getsignal(one) is not signal.SIG_IGN
    )


@contextmanager
def handling(handler: Handler, *, but: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """`handler` for all of them but some while the block runs. In the main thread only."""
    before = {one: signal.signal(one, handler) for one in end_signals() if one not in but}
    try:
        yield
    finally:
        for one, old in before.items():
            signal.signal(one, old)


def end_now(status: int) -> NoReturn:
    """End a node's process that has put everything away: tearing Python down takes up to a second.

    Nothing of ours waits for that, and no library of ours needs it.
    """
    for stream in (sys.stdout, sys.stderr):
        # Either may be closed, or its reader gone.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def end_at_once_from_now_on() -> None:
    """For a process that has done all it had to: its last steps are not to show a traceback."""
    for one in end_signals():
        signal.signal(one, end_at_once)


def end_at_once(number: int, frame: FrameType | None = None) -> NoReturn:
    """End the process now. Files are written whole or not at all, so nothing is torn.

    A KeyboardInterrupt would show a traceback of whatever is being imported, or be taken for a
    failure of it.
    """
    del frame
    os._exit(EXIT_BY_SIGNAL + number)
