"""Options that commands share: one name, one help text."""

from pathlib import Path
from typing import Annotated

import typer

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="A node's state folder.", show_default="the usual place"),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="DIGEST",
        help="First digits of the run, where there are several.",
        show_default=False,
    ),
]
ManifestOption = Annotated[
    Path | None,
    typer.Option(
        "--manifest", help="The run's manifest, where the folder lacks it.", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Last line: one JSON object.")]
