"""`barnraise status`, `peers` and `rounds`: what the node that runs here says of itself.

They must answer before one has lost patience: no library but typer, and rich for tables.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from node.commands.app import app, print_json
from node.commands.options import JsonOption, RunOption, StateOption
from protocol.errors import ConfigError, NetworkError

WATCH_S = 1.0

Screen = tuple[Callable[[object], None], Callable[[str], None]]

WatchOption = Annotated[bool, typer.Option("--watch", help="Refresh every second until Ctrl+C.")]


@app.command()
def status(
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Show the status of the node running on this machine."""
    _look("status", state, run, is_json=json, watch=watch)


@app.command()
def peers(
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Show the members of the run and the connected peers."""
    _look("peers", state, run, is_json=json, watch=watch)


@app.command()
def rounds(
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Show the rounds sealed by the node running on this machine."""
    _look("rounds", state, run, is_json=json, watch=watch)


@app.command()
def doctor(state: StateOption = None, run: RunOption = None, json: JsonOption = False) -> None:
    """Diagnose this node's network (reachability, NAT, relay, clock, paths); suggest remedies."""
    from node.reporting.json_text import to_plain
    from node.status.client import ask, find_api
    from node.status.doctor import findings
    from node.status.records import NodeStatus, PeerTable

    api = find_api(_default_state() if state is None else state, run)
    found = findings(ask(api, "/v1/status", NodeStatus), ask(api, "/v1/peers", PeerTable))
    if json:
        print_json({"findings": [to_plain(one) for one in found]})
        return

    from node.reporting.terminal import PeopleConsole
    from node.status.tables import draw_doctor

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


def _look(name: str, state: Path | None, run: str | None, *, is_json: bool, watch: bool) -> None:
    from node.status.client import ask_plain, find_api

    folder = _default_state() if state is None else state

    def look() -> object:
        # Found anew each time: a node that starts again has another port and token.
        return ask_plain(find_api(folder, run), f"/v1/{name}")

    with _screen(name, is_json=is_json, watch=watch) as (show, tell):
        if watch:
            try:
                look_again(look, show, tell, threading.Event().wait)
            except ConfigError as error:
                if is_json:
                    tell(str(error))
                raise
        show(look())


def _default_state() -> Path:
    from node.state.folder import default_state

    return default_state()


@contextmanager
def _screen(name: str, *, is_json: bool, watch: bool) -> Iterator[Screen]:
    """Where answers are shown, and where a failed look is told of."""
    if is_json:
        yield print_json, lambda reason: print_json({"error": reason})
        return
    from rich.text import Text

    from node.reporting.terminal import PeopleConsole
    from node.status.tables import PICTURES

    draw = PICTURES[name]
    console = PeopleConsole()
    if not (watch and console.is_terminal):
        yield (lambda body: console.print(draw(body))), console.print
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield (
            lambda body: live.update(draw(body), refresh=True),
            lambda reason: live.update(Text(reason), refresh=True),
        )
