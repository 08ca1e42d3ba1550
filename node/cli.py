"""The command `barnraise`: `node.commands` holds the commands, this their one entry point.

Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 no peer reachable, 4 refused or
banned; 128 and the signal's number where a signal ended it. Ctrl+C is such a signal, also where a
node leaves its run cleanly: 130 then, and after SIGTERM 143.
"""

import io
import os
import sys

from node.processes.interrupts import end_at_once, end_at_once_from_now_on, handling
from training.child_process import ONE_BLAS_THREAD


def main() -> None:
    """Entry point of the command."""
    os.environ.update(ONE_BLAS_THREAD)
    # A title or a path may have letters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Nothing is open yet, and a Ctrl+C in the middle of an import would show a traceback of it.
    with handling(end_at_once):
        from node.commands import (  # noqa: F401 - they register
            credit,
            demo,
            evidence,
            founding,
            inviting,
            looking,
            meeting,
            methods,
            using,
        )
        from node.commands.app import EXIT_INTERRUPTED, app, exit_status
        from protocol.errors import BarnraiseError
        from sim import commands  # noqa: F401 - it registers `sim`, `local` and `bench`
    try:
        app(prog_name="barnraise")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BarnraiseError as error:
        print(f"barnraise: {error}", file=sys.stderr)
        sys.exit(exit_status(error))
    finally:
        end_at_once_from_now_on()


if __name__ == "__main__":
    main()
