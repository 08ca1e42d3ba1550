"""How a program hands an invite link to its network process: not on a command line.

The link may hold a key, and a command line is shown to every user of the machine. The environment
of a process is for its user alone.
"""

import os

JOIN_VARIABLE = "BARNRAISE_JOIN"


def take_from_environment() -> str | None:
    """The link that this process was started with; its own children do not get it."""
    return os.environ.pop(JOIN_VARIABLE, None)
