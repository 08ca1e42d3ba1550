"""The command line that all commands register with."""

import json
import sys

import typer

from node.exit_codes import EXIT_INTERRUPTED, exit_status

__all__ = ["EXIT_INTERRUPTED", "app", "exit_status", "print_json"]

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


def print_json(body: object) -> None:
    """One JSON object as a line of standard output."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()
