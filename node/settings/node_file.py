"""node.toml: local taste of one node, in its state folder. A command's options outrank it."""

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from node.config import (
    DEVICE_DEFAULT,
    LISTEN_DEFAULT,
    RELAY_GIB_DEFAULT,
    RELAY_MBIT_DEFAULT,
    NodeConfig,
)
from node.settings.toml_file import (
    Section,
    TemplateLook,
    key,
    parse_sections,
    read_toml,
    template_lines,
)
from node.state.folder import NODE_FILE, write_atomically
from protocol.errors import ConfigError

_HEAD = """\
# node.toml: this machine's own settings. All of them may change between two starts; options of the
# command outrank them. Remove the mark in front of a line to change it.

"""


class NodeFile(Section):
    """A node.toml."""

    listen: str = LISTEN_DEFAULT
    """where peers reach us; port 0 takes a free one and keeps it"""
    announce: list[str] = Field(default_factory=list)
    """addresses to tell others, e.g. ["/ip4/203.0.113.1/tcp/4001"] of a router"""
    interface: str = ""
    """tell others the addresses of this interface alone, e.g. "eth0" """
    has_port_mapping: bool = True
    """ask the home's router for a port (NAT-PMP, UPnP); given back at the end"""
    has_mdns: bool = True
    """meet the nodes of this network (mDNS): all of it hears that one is here"""
    private_addresses: str = "auto"
    """in records that strangers read, addresses of this network: "auto", while the node has
    no other; "always"; or "never" """
    bootstrap: list[str] = Field(default_factory=list)
    """peers to ask first: ["/ip4/203.0.113.1/tcp/4001/p2p/12D3Koo..."]"""
    psk: str = ""
    """key file of a private swarm; its nodes meet each other and nobody else"""
    security: str = "tls"
    """of connections: "tls" with all who take it, or "noise" with all"""
    threads: int | None = key(example=1)
    """torch threads; left out, all cores but one"""
    compute_threads: int = 1
    """threads for hashing and sums; each takes a core while it works"""
    device: str = DEVICE_DEFAULT
    """where to train: "auto", "cuda", "mps" or "cpu" """
    wait_seats: int = 0
    """a founder waits for so many joiners with its first round,"""
    wait_seats_s: float = 12.0
    """at most so many seconds"""
    validate_every: int = 1
    """rounds between looks at held-out text, each some inner steps; 0: never"""
    linger_s: float = 15.0
    """seconds to serve others after the last round"""
    up_mbit: float = 0.0
    """Mbit/s of our line that the run may take on the way out; 0: no limit"""
    down_mbit: float = 0.0
    """and on the way in; some kilobytes a round come on top of both"""
    state_mbit: float = 0.0
    """Mbit/s that joiners may take of our line for their state; 0: no limit"""
    relay_gib: float = RELAY_GIB_DEFAULT
    """GiB a day that it carries for peers behind routers, where it can; 0: none"""
    relay_mbit: float = RELAY_MBIT_DEFAULT
    """Mbit/s of the line that this may take; 0: no limit"""
    is_observer: bool = False
    """follow the run without training"""
    status_port: int = 0
    """of the status server on this machine; 0 takes a free one"""
    has_status: bool = True
    """whether there is one"""
    log_level: str = "info"
    """"debug" (a line per message), "info", "warning" or "error" """
    is_log_json: bool = False
    """log lines as JSON objects"""


def node_file_text() -> str:
    """A node.toml with every key at its default, all of it comments."""
    look = TemplateLook(column=25, gap=2, is_marked=True)
    return _HEAD + "\n".join(template_lines(NodeFile, look, {})) + "\n"


def read_node_file(state: Path) -> NodeFile:
    """The node.toml of a state folder; a first one, all of it comments, is written there.

    Raises ConfigError naming file and key.
    """
    path = state / NODE_FILE
    if not path.exists():
        write_atomically(path, node_file_text().encode())
    return parse_sections(NodeFile, read_toml(path), path)


def psk_file(file: NodeFile, options: Mapping[str, object], state: Path) -> Path | None:
    """The PSK's key file, by option or node.toml, where a path is seen from the state folder."""
    given = options.get("psk")
    if isinstance(given, Path):
        return given.expanduser().absolute()
    return state / Path(file.psk).expanduser() if file.psk else None


def node_config(
    file: NodeFile, options: Mapping[str, object], *, state: Path, manifest: Path
) -> NodeConfig:
    """The config of one start. `options` are those that the command was given, by field.

    Raises ConfigError naming the field that is out of range.
    """
    values = file.model_dump(exclude={"has_status"})
    for name in ("announce", "bootstrap"):
        values[name] = tuple(values[name])
    values["psk"] = psk_file(file, options, state)
    if values["threads"] is None:
        # One core is for the network process: trainers with a thread too many are far slower.
        values["threads"] = max(1, (os.cpu_count() or 1) - 1)
    if not file.has_status:
        values["status_port"] = None
    # Peers named on the command line are asked besides those of the file.
    named = options.get("bootstrap", ())
    assert isinstance(named, tuple)
    bootstrap = tuple(dict.fromkeys((*named, *values["bootstrap"])))
    try:
        return NodeConfig(
            state=state,
            manifest=manifest,
            **{**values, **options, "bootstrap": bootstrap, "psk": values["psk"]},
        )
    except ConfigError as error:
        given = f"the command's options or {state / NODE_FILE}"
        raise ConfigError(f"{error} (in {given})") from error
