"""Text that others wrote, made fit for a line of a log, a terminal or a page of JSON.

JSON is what every reader takes: numbers that are none, such as a loss that diverged, are null. What
goes to standard output passes through here as well: where that takes no more, it is said in words,
and what a model makes is valid UTF-8, with nothing in it that a terminal obeys.
"""

import dataclasses
import io
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from protocol.errors import first_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
import codecs


def as_word(text: str) -> str:
    """`text` as one word of a command that the user may paste: quoted where a shell would cut."""
    return subprocess.list2cmdline([text]) if sys.platform == "win32" else shlex.quote(text)


def shown(text: str, characters_max: int = 200) -> str:
    """`text` on one line: what cannot be printed is escaped, what is too long is cut.

    Escaped are control characters, line ends of any script, marks that turn the direction of the
    text, and halves of surrogate pairs, so that no peer forges a line or moves a cursor.
    """
    cut = text if len(text) <= characters_max else text[: characters_max - 1] + "…"
    return escaped(cut)


def escaped(text: str, kept: str = "") -> str:
    """`text`, of any length, with what cannot be printed escaped, all but the characters `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else _code_of(c) for c in text)


def _code_of(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def counted(number: int, noun: str) -> str:
    """So many of them, in words that fit one as well."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def json_text(body: object) -> str:
    """One line. Raises TypeError for what JSON has no form of."""
    return json.dumps(to_plain(body), allow_nan=False)


def to_plain(value: object) -> object:
    """What `json` takes: records as dicts, tuples as lists, no NaN and no infinity."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        # A tuple is of one kind. Ids of peers are nearly all there is in a table of rounds.
        is_text = isinstance(value, tuple) and bool(value) and isinstance(value[0], str)
        return list(value) if is_text else [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Output(io.BufferedIOBase):
    """The bytes of standard output, with the error that was its own: a full disk's, a terminal's.

    Such an error is no bug, and looks like any other OSError by the time it comes to whoever ends
    the process. Of a reader that is gone another error tells, which most know what to do with.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.failure: OSError | None = None
        self.has_written = False

    def write(self, data: "ReadableBuffer", /) -> int:
        """As any stream; the error is kept, and raised."""
        with self._keeping_failure():
            self.has_written = True
            return self._out.write(data)

    def flush(self) -> None:
        """As any stream; the error is kept, and raised."""
        with self._keeping_failure():
            self._out.flush()

    def writable(self) -> bool:
        """Always."""
        return True

    @property
    def name(self) -> str:
        """What libraries call it by."""
        return "<stdout>"

    def fileno(self) -> int:
        """Of the file behind it."""
        return self._out.fileno()

    def isatty(self) -> bool:
        """Whether that is a terminal."""
        return self._out.isatty()

    def is_to_blame(self, error: BaseException) -> bool:
        """Whether this error, or the first of this group, is of this stream."""
        first = first_of(error) if isinstance(error, BaseExceptionGroup) else error
        return self.failure is not None and first is self.failure

    @property
    def why(self) -> str:
        """The failure in the system's words."""
        return "" if self.failure is None else self.failure.strerror or str(self.failure)

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            self.failure = error
            raise


def take_standard_streams() -> Output | None:
    """Put an Output behind standard output; None where that is closed, or a test's.

    Streams that are closed get what takes and gives nothing. Letters that the terminal's encoding
    lacks are replaced.
    """
    is_closed = sys.stdout is None
    # In this order: each takes the lowest number that is free. Were one left closed, the next file
    # that is opened would have its number, and children would write into it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    out = sys.stdout
    if is_closed or not isinstance(out, io.TextIOWrapper):
        return None
    encoding, is_line_buffered, is_unbuffered = out.encoding, out.line_buffering, out.write_through
    output = Output(out.detach())
    # The old one lost its buffer, and libraries ask both names.
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]  # as Python's own start
        output,
        encoding=encoding,
        errors="replace",
        line_buffering=is_line_buffered,
        write_through=is_unbuffered,
    )
    return output


_KEPT = "\n\t"
_REPLACEMENT = "\ufffd"


class TextOut:
    """Takes bytes one by one and writes the text that they make up as soon as it is complete.

    What is no UTF-8 becomes U+FFFD. So do control characters but line ends and tabs: the weights
    come from strangers, and an escape sequence may rename a window or hide a line.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data: bytes) -> None:
        """Some more bytes."""
        self._put(self._decoder.decode(data))

    def end(self) -> None:
        """No more bytes; a character that was begun becomes U+FFFD. Ends the line."""
        self._put(self._decoder.decode(b"", final=True) + "\n")

    def _put(self, text: str) -> None:
        if text:
            self._out.write(harmless(text).encode("utf-8"))
            self._out.flush()


def harmless(text: str) -> str:
    """`text` without control characters but line ends and tabs."""
    # Format characters stay: joiners belong to words of many scripts. Not so those that turn the
    # direction of what follows.
    return "".join(_REPLACEMENT if _is_obeyed(c) else c for c in text)


def _is_obeyed(character: str) -> bool:
    code = ord(character)
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    turns = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return (is_control and character not in _KEPT) or turns
