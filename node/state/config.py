"""NodeConfig: local taste of one node. What must be equal on all peers is in the manifest."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from dht.reaching.addresses import PRIVATE_ADDRESSES, PrivateAddresses, parse_circuit
from protocol.errors import ConfigError, DecodeError
from protocol.identity import PeerId, parse_peer_id, peer_id_text
from protocol.limits import SEATS_MAX

LISTEN_DEFAULT = "/ip4/0.0.0.0/tcp/0"
DEVICE_DEFAULT = "auto"
VALIDATION_SHARE_DEFAULT = 0.01
DEVICE_NAME = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
RELAY_GIB_DEFAULT, RELAY_MBIT_DEFAULT = 5.0, 16.0
"""What a node gives as a relay unless its owner says otherwise: 2 MB/s of its line, 45 minutes of
it a day. A bootstrap node, which is there for it, gives more."""

RELAY_GIB_MAX = 2.0**20
LOG_LEVELS = ("debug", "info", "warning", "error")
PORT_MAX = 65_535
THREADS_MAX = 4096
LINGER_S_MAX = 86_400.0
START_WITHIN_S_MAX = 31.0 * 86_400.0
STATE_MBIT_MIN, LINE_MBIT_MIN, MBIT_MAX = 0.5, 1.0, 1e6
"""Slower than the least, a joiner would take us for dead between two pieces of a cell."""

_MULTIADDR = re.compile(r"(?P<address>/[!-~]+)/p2p/(?P<peer>[1-9A-HJ-NP-Za-km-z]+)/?")
_EXAMPLE = "/ip4/203.0.113.1/tcp/4001/p2p/12D3Koo..."
_TCP = re.compile(r"/(?P<kind>ip4|ip6|dns|dns4|dns6)/(?P<host>[^/]+)/tcp/(?P<port>\d{1,6})")
_NAME = re.compile(r"(?=.{1,253}$)[\w-]{1,63}(\.[\w-]{1,63})*\.?")
_ZONED = re.compile(r"[0-9a-fA-F.:]+(%[0-9A-Za-z_.-]{1,32})?")
_LISTEN = re.compile(r"/ip(?P<version>[46])/(?P<host>[0-9a-fA-F.:]+)/tcp/(?P<port>\d{1,5})/?")

SECURITIES = ("tls", "noise")
"""Those of `dht.transport.libp2p_host`, which takes a second to load."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer and one multiaddr of it, without `/p2p/`."""

    peer: PeerId
    address: str

    def __str__(self) -> str:
        return f"{self.address}/p2p/{peer_id_text(self.peer)}"


def check_device(name: str) -> None:
    """Raises ConfigError for a name that no device can have."""
    if DEVICE_NAME.fullmatch(name) is None:
        raise ConfigError(f"device: {name!r} is none of auto, cpu, cuda, cuda:N, mps")


def parse_peer_address(text: str) -> PeerAddress:
    """`/ip4/203.0.113.1/tcp/4001/p2p/12D3...` in its parts. Raises ConfigError."""
    match = _MULTIADDR.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no address like {_EXAMPLE}")
    try:
        return PeerAddress(parse_peer_id(match["peer"]), match["address"])
    except DecodeError as error:
        raise ConfigError(f"{text!r} names no peer: {error}") from error


def parse_dialable(text: str) -> PeerAddress:
    """As `parse_peer_address`, for what a user typed: TCP over IP or a name. Raises ConfigError."""
    parsed = parse_peer_address(text)
    why = _why_undialable(parsed.address)
    if why is not None:
        raise ConfigError(f"{text!r} cannot be dialled: {why}; use an address like {_EXAMPLE}")
    return parsed


