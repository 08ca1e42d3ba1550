"""Whether this machine's clock can be right. Looked at before anything else reads it: beyond the
year 2262 Python itself cannot, and says so by a traceback from wherever that is."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LATEST_S = 7_258_118_400.0
"""The year 2200: what expires is counted from now on, and must stay before 2262."""

EXIT_USAGE = 2


def require_clock(now_s: Callable[[], float] = time.time) -> None:
    """Say what is wrong with the clock and end the process with status 2, unless it can be right.

    Records, invitations and certificates of connections expire by it. A clock that is only wrong is
    found beside those of peers (`barnraise doctor`).
    """
    try:
        found_s = now_s()
    except OverflowError:
        found_s = float("inf")
    if 0.0 <= found_s < LATEST_S:
        return
    where = "before 1970" if found_s < 0.0 else "beyond the year 2200"
    sys.stderr.write(
        f"barnraise: the clock of this machine is {where}, and what is signed and expires goes by "
        "it: set the date, and start again\n"
    )
    sys.exit(EXIT_USAGE)
