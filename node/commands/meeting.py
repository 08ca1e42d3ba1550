"""`barnraise bootstrap` and `barnraise runs`: how strangers meet."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import app, print_json
from node.processes.interrupts import end_at_once, end_now, handling
from node.state.ownership import shown_state

if TYPE_CHECKING:
    from node.peers.public_runs import PublicRun

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="State folder of the node.", show_default=shown_state()),
]
BootstrapStateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help="State folder of the bootstrap node.", show_default=shown_state("bootstrap")
    ),
]
InterfaceOption = Annotated[
    str | None,
    typer.Option("--interface", help="Tell peers only the addresses of this network interface."),
]
BootstrapOption = Annotated[
    list[str] | None, typer.Option("--bootstrap", help="Address of a peer to contact first.")
]
AnnounceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--announce",
        help=(
            "Address that peers are told in place of the node's own, e.g. that of a "
            "router's forwarded port."
        ),
    ),
]

PskOption = Annotated[
    Path | None,
    typer.Option(
        "--psk", help="Key file of a private swarm; nodes with the key connect only to each other."
    ),
]

_TITLE_CHARACTERS_MAX = 48

RELAY_OPTION_MAX = 1e6
NO_RELAY_LIMIT = "0 sets no limit"


@app.command()
def bootstrap(
    state: BootstrapStateOption = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            help="Address on which this node listens for peers.",
            show_default="/ip4/0.0.0.0/tcp/4001",
        ),
    ] = None,
    announce: AnnounceOption = None,
    interface: InterfaceOption = None,
    peer: BootstrapOption = None,
    psk: PskOption = None,
    has_relay: Annotated[
        bool, typer.Option("--relay/--no-relay", help="Relay traffic for peers behind routers.")
    ] = True,
    relay_mbit: Annotated[
        float,
        typer.Option(
            help="Relay bandwidth in Mbit/s, shared by all relayed peers; 0 sets no limit."
        ),
    ] = 0.0,
    relay_gib: Annotated[
        float,
        typer.Option(help="Relay traffic limit in GiB per day; each peer may use a quarter of it."),
    ] = 1024.0,
    has_mdns: Annotated[
        bool,
        typer.Option("--mdns/--no-mdns", help="Announce this node on the local network by mDNS."),
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="Print events as JSON lines on standard output.")
    ] = False,
) -> None:
    """Run a DHT node and relay for any peer, in the foreground until Ctrl+C; it does not train."""
    with handling(end_at_once):
        from dht.reaching.relay_server import RelayLimits
        from node.daemon.bootstrap import LISTEN, bootstrap_in_foreground
        from node.state.config import NodeConfig
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
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on one line.")
    ] = False,
) -> None:
    """List the public runs that can be found from here and how to join them."""
    from node.daemon.bootstrap import look_for_runs
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