def _why_undialable(address: str) -> str | None:
    try:
        circuit = parse_circuit(address)
    except DecodeError as error:
        return f"its relay is nobody: {error}"
    match = _TCP.fullmatch(address if circuit is None else circuit.address)
    if match is None:
        return "it is not /ip4, /ip6 or /dns with /tcp and nothing else"
    if not 1 <= int(match["port"]) <= PORT_MAX:
        return f"port {match['port']} is not within 1..{PORT_MAX}"
    kind, host = match["kind"], match["host"]
    if kind.startswith("dns"):
        return None if _NAME.fullmatch(host) else f"{host} is no name of a machine"
    return None if _is_ip(host, kind[-1]) else f"{host} is no address of IPv{kind[-1]}"


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of a listen address like `/ip4/0.0.0.0/tcp/4001`. Raises ConfigError."""
    match = _LISTEN.fullmatch(text)
    is_address = match is not None and int(match["port"]) <= PORT_MAX
    if match is None or not is_address or not _is_ip(match["host"], match["version"]):
        raise ConfigError(f"--listen {text!r}: use an address like /ip4/0.0.0.0/tcp/4001")
    return match["host"], int(match["port"])


def _is_ip(host: str, version: str) -> bool:
    # Python takes anything behind the % of a zone, also what a shell would run.
    if _ZONED.fullmatch(host) is None:
        return False
    try:
        return str(ipaddress.ip_address(host).version) == version
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node's own settings. Raises ConfigError naming a field that is out of range."""

    state: Path
    """Folder of key, checkpoints and logs; one node at a time."""

    manifest: Path
    """The run's signed manifest."""

    listen: str = LISTEN_DEFAULT
    """Where to listen; port 0 takes a free one and keeps it over restarts."""

    announce: tuple[str, ...] = ()
    """Addresses to tell others in place of this machine's own, e.g. of a forwarded port."""

    interface: str = ""
    """Name of the interface whose addresses others are told; empty for all."""

    has_port_mapping: bool = True
    """Whether the home's router is asked for a port, by NAT-PMP and UPnP."""

    has_mdns: bool = True
    """Whether the node tells its own network that it is there, and asks who else is (mDNS); in a
    private swarm it does not."""

    private_addresses: PrivateAddresses = "auto"
    """Whether records that strangers read hold addresses of this node's own network: "auto", while
    it has no other; "always"; or "never"."""

    bootstrap: tuple[str, ...] = ()
    """Addresses of peers that are asked first, besides the known peers. A founder has none."""

    psk: Path | None = None
    """Key file of the private swarm that the node is in; it meets nobody else."""

    security: str = "tls"
    """How connections are encrypted: "tls", and "noise" with whom has none; or
    "noise" with all."""

    threads: int = 1
    """Torch threads of the trainer; more than cores divided by nodes slows all of them down."""

    device: str = DEVICE_DEFAULT
    """Where the trainer computes: "auto" takes CUDA, then MPS, then the CPU."""

    model_file: Path | None = None
    """The run's model, where it is in a file: what the founder gave, and the manifest names."""

    corpus: Path | None = None
    """The folder of the run's token store, where its text is the founder's own."""

    start_with: int = 1
    """A founder holds its first COMMIT until so many peers, itself included, have a seat or have
    proved one; at most `start_within_s`."""

    start_within_s: float = 0.0
    """Seconds from its start on, and then whoever comes joins a run that has begun; 0 sets no
    limit."""

    validate_every: int = 1
    """Held-out loss every so many rounds, by whoever has nothing else to do meanwhile. 0: never."""

    validation_share: float = VALIDATION_SHARE_DEFAULT
    """Of the trainer's time, what this may take; a loss for which there was less time is one over
    fewer windows. 0: of the last round's weights alone, which are measured in any case."""

    compute_threads: int = 1
    """Threads for hashing, decoding and sums; each takes a core from the trainer while it works."""

    linger_s: float = 15.0
    """After the last round, how long to serve those who are still at it."""

    up_mbit: float = 0.0
    """Mbit/s of our line that contributions, results and states may take on their way out, all
    together; 0 sets no limit. Messages of some kilobytes a round come on top."""

    down_mbit: float = 0.0
    """The same on their way in."""

    state_mbit: float = 0.0
    """Mbit/s that joiners get of our line for their state, all together; 0 sets no limit. Rounds go
    before them in any case: they get half of it at least."""

    relay_gib: float = RELAY_GIB_DEFAULT
    """GiB in a day that it carries for peers behind routers, once others have found it at a public
    address; 0: none."""

    relay_mbit: float = RELAY_MBIT_DEFAULT
    """Mbit/s that this may take, all of it together; 0 sets no limit."""

    is_observer: bool = False
    """Follow the run without a seat."""

    trace: Path | None = None
    """File to which records of what this node does are appended, for the invariants' checks."""

    status_port: int | None = 0
    """Loopback port of the status server; 0 takes a free one, None starts none."""

    log_level: str = "info"
    """Least level that is logged: debug (a line per message), info, warning or error."""

    is_log_json: bool = False
    """Log lines as JSON objects."""

    def __post_init__(self) -> None:
        counts = {"threads": self.threads, "compute_threads": self.compute_threads}
        for name, value in counts.items():
            if not 1 <= value <= THREADS_MAX:
                raise ConfigError(f"{name}: {value} is not within 1..{THREADS_MAX}")
        if self.validate_every < 0:
            raise ConfigError(f"validate_every: {self.validate_every} is below 0")
        if not 1 <= self.start_with <= SEATS_MAX:
            raise ConfigError(f"start_with: {self.start_with} is not within 1..{SEATS_MAX}")
        if not 0.0 <= self.validation_share <= 1.0:
            raise ConfigError(f"validation_share: {self.validation_share} is not within 0..1")
        for name, mbit, least in (
            ("state_mbit", self.state_mbit, STATE_MBIT_MIN),
            ("up_mbit", self.up_mbit, LINE_MBIT_MIN),
            ("down_mbit", self.down_mbit, LINE_MBIT_MIN),
        ):
            if mbit and not least <= mbit <= MBIT_MAX:
                raise ConfigError(
                    f"{name}: {mbit:g} is neither 0 (no limit) nor within {least:g}..{MBIT_MAX:g}"
                )
        if self.private_addresses not in PRIVATE_ADDRESSES:
            raise ConfigError(
                f"private_addresses: {self.private_addresses!r} is none of "
                f"{', '.join(PRIVATE_ADDRESSES)}"
            )
        if self.security not in SECURITIES:
            raise ConfigError(f"security: {self.security!r} is none of {', '.join(SECURITIES)}")
        if not 0.0 <= self.relay_gib <= RELAY_GIB_MAX:
            raise ConfigError(f"relay_gib: {self.relay_gib} is not within 0..{RELAY_GIB_MAX:.0f}")
        if not 0.0 <= self.relay_mbit <= 1e6:
            raise ConfigError(f"relay_mbit: {self.relay_mbit} is not within 0..1e6")
        if not 0.0 <= self.linger_s <= LINGER_S_MAX:
            raise ConfigError(f"linger_s: {self.linger_s} is not within 0..{LINGER_S_MAX:.0f}")
        if not 0.0 <= self.start_within_s <= START_WITHIN_S_MAX:
            raise ConfigError(
                f"start_within_s: {self.start_within_s} is not within 0..{START_WITHIN_S_MAX:.0f}"
            )
        if self.status_port is not None and not 0 <= self.status_port <= PORT_MAX:
            raise ConfigError(f"status_port: {self.status_port} is not within 0..{PORT_MAX}")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level: {self.log_level!r} is none of {', '.join(LOG_LEVELS)}")
        check_device(self.device)
        if self.trace is not None and self.trace.is_dir():
            raise ConfigError(f"trace: {self.trace} is a folder; name a file")
        parse_listen(self.listen)
        for text in self.bootstrap:
            parse_peer_address(text)

    @property
    def records_private(self) -> PrivateAddresses:
        """`private_addresses`, where what the owner announces itself is told as it is."""
        is_own_word = bool(self.announce) and self.private_addresses == "auto"
        return "always" if is_own_word else self.private_addresses

    @property
    def listen_host(self) -> str:
        """IP address to listen on."""
        return parse_listen(self.listen)[0]

    @property
    def listen_port(self) -> int:
        """TCP port, 0 for a free one."""
        return parse_listen(self.listen)[1]
