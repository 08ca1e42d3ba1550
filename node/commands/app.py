"""The command line that all commands register with."""

import platform
import sys
from typing import Annotated

import typer

from node.processes.exit_codes import EXIT_INTERRUPTED, exit_status
from node.reporting.json_text import json_text

__all__ = ["EXIT_INTERRUPTED", "app", "exit_status", "print_json"]

app = typer.Typer(
    help="Train a neural network together: a peer-to-peer swarm without a coordinator.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback is for bugs, and those are to be shown as they are.
    pretty_exceptions_enable=False,
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        from node.processes.version import version
        from protocol.manifest import ARITHMETIC_VERSION, WIRE_VERSION
        from training.kernels import arithmetic

        # Nodes of one run speak one wire and round alike: whoever reports a fault is asked for all.
        sys.stdout.write(
            f"barnraise {version()}, wire {WIRE_VERSION}, arithmetic {ARITHMETIC_VERSION} "
            f"({arithmetic()}), "
            f"Python {platform.python_version()}\n"
        )
        raise typer.Exit


@app.callback()
def barnraise(
    is_version_asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train a neural network together: a peer-to-peer swarm without a coordinator."""
    del is_version_asked  # The callback has answered.


def print_json(body: object) -> None:
    """One JSON object as a line of standard output."""
    typer.echo(json_text(body))  # Where standard output is closed, it does nothing.
