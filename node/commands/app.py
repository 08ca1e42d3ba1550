"""The command line that all commands register with, and the options that they share."""

import dataclasses
import functools
import inspect
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from node.processes.exit_codes import EXIT_INTERRUPTED, exit_status
from node.state.ownership import default_state, shown_state
from node.text.shown import json_text

if TYPE_CHECKING:
    from node.using.run_on_disk import RunOnDisk

__all__ = ["EXIT_INTERRUPTED", "app", "exit_status", "print_json"]

_IN_ORDER = (
    *("demo", "init", "run", "join", "psk", "status", "peers", "rounds", "doctor"),
    *("data", "bootstrap", "runs", "check", "compare", "export", "generate", "eval"),
)


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 - of the library within typer
        """In the order of a run's life; what is not of it comes behind."""
        names = super().list_commands(ctx)
        return [*filter(names.__contains__, _IN_ORDER), *(n for n in names if n not in _IN_ORDER)]


app = typer.Typer(
    cls=_Commands,
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


def say(text: str) -> None:
    """A line of standard error, which is for people where standard output is for programs."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


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
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]

SEED_MAX = 1 << 53
"""A manifest holds more; a reader of JSON may round them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """Options that name a run on the disk."""

    state: StateOption = None
    run: RunOption = None
    manifest: ManifestOption = None

    def find(self) -> "RunOnDisk":
        """That run. Raises ConfigError saying what is missing."""
        from node.using.run_on_disk import find_run

        return find_run(self.state or default_state(), run=self.run, manifest=self.manifest)


def state_folder(given: Path | None, within: str = "") -> Path:
    """The absolute path of the state folder, or of the usual one (of a folder in that)."""
    return (given or default_state() / within).expanduser().absolute()


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command that has several options in one parameter: a dataclass with a field for each."""
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    }
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        options = [parameter]
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            options = [
                parameter.replace(name=one.name, default=one.default, annotation=types[one.name])
                for one in dataclasses.fields(groups[name])
            ]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in options]

    @functools.wraps(command)
    def called(**given: object) -> None:
        for name, kind in groups.items():
            of_group = {one.name: given.pop(one.name) for one in dataclasses.fields(kind)}
            given[name] = kind(**of_group)
        command(**given)

    called.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(called)["__signature__"] = inspect.Signature(parameters)
    return called


def refuse_idle(context: typer.Context, options: Mapping[str, str]) -> None:
    """By parameter what it needs that is not there: where it was said, nothing would read it.

    Raises typer.BadParameter.
    """
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in options and _is_said(context, name):
            raise typer.BadParameter(f"{parameter.opts[0]} does nothing without {options[name]}")


def hand_down(context: typer.Context) -> bool:
    """Whether there is a subcommand: what a user said before it counts as if it were said behind.

    Raises typer.BadParameter for an option that the subcommand does not have.
    """
    name, group = context.invoked_subcommand, context.command
    if name is None:
        return False
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
    return True


def _is_said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def progress_bars() -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Bars on standard error where that is a terminal, and nothing elsewhere: what begins one of a
    name, and what tells how much of how much of it is done (of 0 where nobody knows)."""
    from rich.progress import Progress, TaskID

    from node.text.terminal import PeopleConsole

    with Progress(console=PeopleConsole(stderr=True), disable=not sys.stderr.isatty()) as progress:
        tasks = list[TaskID]()

        def begin(name: str) -> None:
            tasks.append(progress.add_task(name, total=None))

        def tell(done: int, total: int) -> None:
            progress.update(tasks[-1], completed=done, total=total or None)

        yield begin, tell
