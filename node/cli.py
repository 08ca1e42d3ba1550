"""The command `barnraise`: `node.commands` holds the commands, this their one entry point.

Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 no peer reachable, 4 refused or
banned; 128 and the signal's number where a signal ended it.
"""

import sys

from node.commands import demo  # noqa: F401 - registers itself
from node.commands.app import EXIT_INTERRUPTED, app, exit_status
from protocol.errors import BarnraiseError


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="barnraise")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BarnraiseError as error:
        print(f"barnraise: {error}", file=sys.stderr)
        sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
