"""`barnraise demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from node.commands.app import app, print_json
from node.commands.options import SEED_MAX


@app.command()
def demo(
    peers: Annotated[
        int,
        typer.Option(
            help="Number of nodes that start together; with 4 or more, one of them is killed."
        ),
    ] = 4,
    rounds: Annotated[int, typer.Option(help="Number of rounds to seal.")] = 40,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the plot, the page and the logs.", show_default=False),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first weights and of the order of the text.", min=0, max=SEED_MAX
        ),
    ] = 0,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object as the last line of standard output."),
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the nodes' keys and checkpoints afterwards.")
    ] = False,
    test_switch: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train a small model with real nodes on this machine; one is killed, one joins late."""
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
        print_json(end.result.as_json())
    raise typer.Exit(end.status)
