"""Waiting for peers that are away, in front of a person: why, and how long until the next try."""

import trio

from node.reporting.people import say
from node.reporting.terminal import PeopleConsole
from node.status.board import EventLog

PAUSE_FIRST_S, PAUSE_MAX_S = 5, 30
"""Until the next try: more from time to time, as whoever is away longer stays away longer."""


class Countdown:
    """The pauses between the tries of one command. Ctrl+C ends the process in the middle of one."""

    def __init__(self, console: PeopleConsole, log: EventLog) -> None:
        self._console = console
        self._log = log
        self._pause_s = PAUSE_FIRST_S
        self._said = ""

    async def pause(self, why: str) -> None:
        """Say what failed, unless it is what failed before, and wait until it is time to try."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        self._log.emit("waiting", again_s=pause_s, reason=why)
        if why != self._said:
            self._said = why
            say(self._console, why)
        if not self._console.is_terminal:
            say(self._console, _line(pause_s))
            await trio.sleep(pause_s)
            return
        for left_s in range(pause_s, 0, -1):
            self._show(_line(left_s))
            await trio.sleep(1.0)
        self._show(" " * len(_line(pause_s)))

    def _show(self, line: str) -> None:
        try:
            self._console.overwrite(line)
        except OSError:
            self._console.quiet = True


def _line(left_s: int) -> str:
    return f"tries again in {left_s} s; Ctrl+C ends"
