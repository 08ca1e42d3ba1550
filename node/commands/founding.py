"""Runs and who is in them: found one (`init`, `run`), take part (`join`), let people in (`invite`),
help strangers meet (`bootstrap`, `runs`), keep a swarm private (`psk`).
"""

import dataclasses
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import (
    JsonOption,
    RunOption,
    StateOption,
    app,
    grouped,
    hand_down,
    print_json,
    say,
    state_folder,
)
from node.processes.interrupts import end_at_once, end_now, handling
from node.state.ownership import shown_state

if TYPE_CHECKING:
    from node.daemon.foreground import Start
    from node.peers.public_runs import PublicRun
    from node.state.invitations import IssuedTokens, Terms
    from protocol.invitations import Token

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
InterfaceOption = Annotated[
    str | None,
    typer.Option("--interface", help="Tell peers only the addresses of this network interface."),
]
BootstrapOption = Annotated[
    list[str] | None, typer.Option("--bootstrap", help="Address of a peer to contact first.")
]
PskOption = Annotated[
    Path | None,
    typer.Option(
        "--psk", help="Key file of a private swarm; nodes with the key connect only to each other."
    ),
]
SkipMachineCheckOption = Annotated[
    bool,
    typer.Option(
        "--skip-machine-check", help="Go on even if memory or disk look too small for the run."
    ),
]
EventsOption = Annotated[
    bool, typer.Option("--json", help="Print events as JSON lines on standard output.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Options of a node that trains. What is None was not said, and is left to node.toml."""

    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="State folder of this node: it holds the key, checkpoints and logs.",
            show_default=shown_state(),
        ),
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            help="Address on which this node listens for peers.",
            show_default="/ip4/0.0.0.0/tcp/0: a free port, kept for later starts",
        ),
    ] = None
    announce: AnnounceOption = None
    interface: InterfaceOption = None
    bootstrap: BootstrapOption = None
    psk: PskOption = None
    up_mbit: Annotated[
        float | None,
        typer.Option("--up-mbit", help="Upload limit in Mbit/s.", show_default="no limit"),
    ] = None
    down_mbit: Annotated[
        float | None,
        typer.Option("--down-mbit", help="Download limit in Mbit/s.", show_default="no limit"),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", help="Number of torch threads.", show_default="all cores except one"
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="Device to compute on: auto, cpu, cuda, cuda:N or mps.",
            show_default="auto",
        ),
    ] = None
    status_port: Annotated[
        int | None,
        typer.Option(
            "--status-port",
            help="Port of the status server (loopback only).",
            show_default="any free port",
        ),
    ] = None
    skip_machine_check: SkipMachineCheckOption = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TellingOptions:
    """Options for what a node that trains tells of itself."""

    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Append a record of each of this node's steps to this file, for later checks.",
        ),
    ] = None
    json: EventsOption = False
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write the log to standard error as JSON lines.")
    ] = False


def _start(node: NodeOptions, telling: TellingOptions, **more: object) -> "Start":
    """What was said: the others are left to node.toml."""
    from node.daemon.foreground import Start

    said = {**dataclasses.asdict(node), **more, "trace": telling.trace}
    del said["skip_machine_check"]
    said |= {"state": None, "is_log_json": telling.log_json or None}
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in said.items()
        if value is not None and value != []
    }
    start = Start(state=state_folder(node.state), options=options, is_json=telling.json)
    return dataclasses.replace(start, look_at=None) if node.skip_machine_check else start


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("run.toml"),
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the run.", show_default=False)
    ] = None,
    model_size: Annotated[
        str | None,
        typer.Option(
            "--model-size",
            help="Size of the built-in GPT: 10m, 50m, 124m, 350m or 1b parameters.",
            show_default="120k",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Your own text: a file or folder, or a token store of `barnraise data pack`.",
            show_default="the sources of Python's library",
        ),
    ] = None,
    skip_machine_check: SkipMachineCheckOption = False,
    json: JsonOption = False,
) -> None:
    """Write a run.toml in which every key is explained; `barnraise run` founds a run with it."""
    from node.settings.sections import TITLE_DEFAULT, size_named, write_run_file
    from node.text.shown import as_word

    size = size_named(model_size)
    if size is not None and not skip_machine_check:
        from node.settings.check import check_size_here

        check_size_here(size, file, state_folder(None))
    write_run_file(file, TITLE_DEFAULT if title is None else title, size, data)
    if json:
        print_json({"file": str(file.absolute())})
    else:
        typer.echo(f"{file} is written. Look through it, then: barnraise run {as_word(str(file))}")


