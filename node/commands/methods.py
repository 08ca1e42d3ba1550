"""`check`, `compare` and `demo`: what a method costs, what it gives, and a run to look at, all on
this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer

from node.commands.app import SEED_MAX, JsonOption, app, print_json


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The run.toml that `barnraise init` wrote.")] = Path(
        "run.toml"
    ),
    peers: Annotated[int, typer.Option(help="Expected number of peers.", min=1, max=64)] = 8,
    step_s: Annotated[
        float | None,
        typer.Option(
            "--step-s", help="Seconds per inner step, if you know them.", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check a run.toml: show what its preset sets and what a round costs each node."""

    from node.settings.check import check_json, check_run_file, check_step, print_check
    from node.text.terminal import PeopleConsole

    check_step(step_s)
    found = check_run_file(file, peers)
    print_check(PeopleConsole(stderr=json), found, step_s)
    if json:
        print_json(check_json(found, step_s))


@app.command()
def compare(
    presets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET...", help="Names of the presets to compare.", show_default="six of them"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Total inner steps per peer.", min=1)] = 600,
    peers: Annotated[
        int, typer.Option(help="Number of replicas, all in one process.", min=1, max=64)
    ] = 4,
    inner_steps: Annotated[
        int | None,
        typer.Option(
            "--inner-steps",
            help="Inner steps per round (H).",
            show_default="each preset's own",
            min=1,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the first weights and of the order of samples.", min=0, max=SEED_MAX
        ),
    ] = 0,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="run.toml that sets the model, the data and the inner loop.",
            show_default="a toy GPT",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the plot and the numbers.")] = Path(
        "compare"
    ),
    json: JsonOption = False,
) -> None:
    """Train the same model on the same text with each preset; compare loss, bytes and time."""
    from node.compare.main import run_compare
    from node.compare.runs import PRESETS_DEFAULT, CompareOptions

    options = CompareOptions(
        presets=tuple(dict.fromkeys(presets or PRESETS_DEFAULT)),
        steps=steps,
        peers=peers,
        inner_steps=inner_steps,
        seed=seed,
        file=file,
        folder=out.absolute(),
    )
    found, status = run_compare(options, to_stderr=json)
    if json:
        print_json(found)
    raise typer.Exit(status)


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
    json: JsonOption = False,
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
