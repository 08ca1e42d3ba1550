"""`barnraise status`, `peers`, `rounds` and `check`: what the node here says, what a method costs.

They must answer before one has lost patience: no library but typer, and rich for tables.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from node.commands.app import (
    JsonOption,
    RunOption,
    StateOption,
    app,
    grouped,
    print_json,
    state_folder,
)
from node.state.ownership import default_state
from protocol.errors import ConfigError, NetworkError

WATCH_S = 1.0

Screen = tuple[Callable[[object], None], Callable[[str], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOptions:
    """Options of a command that shows what the running node answers."""

    state: StateOption = None
    run: RunOption = None
    json: JsonOption = False
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl+C.")] = (
        False
    )


@app.command()
@grouped
def status(options: LookOptions) -> None:
    """Show the status of the node running on this machine."""
    _look("status", options)


@app.command()
@grouped
def peers(options: LookOptions) -> None:
    """Show the members of the run and the connected peers."""
    _look("peers", options)


@app.command()
@grouped
def rounds(options: LookOptions) -> None:
    """Show the rounds sealed by the node running on this machine."""
    _look("rounds", options)


@app.command()
def doctor(state: StateOption = None, run: RunOption = None, json: JsonOption = False) -> None:
    """Diagnose this node's network (reachability, NAT, relay, clock, paths); suggest remedies."""
    from node.status.client import ask, find_api
    from node.status.doctor import findings
    from node.status.records import NodeStatus, PeerTable
    from node.text.shown import to_plain

    api = find_api(default_state() if state is None else state, run)
    found = findings(ask(api, "/v1/status", NodeStatus), ask(api, "/v1/peers", PeerTable))
    if json:
        print_json({"findings": [to_plain(one) for one in found]})
        return

    from node.status.tables import draw_doctor
    from node.text.terminal import PeopleConsole

    PeopleConsole().print(draw_doctor(found))


def look_again(
    look: Callable[[], object],
    show: Callable[[object], None],
    tell: Callable[[str], None],
    pause: Callable[[float], object],
) -> NoReturn:
    """Look, show and pause for WATCH_S, for ever. A node that is only slow is told of by `tell`.

    Raises ConfigError when the node is gone.
    """
    while True:
        try:
            show(look())
        except NetworkError as error:
            tell(str(error))
        pause(WATCH_S)


def _look(name: str, options: LookOptions) -> None:
    from node.status.client import ask_plain, find_api

    folder = default_state() if options.state is None else options.state

    def look() -> object:
        # Found anew each time: a node that starts again has another port and token.
        return ask_plain(find_api(folder, options.run), f"/v1/{name}")

    with _screen(name, options) as (show, tell):
        if options.watch:
            try:
                look_again(look, show, tell, threading.Event().wait)
            except ConfigError as error:
                if options.json:
                    tell(str(error))
                raise
        show(look())


@contextmanager
def _screen(name: str, options: LookOptions) -> Iterator[Screen]:
    """Where answers are shown, and where a failed look is told of."""
    if options.json:
        yield print_json, lambda reason: print_json({"error": reason})
        return
    from rich.text import Text

    from node.status.tables import PICTURES
    from node.text.terminal import PeopleConsole

    draw = PICTURES[name]
    console = PeopleConsole()
    if not (options.watch and console.is_terminal):
        yield (lambda body: console.print(draw(body))), console.print
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield (
            lambda body: live.update(draw(body), refresh=True),
            lambda reason: live.update(Text(reason), refresh=True),
        )


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
    line: Annotated[
        list[str] | None,
        typer.Option(
            "--line",
            help="Peers' lines: megabits per second down and up, and milliseconds there and back, "
            "such as 250,40,30; may be repeated.",
            show_default="DSL, cable and fibre",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Device that this machine's node would compute on.")
    ] = "auto",
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Check a run.toml: show what its preset sets, what a round costs each node, and whether this
    machine and the deadlines can do it.
    """

    from node.processes.machine import read_machine
    from node.settings.check import (
        check_json,
        check_run_file,
        check_step,
        line_named,
        print_check,
    )
    from node.state.config import check_device
    from node.text.terminal import PeopleConsole

    check_step(step_s)
    check_device(device)
    lines = tuple(map(line_named, line or ()))
    found = check_run_file(file, peers, read_machine(state_folder(state)))
    found = dataclasses.replace(found, device=device, lines=lines or found.lines)
    print_check(PeopleConsole(stderr=json), found, step_s)
    if json:
        print_json(check_json(found, step_s))
