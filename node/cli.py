"""The command `barnraise`. Every heavy import waits until a command needs it.

Exit status: 0 done, 1 failed, 2 bad usage or configuration, 3 no peer reachable, 4 refused or
banned; 128 and the signal's number where a signal ended it.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

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


@app.command()
def demo(
    peers: Annotated[
        int, typer.Option(help="Nodes that start together; from 4 on, one is killed.")
    ] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds to seal.")] = 40,
    out: Annotated[
        Path | None, typer.Option(help="New folder for plot, page and logs.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of genesis weights and order of the text.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Last line: one JSON object.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the nodes' keys and checkpoints.")
    ] = False,
    test_switch: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train a small model with real nodes on this machine; one dies, one comes late."""
    began_s = time.monotonic()
    from rich.console import Console

    from node.demo.main import Surroundings, run_demo
    from node.demo.options import DemoOptions

    folder = Path(time.strftime("barnraise-demo-%Y%m%d-%H%M%S")) if out is None else out
    options = DemoOptions(
        peers=peers,
        rounds=rounds,
        seed=seed,
        folder=folder.absolute(),
        keep_state=keep,
        test_switch=test_switch,
    )
    around = Surroundings(
        console=Console(stderr=json, highlight=False),
        now_s=lambda: time.monotonic() - began_s,
    )
    end = run_demo(options, around)
    if json and end.result is not None:
        _print_json(end.result.as_json())
    raise typer.Exit(end.status)


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="barnraise")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BarnraiseError as error:
        print(f"barnraise: {error}", file=sys.stderr)
        sys.exit(_exit_status(error))


def _exit_status(error: BarnraiseError) -> int:
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    if isinstance(error, NetworkError):
        return EXIT_UNREACHABLE
    return EXIT_REFUSED if isinstance(error, RefusedError) else EXIT_FAILED


def _print_json(body: object) -> None:
    import json

    print(json.dumps(body), flush=True)


if __name__ == "__main__":
    main()
