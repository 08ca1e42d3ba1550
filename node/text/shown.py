"""Text that others wrote, made fit for a line of a log, a terminal or a page of JSON.

JSON is what every reader takes: numbers that are none, such as a loss that diverged, are null.
"""

import dataclasses
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Mapping


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
