"""Logs: one event, one line, on the console and in `node.log` with rotation.

    2026-11-20 12:40:18.123 INFO node.daemon.driver round sealed round=41 listed=14 wall_s=3.10

Callers write `logger.info("round sealed round=%d listed=%d", ...)`. Fields are read from that
pattern and its arguments, never from the finished text, so that a peer's text can neither end a
line nor pass for a field: it is escaped, cut, and in quotes where it has blanks. Whoever logs keeps
tokens and keys out; nothing here could know them.

Of libraries so many lines are written in a while, and then a count. What a stranger does may have a
library complain, with a traceback each time: a thousand times a second, whoever it is that does it.
Our own lines have their own bounds, where they are written.
"""

import json
import logging
import logging.handlers
import math
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self

from node.text.shown import shown
from protocol.errors import ConfigError

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
        message = "library lines were left out library=%s count=%d"
        self._handler.handle(_own_record(logging.WARNING, message, library, count))


LOG_FILE = "node.log"
FILE_BYTES_MAX = 4 * 1024 * 1024
FILES_KEPT = 5

VALUE_CHARACTERS_MAX = 400
LINE_CHARACTERS_MAX = 4000
TRACEBACK_LINES_MAX = 200

OURS = ("protocol", "dht", "training", "node", "sim", "barnraise", "__main__")
"""Loggers of the house, by the first part of their names (`barnraise` in a wheel, which holds the
other packages); all others are libraries'."""

# "name of the event a=%d b=%s": each blank-separated piece behind the name is a field. A name may
# have places itself.
_PLACE = r"%[-+#0]*\d*(?:\.\d+)?[sdifgx]"
_FIELD = rf"[A-Za-z_][A-Za-z0-9_]*={_PLACE}"
_EVENT = re.compile(rf"(?P<name>(?:[^%=]|{_PLACE})+) (?P<fields>{_FIELD}(?: {_FIELD})*)")


class Logs:
    """The logging of this process while it is open; `close` puts back what was there before."""

    def __init__(self, handlers: list[logging.Handler], level: int) -> None:
        self._handlers = handlers
        root = logging.getLogger()
        loggers = [root, *map(logging.getLogger, OURS), *_library_loggers()]
        self._before = [(each, each.level, each.propagate, each.handlers[:]) for each in loggers]
        self._last_resort, self._hook = logging.lastResort, sys.excepthook
        root.setLevel(logging.WARNING)
        for name in OURS:
            logging.getLogger(name).setLevel(level)
        for logger in _library_loggers():
            # py-libp2p sets levels, cuts its loggers off from the root and may hang handlers of its
            # own on them. It is to say what it has to say here, and only from WARNING on.
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
            logger.handlers.clear()
        for handler in handlers:
            root.addHandler(handler)
        # For loggers that a library cuts off later, or makes anew.
        logging.lastResort = _LastResort(handlers)
        sys.excepthook = self._log_uncaught

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_lost(self) -> int:
        """Lines that the file did not take since it last took one: the disk is full."""
        files = [each for each in self._handlers if isinstance(each, NodeLogFile)]
        return sum(each.num_lost for each in files)

    def close(self) -> None:
        """Write what is left, free the file. Call it once."""
        logging.lastResort, sys.excepthook = self._last_resort, self._hook
        root = logging.getLogger()
        for handler in self._handlers:
            for each in handler.filters:
                if isinstance(each, LibraryFilter):
                    each.close()
            root.removeHandler(handler)
            with suppress(OSError):
                handler.close()
        for logger, level, propagate, handlers in self._before:
            logger.setLevel(level)
            logger.propagate = propagate
            if logger is not root:
                logger.handlers[:] = handlers

    def _log_uncaught(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        """A bug: its traceback goes to the file as well, where the user will look."""
        if issubclass(kind, KeyboardInterrupt):
            self._hook(kind, error, traceback)
            return
        record = _own_record(logging.CRITICAL, "stopped by a bug")
        record.exc_info = (kind, error, traceback)
        for handler in self._handlers:
            if isinstance(handler, NodeLogFile):
                handler.handle(record)
        self._hook(kind, error, traceback)


def start_logging(
    folder: Path | None, *, log_json: bool, console: bool, level: int = logging.INFO
) -> Logs:
    """Log to `node.log` in `folder`, if there is one, and to stderr if `console`.

    `log_json` writes each event as a JSON object on a line. `level` is that of our own loggers;
    libraries are heard from WARNING on, whatever they set themselves. Call it after the imports,
    once per process. Raises ConfigError if the file cannot be opened.
    """
    handlers: list[logging.Handler] = []
    if folder is not None:
        try:
            handlers.append(NodeLogFile(folder / LOG_FILE))
        except OSError as error:
            raise ConfigError(
                f"cannot write the log {folder / LOG_FILE}: {error.strerror or error}"
            ) from error
    if console and sys.stderr is not None:
        handlers.append(_Console(sys.stderr))
    for handler in handlers:
        is_short = isinstance(handler, _Console)
        handler.setFormatter(JsonFormatter() if log_json else TextFormatter(is_short=is_short))
        handler.addFilter(LibraryFilter(handler, OURS))
    return Logs(handlers, level)


class TextFormatter(logging.Formatter):
    """Lines for people, in local time. A traceback follows on lines that begin with blanks.

    Short ones, for who watches, leave out the date, the logger, and the level of what is normal.
    """

    def __init__(self, *, is_short: bool) -> None:
        super().__init__()
        self._is_short = is_short

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines where there is a traceback."""
        name, fields = event_of(record)
        words = [name, *(f"{key}={_quoted(text)}" for key, (text, _) in fields.items())]
        when = datetime.fromtimestamp(record.created)
        if not self._is_short:
            time = when.isoformat(" ", "milliseconds")
            words = [time, record.levelname, record.name, *words]
        elif record.levelno == logging.INFO:
            words = [f"{when:%H:%M:%S}", *words]
        else:
            words = [f"{when:%H:%M:%S}", record.levelname, *words]
        line = " ".join(words)
        traced = "".join(f"\n    {each}" for each in _traceback(self, record))
        return shown(line, LINE_CHARACTERS_MAX) + traced


class JsonFormatter(logging.Formatter):
    """Lines for programs: `time` with its offset, `level`, `logger`, `event`, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object on one line."""
        when = datetime.fromtimestamp(record.created).astimezone()
        name, fields = event_of(record)
        body: dict[str, object] = {
            "time": when.isoformat("T", "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": shown(name, LINE_CHARACTERS_MAX),
        }
        if fields:
            body["fields"] = {key: value for key, (_, value) in fields.items()}
        traced = _traceback(self, record)
        if traced:
            body["traceback"] = traced
        return json.dumps(body)


Fields = dict[str, tuple[str, object]]
"""By name: the text as the pattern formats it, and the value as JSON may have it."""


def event_of(record: logging.LogRecord) -> tuple[str, Fields]:
    """The name of the event and its fields; a record of another form is all name.

    Raises TypeError or ValueError where pattern and arguments do not fit each other.
    """
    pattern = _pattern(record.msg) if isinstance(record.msg, str) else None
    values = record.args
    if pattern is None or not isinstance(values, tuple) or not values:
        return record.getMessage(), {}
    num_named = len(values) - len(pattern.fields)
    fields: Fields = {}
    for (key, place), value in zip(pattern.fields, values[num_named:], strict=True):
        text = shown(place % (value,), VALUE_CHARACTERS_MAX)
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        fields[key] = (text, value if is_number or value is None else text)
    return pattern.name % values[:num_named], fields


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The name of an event, and the key and the place of each of its fields."""

    name: str
    fields: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1024)
