"""`barnraise init`, `barnraise run` and `barnraise join`: found a run, take part in one."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from node.commands.app import app, print_json
from node.processes.interrupts import end_at_once, end_now, handling
from node.state.ownership import shown_state

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help="State folder of this node: it holds the key, checkpoints and logs.",
        show_default=shown_state(),
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        help="Address on which this node listens for peers.",
        show_default="/ip4/0.0.0.0/tcp/0: a free port, kept for later starts",
    ),
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
InterfaceOption = Annotated[
    str | None,
    typer.Option("--interface", help="Tell peers only the addresses of this network interface."),
]
BootstrapOption = Annotated[
    list[str] | None, typer.Option("--bootstrap", help="Address of a peer to contact first.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Number of torch threads.", show_default="all cores except one"),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Device to compute on: auto, cpu, cuda, cuda:N or mps.",
        show_default="auto",
    ),
]
StatusPortOption = Annotated[
    int | None,
    typer.Option(
        "--status-port",
        help="Port of the status server (loopback only).",
        show_default="any free port",
    ),
]
UpOption = Annotated[
    float | None,
    typer.Option("--up-mbit", help="Upload limit in Mbit/s.", show_default="no limit"),
]
DownOption = Annotated[
    float | None,
    typer.Option("--down-mbit", help="Download limit in Mbit/s.", show_default="no limit"),
]
PskOption = Annotated[
    Path | None,
    typer.Option(
        "--psk", help="Key file of a private swarm; nodes with the key connect only to each other."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print events as JSON lines on standard output.")
]
LogJsonOption = Annotated[
    bool, typer.Option("--log-json", help="Write the log to standard error as JSON lines.")
]
ModelFileOption = Annotated[
    Path | None,
    typer.Option("--model-file", help="The model file of the run, if its manifest names one."),
]
LinkFileOption = Annotated[
    Path | None,
    typer.Option(
        "--link-file",
        help="File to read the link from, which keeps this secret off the command line.",
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Append a record of each of this node's steps to this file, for later checks.",
    ),
]
ObserverOption = Annotated[
    bool,
    typer.Option(
        "--observer", help="Follow the run and serve its state to others without training."
    ),
]


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("run.toml"),
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the run.", show_default=False)
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object as the last line of standard output."),
    ] = False,
) -> None:
    """Write a run.toml in which every key is explained; `barnraise run` founds a run with it."""
    from node.reporting.shown import as_word
    from node.settings.run_template import TITLE_DEFAULT, write_run_file

    write_run_file(file, TITLE_DEFAULT if title is None else title)
    if json:
        print_json({"file": str(file.absolute())})
    else:
        typer.echo(f"{file} is written. Look through it, then: barnraise run {as_word(str(file))}")


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The run.toml that `barnraise init` wrote.")],
    state: StateOption = None,
    listen: ListenOption = None,
    announce: AnnounceOption = None,
    interface: InterfaceOption = None,
    bootstrap: BootstrapOption = None,
    psk: PskOption = None,
    up_mbit: UpOption = None,
    down_mbit: DownOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = None,
    status_port: StatusPortOption = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="Found a new run even if this file has already founded one."),
    ] = False,
    trace: TraceOption = None,
    json: JsonOption = False,
    log_json: LogJsonOption = False,
) -> None:
    """Found the run that a run.toml describes, or continue it, in the foreground until Ctrl+C or
    the end of the run.
    """
    given = {
        "listen": listen,
        "announce": _tuple(announce),
        "interface": interface,
        "bootstrap": _tuple(bootstrap),
        "psk": psk,
        "up_mbit": up_mbit,
        "down_mbit": down_mbit,
        "threads": threads,
        "device": device,
        "status_port": status_port,
        "trace": trace,
        "is_log_json": log_json or None,
    }
    with handling(end_at_once):
        # It loads libp2p, which takes a second.
        from node.daemon.foreground import Start, run_file_in_foreground

        start = Start(state=_state(state), options=_named(given), is_json=json)
        end_now(run_file_in_foreground(start, file, is_new=new))


@app.command()
def join(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="LINK_OR_MULTIADDR",
            help="An invite link or the address of a peer; `-` reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    link_file: LinkFileOption = None,
    state: StateOption = None,
    listen: ListenOption = None,
    announce: AnnounceOption = None,
    interface: InterfaceOption = None,
    bootstrap: BootstrapOption = None,
    psk: PskOption = None,
    up_mbit: UpOption = None,
    down_mbit: DownOption = None,
    threads: ThreadsOption = None,
    device: DeviceOption = None,
    status_port: StatusPortOption = None,
    model_file: ModelFileOption = None,
    observer: ObserverOption = False,
    trace: TraceOption = None,
    json: JsonOption = False,
    log_json: LogJsonOption = False,
) -> None:
    """Take part in a run, or continue, in the foreground until Ctrl+C or the end of the run."""
    given = {
        "listen": listen,
        "announce": _tuple(announce),
        "interface": interface,
        "bootstrap": _tuple(bootstrap),
        "psk": psk,
        "up_mbit": up_mbit,
        "down_mbit": down_mbit,
        "threads": threads,
        "device": device,
        "status_port": status_port,
        "model_file": model_file,
        "is_observer": observer or None,
        "trace": trace,
        "is_log_json": log_json or None,
    }
    with handling(end_at_once):
        # It loads libp2p, which takes a second.
        from node.daemon.foreground import Start, join_in_foreground
        from node.peers.joining import parse_target
        from node.peers.link_input import SHOWN_LINK, STANDARD_INPUT, read_target

        text = read_target(target, link_file, sys.stdin.buffer)
        parsed = parse_target(text)
        if parsed.offer is not None and target not in (None, STANDARD_INPUT):
            typer.echo(f"warning: {SHOWN_LINK}", err=True)
        start = Start(state=_state(state), options=_named(given), is_json=json)
        end_now(join_in_foreground(start, parsed))


@app.command()
def psk(
    file: Annotated[Path, typer.Argument(help="The key file to write.")] = Path("swarm.key"),
) -> None:
    """Write the key of a new private swarm. Hand it to the members over a trusted channel."""
    from node.state.psk import write_new_psk

    write_new_psk(file)
    typer.echo(f"{file} is written. Every node of the swarm is started with --psk {file}")


def _state(given: Path | None) -> Path:
    from node.state.folder import default_state

    return (given or default_state()).expanduser().absolute()


def _named(options: Mapping[str, object]) -> dict[str, object]:
    """The options that were given: the others are left to node.toml."""
    return {name: value for name, value in options.items() if value is not None}


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return tuple(values) if values else None
