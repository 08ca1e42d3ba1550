"""How a node goes: it says goodbye to its peers, and within two seconds it is gone.

A voter whom the run cannot do without stays until others have its vote: `stay`, then `go`.
Until `begin` there is nobody to say goodbye to: a signal ends the process at once. The first signal
after it asks the node to leave; a second one ends the process, and so does LEAVE_S_MAX. Nothing is
lost by that: whatever must survive was on the disk before it was said.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType

import trio

from node.processes.interrupts import EXIT_BY_SIGNAL, end_at_once, handling

LEAVE_S_MAX = 1.6
"""From the wish to leave to the end of the process. What may take longer is a computation or a
disk, which no cancellation ends."""


class Departure:
    """One process's wish to leave. `handling_signals` around everything, `begin` inside trio."""

    def __init__(
        self, *, leave_s_max: float = LEAVE_S_MAX, end: Callable[[int], None] = os._exit
    ) -> None:
        """`end` ends the process with a status; a test stands in for it."""
        self.signal: int | None = None
        self._leave_s_max = leave_s_max
        self._end = end
        self._token: trio.lowlevel.TrioToken | None = None
        self._watchdog: threading.Timer | None = None
        self.asked = trio.Event()
        """Set once somebody wishes that this node leaves; what fails from then on is no news."""

        self.going = trio.Event()
        """Set once the node really goes: from then on it does not work any more."""

    @property
    def status(self) -> int:
        """Exit status: 128 and the signal's number where a signal asked, else 0."""
        return 0 if self.signal is None else EXIT_BY_SIGNAL + self.signal

    @property
    def signal_name(self) -> str:
        """What asked, in letters; empty if no signal did."""
        return "" if self.signal is None else signal.Signals(self.signal).name

    def handling_signals(self, *, but_interrupts: bool = False) -> AbstractContextManager[None]:
        """Act on the signals that ask a process to end, while the context lasts.

        `but_interrupts` leaves Ctrl+C alone, which goes to a whole group: to us and our parent.
        """
        return handling(self._on_signal, but=(signal.SIGINT,) if but_interrupts else ())

    def begin(self) -> None:
        """From now on a signal is a wish, which `asked` tells; called in the task of trio."""
        self._token = trio.lowlevel.current_trio_token()

    def ask(self) -> None:
        """Leave without a signal: whoever started this node said so."""
        self._start_watchdog()
        self.asked.set()

    def stay(self) -> None:
        """The node is needed for a while: the clock stands still until `go`."""
        self.done()
        self._watchdog = None

    def go(self) -> None:
        """Nothing holds the node any more: the clock runs, anew where it stood still."""
        self.going.set()
        self._start_watchdog()

    def done(self) -> None:
        """The node has left in time."""
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        token = self._token
        if token is None or self.signal is not None:
            end_at_once(number, frame)
        self.signal = number
        self._start_watchdog()
        try:
            token.run_sync_soon(self.asked.set, idempotent=True)
        except trio.RunFinishedError:
            end_at_once(number, frame)

    def _start_watchdog(self) -> None:
        # A thread and no task: the loop may be what is stuck.
        if self._watchdog is None:
            self._watchdog = threading.Timer(self._leave_s_max, self._expire)
            self._watchdog.daemon = True
            self._watchdog.start()

    def _expire(self) -> None:
        self._end(self.status)