@app.command()
@grouped
def run(
    file: Annotated[Path, typer.Argument(help="The run.toml that `barnraise init` wrote.")],
    *,
    node: NodeOptions,
    new: Annotated[
        bool,
        typer.Option("--new", help="Found a new run even if this file has already founded one."),
    ] = False,
    start_with: Annotated[
        int | None,
        typer.Option(
            "--start-with",
            help="Number of peers, this node included, to wait for before round 1 ends.",
            show_default="2, or as node.toml says",
        ),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Wait for no other peer; same as --start-with 1.")
    ] = False,
    telling: TellingOptions,
) -> None:
    """Found the run that a run.toml describes, or continue it, in the foreground until Ctrl+C or
    the end of the run. A new run waits for a second peer; Enter starts it at once.
    """
    with handling(end_at_once):
        # It loads libp2p, which takes a second.
        from node.daemon.foreground import run_file_in_foreground

        if alone and start_with not in (None, 1):
            raise typer.BadParameter(
                "--alone waits for nobody, and --start-with for others; give only one of the two"
            )
        start = _start(node, telling, start_with=1 if alone else start_with)
        end_now(run_file_in_foreground(start, file, is_new=new))


@app.command()
@grouped
def join(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="LINK_OR_MULTIADDR",
            help="An invite link or the address of a peer; `-` reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    link_file: Annotated[
        Path | None,
        typer.Option(
            "--link-file",
            help="File to read the link from, which keeps this secret off the command line.",
        ),
    ] = None,
    *,
    node: NodeOptions,
    model_file: Annotated[
        Path | None,
        typer.Option("--model-file", help="The model file of the run, if its manifest names one."),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", help="The token store of the run, if its text is the founder's."),
    ] = None,
    observer: Annotated[
        bool,
        typer.Option(
            "--observer", help="Follow the run and serve its state to others without training."
        ),
    ] = False,
    telling: TellingOptions,
) -> None:
    """Take part in a run, or continue, in the foreground until Ctrl+C or the end of the run."""
    with handling(end_at_once):
        # It loads libp2p, which takes a second.
        from node.daemon.foreground import join_in_foreground
        from node.peers.invite import SHOWN_LINK, STANDARD_INPUT, read_target
        from node.peers.joining import parse_target

        text = read_target(target, link_file, sys.stdin.buffer)
        parsed = parse_target(text)
        if parsed.offer is not None and target not in (None, STANDARD_INPUT):
            typer.echo(f"warning: {SHOWN_LINK}", err=True)
        start = _start(
            node, telling, model_file=model_file, corpus=corpus, is_observer=observer or None
        )
        end_now(join_in_foreground(start, parsed))


@app.command()
def psk(
    file: Annotated[Path, typer.Argument(help="The key file to write.")] = Path("swarm.key"),
) -> None:
    """Write the key of a new private swarm. Hand it to the members over a trusted channel."""
    from node.state.keystore import write_new_psk

    write_new_psk(file)
    typer.echo(f"{file} is written. Every node of the swarm is started with --psk {file}")


# How strangers meet ------------------------------------------------------------------------------

_TITLE_CHARACTERS_MAX = 48

RELAY_OPTION_MAX = 1e6
NO_RELAY_LIMIT = "0 sets no limit"


@app.command()
def bootstrap(
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            help="State folder of the bootstrap node.",
            show_default=shown_state("bootstrap"),
        ),
    ] = None,
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
    json: EventsOption = False,
) -> None:
    """Run a DHT node and relay for any peer, in the foreground until Ctrl+C; it does not train."""
    with handling(end_at_once):
        from dht.reaching.relay_server import RelayLimits
        from node.daemon.bootstrap import LISTEN, bootstrap_in_foreground
        from node.state.config import NodeConfig

        # Not the folder of a node that trains here: one node at a time, each with its own key.
        folder = state_folder(state, "bootstrap")
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
        end_now(bootstrap_in_foreground(folder, config, relay, is_json=json, say=say))


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

    found = look_for_runs(state_folder(state), tuple(peer or ()), psk)
    if json:
        print_json({"runs": [one.as_json() for one in found]})
    else:
        _print_runs(found)


def _print_runs(found: "tuple[PublicRun, ...]") -> None:
    from rich.table import Table

    from node.text.shown import as_word, shown
    from node.text.terminal import PeopleConsole

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


# Invitations: the addresses in a link are the word of the node that runs here --------------------

_DAY_S = 86_400.0

invite_app = typer.Typer(
    help="Make an invite link for this node's run; list and revoke such links.",
    no_args_is_help=False,
)
app.add_typer(invite_app, name="invite")


