"""Options that commands share: one name, one help text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from node.state.ownership import shown_state

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="State folder of the node.", show_default=shown_state()),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="DIGEST",
        help="First digits of the run's digest, if the folder holds several runs.",
        show_default=False,
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--manifest",
        help="The run's manifest file, if the state folder lacks it.",
        show_default=False,
    ),
]
SEED_MAX = 1 << 53
"""A manifest holds more; a reader of JSON may round them."""

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")
]


def refuse_idle(context: typer.Context, options: Mapping[str, str]) -> None:
    """By parameter what it needs that is not there: where it was said, nothing would read it.

    Raises typer.BadParameter.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in options and _is_said(context, name):
            raise typer.BadParameter(f"{parameter.opts[0]} does nothing without {options[name]}")


def hand_down(context: typer.Context) -> None:
    """What a user said before a subcommand counts as if it were said behind it.

    Raises typer.BadParameter for an option that the subcommand does not have.
    """
    name, group = context.invoked_subcommand, context.command
    assert name is not None
    assert isinstance(group, TyperGroup)
    taken = {parameter.name for parameter in group.commands[name].params}
    said = {}
    for parameter in group.params:
        if not _is_said(context, parameter.name or ""):
            continue
        if parameter.name not in taken:
            option = parameter.opts[0]
            raise typer.BadParameter(f"{context.command_path} {name} takes no {option}")
        said[parameter.name] = context.params[parameter.name]
    context.default_map = {name: said}


def _is_said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
