"""How much of a log libraries may fill: so many lines of each in a while, and then a count.

What a stranger does may have a library complain, with a traceback each time: a thousand times a
second, whoever it is that does it. Our own lines have their own bounds, where they are written.
"""

import logging
import time
from dataclasses import dataclass

LINES_MAX, WINDOW_S = 10, 60.0
LIBRARIES_MAX = 256
"""Names are a program's own, and few; whatever makes them up is counted as one."""


@dataclass(slots=True)
class _Window:
    began_s: float
    num_lines: int = 0
    num_left_out: int = 0


class LibraryLines:
    """Pure: which records of libraries are written. Times never go back."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def take(self, library: str, now_s: float) -> tuple[bool, int]:
        """Whether a line of `library` is written now, and how many were left out before it that
        nobody was told of."""
        if library not in self._windows and len(self._windows) >= LIBRARIES_MAX:
            library = ""
        window = self._windows.setdefault(library, _Window(now_s))
        told = 0
        if now_s - window.began_s >= WINDOW_S:
            told = window.num_left_out
            window = self._windows[library] = _Window(now_s)
        if window.num_lines >= LINES_MAX:
            window.num_left_out += 1
            return False, 0
        window.num_lines += 1
        return True, told

    def left_out(self) -> list[tuple[str, int]]:
        """By library what was left out and is not told yet; after that it is."""
        found = [(name, one.num_left_out) for name, one in sorted(self._windows.items())]
        for one in self._windows.values():
            one.num_left_out = 0
        return [(name, count) for name, count in found if count]


class LibraryFilter:
    """The filter of one handler: ours pass, libraries' warnings so many a minute, others not."""

    def __init__(self, handler: logging.Handler, ours: tuple[str, ...]) -> None:
        self._handler = handler
        self._ours = ours
        self._lines = LibraryLines()

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether the handler writes a record."""
        library = record.name.partition(".")[0]
        if library in self._ours:
            return True
        if record.levelno < logging.WARNING:
            return False
        is_written, num_left_out = self._lines.take(library, time.monotonic())
        if num_left_out:
            self._tell(library, num_left_out)
        return is_written

    def close(self) -> None:
        """Tell what was left out last."""
        for library, count in self._lines.left_out():
            self._tell(library, count)

    def _tell(self, library: str, count: int) -> None:
        message, values = "library lines were left out library=%s count=%d", (library, count)
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, values, None)
        self._handler.handle(record)
