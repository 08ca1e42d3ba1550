"""Text that others wrote, made fit for a line of a log, a terminal or a page of JSON."""

import shlex
import subprocess
import sys


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
