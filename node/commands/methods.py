"""`barnraise check`: what a method costs."""

from pathlib import Path
from typing import Annotated

import typer

from node.commands.app import JsonOption, app, print_json


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
