"""Bytes of a model on their way to a terminal: valid UTF-8, and nothing that a terminal obeys."""

import codecs
from typing import BinaryIO

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
