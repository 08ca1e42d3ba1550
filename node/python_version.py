"""Which Python this runs on. Pythons from 3.7 on can read it, and `node` itself."""

from __future__ import annotations

import sys

OLDEST, NEWEST = (3, 11), (3, 13)

EXIT_USAGE = 2


def require_python(version: tuple[int, ...] | None = None) -> None:
    """Say which Python is needed and end the process with status 2, unless it is this one.

    A SyntaxError or a missing module from the depths would say something else.
    """
    found = tuple(sys.version_info[:3]) if version is None else version
    if OLDEST <= found[:2] <= NEWEST:
        return
    here = ".".join(str(part) for part in found)
    sys.stderr.write(
        f"Barnraise needs Python 3.11, 3.12 or 3.13, and this is {here} ({sys.executable})\n"
    )
    sys.exit(EXIT_USAGE)
