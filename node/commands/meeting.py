"""`barnraise bootstrap` and `barnraise runs`: how strangers meet."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.processes.interrupts import end_at_once, end_now, handling
from node.state.usual_place import shown_state

if TYPE_CHECKING:
    from node.peers.public_runs import PublicRun

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="State folder.", show_default=shown_state()),
]
BootstrapStateOption = Annotated[
    Path | None,
    typer.Option("--state", help="State folder.", show_default=shown_state("bootstrap")),
]
InterfaceOption = Annotated[
    str | None,
    typer.Option("--interface", help="Tell others the addresses of this interface alone."),
]
BootstrapOption = Annotated[
    list[str] | None, typer.Option("--bootstrap", help="Address of a peer to ask first.")
]
AnnounceOption = Annotated[
    list[str] | None,
    typer.Option("--announce", help="Address to tell others instead, e.g. of a router's port."),
]

PskOption = Annotated[
    Path | None,
    typer.Option("--psk", help="Key file of a private swarm: it meets nobody else."),
]

_TITLE_CHARACTERS_MAX = 48

RELAY_OPTION_MAX = 1e6
NO_RELAY_LIMIT = "0 sets no limit"


@app.command()
def bootstrap(
    state: BootstrapStateOption = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", help="Where it is reached.", show_default="/ip4/0.0.0.0/tcp/4001"),
    ] = None,
    announce: AnnounceOption = None,
    interface: InterfaceOption = None,
    peer: BootstrapOption = None,
    psk: PskOption = None,
    has_relay: Annotated[
        bool, typer.Option("--relay/--no-relay", help="Carry bytes for peers behind routers.")
    ] = True,
    relay_mbit: Annotated[
        float, typer.Option(help="Mbit/s for all whom it relays together; 0 sets no limit.")
    ] = 0.0,
    relay_gib: Annotated[
        float, typer.Option(help="GiB that it relays in a day; each peer may send a quarter.")
    ] = 1024.0,
    has_mdns: Annotated[
        bool, typer.Option("--mdns/--no-mdns", help="Tell its own network that it is there.")
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Events as JSON lines.")] = False,
) -> None:
    """Serve the DHT to strangers, and as a relay, in the foreground, until Ctrl+C: no training."""
    with handling(end_at_once):
        from dht.reaching.relay_books import RelayLimits
        from node.bootstrap import LISTEN, bootstrap_in_foreground
        from node.config import NodeConfig
        from node.state.folder import default_state

        # Not the folder of a node that trains here: one node at a time, each with its own key.
        folder = (state or default_state() / "bootstrap").expanduser().absolute()
        config = NodeConfig(
            state=folder,
            manifest=Path(),
            listen=LISTEN if listen is None else listen,
            announce=tuple(announce or ()),
            interface=interface or "",
            has_mdns=has_mdns,
            bootstrap=tuple(peer or ()),
            psk=psk,
        )
        relay = None
        if has_relay:
            _check_option("--relay-mbit", relay_mbit, NO_RELAY_LIMIT)
            _check_option("--relay-gib", relay_gib, "--no-relay carries nothing")
            day_bytes = round(relay_gib * 2**30)
            relay = RelayLimits(mbit=relay_mbit, day_bytes=day_bytes, peer_day_bytes=day_bytes // 4)
        end_now(bootstrap_in_foreground(folder, config, relay, is_json=json, say=_say))


def _check_option(name: str, value: float, what_else: str) -> None:
    from protocol.errors import ConfigError

    if not 0.0 <= value <= RELAY_OPTION_MAX:
        raise ConfigError(f"{name} {value:g} is not within 0..{RELAY_OPTION_MAX:g}; {what_else}")


@app.command()
def runs(
    state: StateOption = None,
    peer: BootstrapOption = None,
    psk: PskOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """List the public runs that can be seen from here, and how to join them."""
    from node.bootstrap import look_for_runs
    from node.state.folder import default_state

    found = look_for_runs(
        (state or default_state()).expanduser().absolute(), tuple(peer or ()), psk
    )
    if json:
        print_json({"runs": [one.as_json() for one in found]})
    else:
        _print_runs(found)


def _print_runs(found: "tuple[PublicRun, ...]") -> None:
    from rich.table import Table

    from node.reporting.shown import as_word, shown
    from node.reporting.terminal import PeopleConsole

    console = PeopleConsole(soft_wrap=True)
    if not found:
        console.print(
            "No public run in sight. Runs for whoever has a link, or for the invited, are not\n"
            "listed: ask someone who trains in one for its link."
        )
        return
    table = Table("run", "title", "model", "parameters", "memory", "peers", box=None)
    for one in found:
        advert = one.advert
        table.add_row(
            advert.run.hex()[:12],
            shown(advert.title, _TITLE_CHARACTERS_MAX),
            shown(advert.model, _TITLE_CHARACTERS_MAX),
            f"{advert.parameters:,}",
            f"{one.memory_bytes / 2**20:,.0f} MiB",
            str(len(one.peers)),
        )
    console.print(table)
    for one in found:
        for address in one.join_addresses()[:1]:
            console.print(f"{one.advert.run.hex()[:12]}: barnraise join {as_word(address)}")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