@invite_app.callback(invoke_without_command=True)
def invite(
    context: typer.Context,
    uses: Annotated[
        int, typer.Option("--uses", min=1, max=1024, help="Number of peers that the link admits.")
    ] = 1,
    days: Annotated[
        float, typer.Option("--days", min=0.001, max=3650.0, help="Validity of the link in days.")
    ] = 7.0,
    delegations: Annotated[
        int,
        typer.Option(
            "--delegations",
            min=0,
            max=2,
            help="How many times the right to invite may be passed on.",
        ),
    ] = 0,
    observer: Annotated[
        bool,
        typer.Option(
            "--observer", help="Invite observers, who follow the run without contributing."
        ),
    ] = False,
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
) -> None:
    """Make an invite link for the run of the node running on this machine."""
    if context.invoked_subcommand is not None:
        hand_down(context)
        return
    from node.state.invitations import Terms
    from protocol.invitations import Role

    role = Role.OBSERVER if observer else Role.MEMBER
    terms = Terms(role=role, uses=uses, delegations=delegations, valid_s=days * _DAY_S)
    link, token = _link_of(state_folder(state), run, terms)
    if json:
        print_json({"link": link, **_plain(token, is_revoked=False)})
    elif token is None:
        typer.echo(f"{link}\n\nThe run is for whoever has a link: this one is like any other.")
    else:
        typer.echo(
            f"{link}\n\nIt lets in {uses} {'peer' if uses == 1 else 'peers'} until "
            f"{_day(token)}; whoever has it may use it, so send it over a channel that you trust."
            f"\nTo take it back: barnraise invite revoke {token.key.hex()[:12]}"
        )


@invite_app.command(name="list")
def list_invitations(
    state: StateOption = None, run: RunOption = None, json: JsonOption = False
) -> None:
    """List the invitations that this node has issued."""

    found = _issued(state, run).tokens()
    if json:
        print_json({"invitations": [_plain(token, is_revoked=gone) for token, gone in found]})
        return
    for token, is_revoked in found:
        word = "revoked" if is_revoked else f"until {_day(token)}"
        typer.echo(f"{token.key.hex()[:12]}  {token.uses} uses  {token.role.name.lower()}  {word}")
    if not found:
        typer.echo("This node has issued no invitation.")


@invite_app.command()
def revoke(
    name: Annotated[
        str,
        typer.Argument(help="First digits of the invitation, as shown by `barnraise invite list`."),
    ],
    state: StateOption = None,
    run: RunOption = None,
) -> None:
    """Revoke an invitation: it admits nobody else. Peers that already joined stay in the run."""

    token = _issued(state, run).revoke(name.lower())
    typer.echo(f"{token.key.hex()[:12]} lets nobody in any more, once this node has told it.")


def _link_of(state: Path, run: str | None, terms: "Terms") -> tuple[str, "Token | None"]:
    """A link to the run of the node that runs here, and the token in it; None where all may join.

    Raises ConfigError if no node runs, if it is reached nowhere, or if it may not invite.
    """
    from node.peers.invite import InviteSeal, invite_link, invite_to
    from node.state.config import parse_peer_address
    from node.state.invitations import IssuedTokens
    from node.state.keystore import has_identity, load_or_create_identity
    from node.status.client import ask, find_api
    from node.status.records import NodeStatus
    from node.using.run_on_disk import find_run
    from protocol.errors import ConfigError

    found = find_api(state, run)
    status = ask(found, "/v1/status", NodeStatus)
    if not status.addresses:
        raise ConfigError("the node knows no address of its own yet: try again in a moment")
    if not has_identity(state):
        raise ConfigError(f"{state} has no key")
    signer = load_or_create_identity(state)
    manifest = find_run(state, run=found.folder.name).manifest
    plain = [parse_peer_address(text).address for text in status.addresses]
    seal = None  # Before the first final one, and of a node that tells none.
    if status.final_round and status.final_seal:
        seal = InviteSeal(status.final_round, bytes.fromhex(status.final_seal))
    if manifest.access.mode == "link":
        return invite_link(invite_to(manifest, signer.peer_id, plain, seal=seal)), None
    offer = IssuedTokens(found.folder).issue(manifest, signer, terms, unix_s=time.time())
    return invite_link(invite_to(manifest, signer.peer_id, plain, offer, seal=seal)), offer.token


def _issued(state: Path | None, run: str | None) -> "IssuedTokens":
    """The tokens that the node of a state folder has issued for a run."""
    from node.state.invitations import IssuedTokens
    from node.using.run_on_disk import find_run

    return IssuedTokens(find_run(state_folder(state), run=run).checkpoints.parent)


def _day(token: "Token") -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(token.not_after_unix_s))
    except (OverflowError, OSError, ValueError):
        return f"{token.not_after_unix_s} s after 1970"  # Beyond this system's calendar.


def _plain(token: "Token | None", *, is_revoked: bool) -> dict[str, object]:
    if token is None:
        return {"invitation": None}
    return {
        "invitation": token.key.hex(),
        "role": token.role.name.lower(),
        "uses": token.uses,
        "delegations": token.delegations,
        "not_after_unix_s": token.not_after_unix_s,
        "is_revoked": is_revoked,
    }
