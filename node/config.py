"""NodeConfig: local taste of one node. What must be equal on all peers is in the manifest."""

import re
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError, DecodeError
from protocol.identity import PeerId, parse_peer_id

LISTEN_DEFAULT = "/ip4/0.0.0.0/tcp/0"

_MULTIADDR = re.compile(r"(?P<address>/[^\s]+)/p2p/(?P<peer>[1-9A-HJ-NP-Za-km-z]+)/?")
_LISTEN = re.compile(r"/ip[46]/(?P<host>[0-9a-fA-F.:]+)/tcp/(?P<port>\d{1,5})/?")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer and one multiaddr of it, without `/p2p/`."""

    peer: PeerId
    address: str


def parse_peer_address(text: str) -> PeerAddress:
    """`/ip4/203.0.113.1/tcp/4001/p2p/12D3...` in its parts. Raises ConfigError."""
    match = _MULTIADDR.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no address like /ip4/203.0.113.1/tcp/4001/p2p/12D3Koo...")
    try:
        return PeerAddress(parse_peer_id(match["peer"]), match["address"])
    except DecodeError as error:
        raise ConfigError(f"{text!r} names no peer: {error}") from error


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of a listen address like `/ip4/0.0.0.0/tcp/4001`. Raises ConfigError."""
    match = _LISTEN.fullmatch(text)
    if match is None:
        raise ConfigError(f"--listen {text!r}: use an address like /ip4/0.0.0.0/tcp/4001")
    return match["host"], int(match["port"])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node's own settings."""

    state: Path
    """Folder of key, checkpoints and logs; one node at a time."""

    manifest: Path
    """The run's signed manifest."""

    listen: str = LISTEN_DEFAULT
    """Where to listen; port 0 takes a free one and keeps it."""

    bootstrap: tuple[str, ...] = ()
    """Addresses of peers that are asked first. A founder has none."""

    threads: int = 1
    """Torch threads of the trainer; more than cores divided by nodes slows all of them down."""

    wait_seats: int = 0
    """A founder holds its first COMMIT for so many joiners, at most 12 s."""

    validate_every: int = 1
    """Held-out loss every so many rounds, by members in turn; each costs the time of a few inner
    steps. 0: never."""

    compute_threads: int = 1
    """Threads for hashing, decoding and sums."""

    linger_s: float = 15.0
    """After the last round, how long to serve those who are still at it."""

    is_observer: bool = False
    """Follow the run without a seat."""

    @property
    def listen_host(self) -> str:
        """IP address to listen on."""
        return parse_listen(self.listen)[0]

    @property
    def listen_port(self) -> int:
        """TCP port, 0 for a free one."""
        return parse_listen(self.listen)[1]
