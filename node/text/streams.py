"""Standard output, where a command's answers go: where it takes no more, that is said in words.

What a model makes goes there as valid UTF-8, with nothing in it that a terminal obeys.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from protocol.errors import first_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
import codecs


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
