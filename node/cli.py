"""The command `barnraise`: `node.commands` holds the commands, this their one entry point.

Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 no peer reachable, 4 refused or
banned; 128 and the signal's number where a signal ended it. Ctrl+C is such a signal, also where a
node leaves its run cleanly: 130 then, and after SIGTERM 143.

With --json whoever reads standard output finds an object there however a command ends: where it has
written none, `error` says why in the words that people get.
"""

import os
import signal
import sys
from contextlib import suppress

from node.processes.interrupts import (
    EXIT_BY_SIGNAL,
    end_at_once,
    end_at_once_from_now_on,
    end_now,
    handling,
)
from node.text.shown import Output, json_text, shown, take_standard_streams
from training.channel.child_process import ONE_BLAS_THREAD


def main() -> None:
    """Entry point of the command."""
    os.environ.update(ONE_BLAS_THREAD)
    output = take_standard_streams()
    # Nothing is open yet, and a Ctrl+C in the middle of an import would show a traceback of it.
    with handling(end_at_once):
        # Before the others: `demo` heads the list of the commands.
        from sim import commands  # noqa: F401 - it registers `demo`, `local`, `sim`, ...

        # isort: split
        from node.commands import (  # noqa: F401 - they register
            credit,
            data,
            founding,
            looking,
            using,
        )
        from node.commands.app import EXIT_INTERRUPTED, app, exit_status
        from node.processes.exit_codes import EXIT_FAILED, command_error
        from protocol.errors import BarnraiseError
    try:
        try:
            app(prog_name="barnraise")
        except SystemExit as end:
            _tell_program(output, why_ended(end))
            raise
        except BarnraiseError as error:
            _tell(str(error))
            _tell_program(output, str(error))
            sys.exit(exit_status(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Its reader is gone. Python's own end would write what is left once more, and complain.
        end_now(EXIT_FAILED)
    except (OSError, ExceptionGroup) as error:
        if output is not None and output.is_to_blame(error):
            _tell(f"cannot write to standard output: {output.why}")
            end_now(EXIT_FAILED)
        told = command_error(error)
        if told is None:
            raise
        _tell(str(told))
        _tell_program(output, str(told))
        sys.exit(exit_status(told))
    finally:
        end_at_once_from_now_on()


def _tell(words: str) -> None:
    # A file that a stranger wrote may name what it likes; lines are our own.
    lines = [shown(line, len(line)) for line in words.split("\n")]
    with suppress(OSError):  # Where standard error takes nothing, the exit status says it.
        print("barnraise: " + "\n".join(lines), file=sys.stderr)


def why_ended(end: SystemExit) -> str:
    """Why a command failed that has told people itself; empty where it did not."""
    if not isinstance(end.code, int) or end.code == 0:
        return ""
    # Of bad usage typer tells, and then ends: the error is what it was handling.
    usage = getattr(end.__context__, "format_message", None)
    if usage is not None:
        return str(usage())
    number = end.code - EXIT_BY_SIGNAL
    return f"ended by {signal.Signals(number).name}" if number > 0 else "see standard error"


def _tell_program(output: Output | None, why: str) -> None:
    """To whom standard output goes; what is buffered, too, may be what a disk does not take."""
    if output is None:
        return
    sys.stdout.flush()
    if why and "--json" in sys.argv and not output.has_written:
        print(json_text({"error": why}), flush=True)


if __name__ == "__main__":
    main()
