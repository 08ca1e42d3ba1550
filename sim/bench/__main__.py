"""`python -P -m sim.bench bench ...`: the command without the rest of `barnraise`."""

import sys

from node.commands.app import app, exit_status
from protocol.errors import BarnraiseError
from sim.bench import commands

assert commands.bench_app is not None, "importing it registers the command"

if __name__ == "__main__":
    try:
        app(prog_name="python -m sim.bench")
    except BarnraiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the last word to the user
        sys.exit(exit_status(error))
