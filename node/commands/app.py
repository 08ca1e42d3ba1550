"""The command line that all commands register with, and how errors become exit statuses."""

import json
import sys

import typer

from protocol.errors import BarnraiseError, ConfigError, NetworkError, RefusedError

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_REFUSED = 1, 2, 3, 4
EXIT_INTERRUPTED = 130

app = typer.Typer(
    help="Train a neural network together: a peer-to-peer swarm without a coordinator.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback is for bugs, and those are to be shown as they are.
    pretty_exceptions_enable=False,
)


@app.callback()
def barnraise() -> None:
    """Train a neural network together: a peer-to-peer swarm without a coordinator."""


def exit_status(error: BarnraiseError) -> int:
    """What a command ends with that raised `error`."""
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    if isinstance(error, NetworkError):
        return EXIT_UNREACHABLE
    return EXIT_REFUSED if isinstance(error, RefusedError) else EXIT_FAILED


def print_json(body: object) -> None:
    """One JSON object as a line of standard output."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()
