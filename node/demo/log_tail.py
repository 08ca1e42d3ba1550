"""The end of a child's log, for a message to people."""

from contextlib import suppress
from pathlib import Path

LINES_SHOWN = 12
_TAIL_BYTES = 8192
_LINE_CHARACTERS_MAX = 400


def log_tail(path: Path) -> str:
    """The last lines, indented and made printable; a log that cannot be read says so."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
        lines = text.splitlines()[-LINES_SHOWN:] or ["(an empty log)"]
        return "\n".join(f"  {_printable(line)}" for line in lines)
    return "  (no log)"


def _printable(line: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in line)
    return shown[:_LINE_CHARACTERS_MAX]
