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
        int, typer.Option(help="Nodes that start together; from 4 on, one is killed.")
    ] = 4,
    rounds: Annotated[int, typer.Option(help="Rounds to seal.")] = 40,
    out: Annotated[
        Path | None, typer.Option(help="New folder for plot, page and logs.", show_default=False)
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Seed of genesis weights and order of the text.", min=0, max=SEED_MAX),
    ] = 0,
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
        print_json(end.result.as_json())
    raise typer.Exit(end.status)