def _pattern(message: str) -> _Pattern | None:
    """What the message is made of; None where it is not of that form."""
    match = _EVENT.fullmatch(message)
    if match is None:
        return None
    places = (field.partition("=") for field in match["fields"].split(" "))
    return _Pattern(match["name"], tuple((key, place) for key, _, place in places))


def _quoted(text: str) -> str:
    """A value as one word: in quotes if a reader could take it for more than one."""
    is_word = text and not any(c in text for c in ' "=')
    return text if is_word else '"' + text.replace('"', "'") + '"'


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    """Lines of the traceback, the last ones if there are many; empty if there is none."""
    if not record.exc_info or record.exc_info[0] is None:
        return []
    lines = formatter.formatException(record.exc_info).split("\n")
    return [shown(line, LINE_CHARACTERS_MAX) for line in lines[-TRACEBACK_LINES_MAX:]]


class NodeLogFile(logging.handlers.RotatingFileHandler):
    """`node.log`, with rotation. A disk that is full costs lines and never the node.

    `num_lost` counts the lines lost since the last one that was written; once there is room again
    the file says how many are missing.
    """

    def __init__(self, path: Path) -> None:
        self.num_lost = 0
        super().__init__(
            path,
            maxBytes=FILE_BYTES_MAX,
            backupCount=FILES_KEPT - 1,
            encoding="utf-8",
            errors="backslashreplace",
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        lost = self.num_lost
        super().emit(record)
        if lost and self.num_lost == lost:
            self.num_lost = 0
            super().emit(_own_record(logging.WARNING, "log lines were lost count=%d", lost))

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a line that the disk did not take; a bug in a call is shown as ever."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        self.num_lost += 1
        self._let_go()

    def doRollover(self) -> None:
        """Start a new file, or go on with the old one where it cannot be renamed.

        On Windows it cannot while somebody looks at it.
        """
        try:
            super().doRollover()
        except OSError:
            self._let_go()
            self.stream = self._open()

    def _let_go(self) -> None:
        """Close the file. What stands in its buffer would fail again with each line to come."""
        stream, self.stream = self.stream, None
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.close()

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        if self.num_lost and _is_torn(Path(self.baseFilename)):
            stream.write("\n")
        return stream


class _Console(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs alone
    """Standard error, as long as somebody reads it."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Nobody to tell if it is the console that fails."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _LastResort(logging.Handler):
    """Where records go whose logger leads to no handler: to ours, and not to stderr as they are."""

    def __init__(self, handlers: list[logging.Handler]) -> None:
        super().__init__(logging.WARNING)
        self._handlers = handlers

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it on."""
        for handler in self._handlers:
            handler.handle(record)


def _own_record(level: int, message: str, *values: object) -> logging.LogRecord:
    """A record of this module that goes to a handler and past all loggers."""
    return logging.LogRecord(__name__, level, __file__, 0, message, values, None)


def _is_torn(path: Path) -> bool:
    """Whether the last line of the file has no end."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
    return False


def _library_loggers() -> list[logging.Logger]:
    known = logging.Logger.manager.loggerDict
    return [
        logger
        for name, logger in sorted(known.items())
        if isinstance(logger, logging.Logger) and name.partition(".")[0] not in OURS
    ]
