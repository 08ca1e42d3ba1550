"""The command `barnraise`: `node.commands` holds the commands, this their one entry point.

Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 no peer reachable, 4 refused or
banned; 128 and the signal's number where a signal ended it. Ctrl+C is such a signal, also where a
node leaves its run cleanly: 130 then, and after SIGTERM 143.
"""

import os
import sys
from contextlib import suppress

from node.processes.interrupts import end_at_once, end_at_once_from_now_on, end_now, handling
from node.reporting.output import take_standard_output
from node.reporting.shown import shown
from training.child_process import ONE_BLAS_THREAD


def main() -> None:
    """Entry point of the command."""
    os.environ.update(ONE_BLAS_THREAD)
    output = take_standard_output()
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
        from node.exit_codes import EXIT_FAILED
        from protocol.errors import BarnraiseError
        from sim import commands  # noqa: F401 - it registers `sim`, `local` and `bench`
    try:
        try:
            app(prog_name="barnraise")
        except SystemExit:
            # What is still buffered may be what the disk does not take.
            if output is not None:
                sys.stdout.flush()
            raise
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BarnraiseError as error:
        _tell(str(error))
        sys.exit(exit_status(error))
    except (OSError, ExceptionGroup) as error:
        if output is None or not output.is_to_blame(error):
            raise
        _tell(f"cannot write to standard output: {output.why}")
        # Python's own end would write what is left there once more, and tell of it in its way.
        end_now(EXIT_FAILED)
    finally:
        end_at_once_from_now_on()


def _tell(words: str) -> None:
    # A file that a stranger wrote may name what it likes; lines are our own.
    lines = [shown(line, len(line)) for line in words.split("\n")]
    with suppress(OSError):  # Where standard error takes nothing, the exit status says it.
        print("barnraise: " + "\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
