"""What an address means: what it leads to, who may be told it, and who is dialled there.

An address of a home, a company or one machine means another machine, or nobody, everywhere else.

    /ip4/203.0.113.1/tcp/4001/p2p/12D3Relay.../p2p-circuit

is where a peer behind a router may be dialled: a relay, and where that listens. What runs over such
a circuit is a connection like any other, with its own handshake, so that a relay sees nothing but
how much it carries and between whom. All but `is_gone` is pure.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import trio

from protocol import limits
from protocol.identity import PeerId, parse_peer_id, peer_id_text
from protocol.transport import TypedFrames
from protocol.wire import Peer, Range, Size

PROBE_S = 0.5
"""For one look. A machine that is busy answers later, and is there."""

LOOKS, LOOK_AGAIN_S = 2, 0.1
"""A listener that is being replaced is missing for an instant."""


_Host = ipaddress.IPv4Address | ipaddress.IPv6Address
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Reached:
    """The other end of a connection; of one that `is_ours` to open, the port is a listener's."""

    host: str
    port: int
    is_ours: bool


def host_and_port(address: str) -> tuple[str, int] | None:
    """Of an address like /ip4/127.0.0.1/tcp/4001; None of any other, or of no port."""
    words = address.split("/")
    if len(words) != 5 or words[1] not in ("ip4", "ip6") or words[3] != "tcp":
        return None
    if _PORT.fullmatch(words[4]) is None or not 1 <= int(words[4]) <= 65535:
        return None
    return words[2], int(words[4])


def ip_of(address: str) -> _Host | None:
    """The host of an address of TCP over IP; None of any other."""
    place = host_and_port(address)
    try:
        return None if place is None else ipaddress.ip_address(place[0])
    except ValueError:
        return None


def telling(addresses: Sequence[str], reached: Reached) -> list[tuple[str, int]]:
    """Those of the peer's addresses that lead to itself for sure."""
    found = []
    for place in map(host_and_port, addresses):
        if place is None or place[0] != reached.host:
            continue
        if (reached.is_ours and place[1] == reached.port) or _is_near(place[0]):
            found.append(place)
    return list(dict.fromkeys(found))


def _is_near(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private or address.is_loopback or address.is_link_local


async def is_gone(addresses: Sequence[str], reached: Reached) -> bool:
    """Whether each address that would tell refuses connections, more than once; no address, no."""
    places = telling(addresses, reached)
    for look in range(LOOKS if places else 0):
        if look:
            await trio.sleep(LOOK_AGAIN_S)
        for host, port in places:
            if not await _refuses(host, port):
                return False
    return bool(places)


async def _refuses(host: str, port: int) -> bool:
    with trio.move_on_after(PROBE_S):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            return _is_refusal(error)
        await trio.aclose_forcefully(stream)
    return False


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the system said so, in whatever trio has wrapped it."""
    if isinstance(error, ConnectionRefusedError):
        return True
    if isinstance(error, BaseExceptionGroup):
        return all(_is_refusal(one) for one in error.exceptions)
    return error is not None and _is_refusal(error.__cause__)


RELAY_PROTOCOL = "/barnraise/relay/1"
"""To a relay: keep a place for me, or lead me to somebody who has one."""

CIRCUIT_PROTOCOL = "/barnraise/circuit/1"
"""From a relay: somebody wants to speak with you."""

SEEN_BYTES_MAX = 64
REASON_BYTES_MAX = 128

_CIRCUIT = re.compile(
    r"(?P<address>/(?:ip4|ip6|dns|dns4|dns6)/[^/\s]+/tcp/\d{1,5})"
    r"/p2p/(?P<relay>[1-9A-HJ-NP-Za-km-z]+)/p2p-circuit"
)

_NEAR = tuple(
    map(
        ipaddress.ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
            *("127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8"),
            *("fc00::/7", "fe80::/10", "::1/128", "::/128"),
        ),
    )
)
"""Where an address means another machine in each home. Not `is_private`: that also holds networks
that are public in somebody's laboratory."""

PORT_MIN, PORTS_LOW = 1024, (443,)
"""Of what is dialled because others say so. Below lie the services of systems: behind one address
there may be machines of others, and nobody shall have us knock at their mail server."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Circuit:
    """A relay, and where it listens."""

    relay: PeerId
    address: str


def circuit_address(relay: PeerId, address: str) -> str:
    """Where somebody may be dialled who has a place at the relay."""
    return f"{address}/p2p/{peer_id_text(relay)}/p2p-circuit"


def parse_circuit(address: str) -> Circuit | None:
    """The relay in a circuit's address; None for any other address.

    Raises DecodeError where what should name the relay names nobody.
    """
    if len(address) > limits.ADDRESS_BYTES_MAX:
        return None
    match = _CIRCUIT.fullmatch(address)
    if match is None:
        return None
    return Circuit(parse_peer_id(match["relay"]), match["address"])


def is_circuit(address: str) -> bool:
    """Whether an address leads through a relay."""
    return address.endswith("/p2p-circuit")


def is_public(address: str) -> bool:
    """Whether an address of TCP over IP means the same machine wherever it is dialled from."""
    found = ip_of(address)
    if found is None:
        return False
    host = _within(found)
    return not host.is_multicast and not any(
        host in network for network in _NEAR if network.version == host.version
    )


def _within(host: _Host) -> _Host:
    """The IPv4 address that an IPv6 address stands for, if it does: packets end up there."""
    if host.version == 4:
        return host
    if host in _NAT64:
        return ipaddress.IPv4Address(int(host) & (2**32 - 1))
    return host.ipv4_mapped or host.sixtofour or host


def may_be_dialled(said: Iterable[str], here: Iterable[str]) -> tuple[str, ...]:
    """Of the addresses that a stranger says are its own, those that a node dials which is `here`.

    Not what leads into the dialler's own machine, or to whoever happens to be next to it: else a
    record would have others knock at services of theirs. Of its own networks' machines, which it
    meets there, no port of a system. Whoever is told loopback by its own transport is alone with
    others on one machine, and dials that.
    """
    is_alone = any(map(_is_own_machine, here))
    return tuple(one for one in said if is_alone or not _is_barred(first_hop(one)))


def is_service(port: int) -> bool:
    """Whether a system's service may listen there, and hardly ever a peer."""
    return port < PORT_MIN and port not in PORTS_LOW


def first_hop(address: str) -> str:
    """What is dialled of an address: of a circuit's, where the relay listens."""
    return address.partition("/p2p/")[0] if is_circuit(address) else address


def _is_barred(address: str) -> bool:
    place = host_and_port(address)
    is_service_near = place is not None and is_service(place[1]) and not is_public(address)
    return is_service_near or _is_own_machine(address)


def _is_own_machine(address: str) -> bool:
    place = host_and_port(address)
    try:
        host = ipaddress.ip_address(place[0]) if place is not None else None
    except ValueError:
        return True
    if host is None:
        return False
    host = _within(host)
    return host.is_loopback or host.is_link_local or host.is_unspecified or host.is_multicast


def dial_order(addresses: Iterable[str]) -> tuple[str, ...]:
    """Each once: near ones first, since they cost nobody's line, then public ones, then relays.

    Sorting is stable: what the peer says first is tried first.
    """
    return tuple(sorted(dict.fromkeys(addresses), key=is_circuit))


# Messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep a place for me as long as this stream lasts; said again and again as a sign of life."""


@dataclass(frozen=True, slots=True)
class Join:
    """Lead me to `target`; what follows the answer is for it."""

    target: Peer


@dataclass(frozen=True, slots=True)
class Granted:
    """To `Reserve`: the place is yours. `seen` is the address that you come from, or nothing."""

    seen: Annotated[str, Size(0, SEEN_BYTES_MAX)]
    day_bytes_left: Annotated[int, Range(0, 2**62)]
    """What the relay will carry for you today."""


@dataclass(frozen=True, slots=True)
class Joined:
    """To `Join`: from now on the other end hears you."""


@dataclass(frozen=True, slots=True)
class Refused:
    """To either: no, and why."""

    reason: Annotated[str, Size(0, REASON_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Incoming:
    """From a relay: `source`, as it has proved to the relay, wants to speak with you."""

    source: Peer


Ask = Reserve | Join
Answer = Granted | Joined | Refused

FRAME_BYTES_MAX = 256

RELAY_FRAMES = TypedFrames[Ask | Answer | Incoming](
    "message of a relay",
    (Reserve, Granted, Join, Joined, Incoming, Refused),
    max_bytes=FRAME_BYTES_MAX,
)


PrivateAddresses = Literal["auto", "always", "never"]
"""Whether records for strangers hold private addresses; "auto": only of a node that has no other,
for it meets peers of its own network alone."""

PRIVATE_ADDRESSES: tuple[PrivateAddresses, ...] = get_args(PrivateAddresses)


def means_the_same_everywhere(address: str) -> bool:
    """Whether an address leads to one machine wherever it is dialled from: public ones, names, and
    relays at such."""
    hop = first_hop(address)
    return is_public(hop) or (host_and_port(hop) is None and hop.startswith("/dns"))


def told_in_records(addresses: Iterable[str], private: PrivateAddresses) -> tuple[str, ...]:
    """Of a node's own addresses those that it tells strangers, in order."""
    own = tuple(addresses)
    if private == "always":
        return own
    far = tuple(filter(means_the_same_everywhere, own))
    return far if far or private == "never" else own


def told_to_members(
    addresses: Iterable[str], trust: str, private: PrivateAddresses
) -> tuple[str, ...]:
    """The same for members of a run: friends are told all, so that those of one home meet there."""
    if trust == "friends" and private != "never":
        return tuple(addresses)
    return told_in_records(addresses, private)


NARROW_BITS = {4: 24, 6: 48}
WIDE_BITS = {4: 16, 6: 32}


def subnets(addresses: Iterable[str], bits: dict[int, int]) -> frozenset[str]:
    """The public networks of so many bits that `addresses` lie in."""
    hosts = [host for host in map(ip_of, addresses) if host is not None and host.is_global]
    return frozenset(
        str(ipaddress.ip_network((host, bits[host.version]), strict=False)) for host in hosts
    )


VIRTUAL = (
    *("docker", "br-", "veth", "virbr", "podman", "cni", "flannel", "cali", "lxc", "lxd"),
    *("vmnet", "vboxnet", "vEthernet", "bridge1"),
)
"""What names of interfaces begin with that lead to containers and machines inside this one. Each
such host has the same addresses there, so whoever dials one meets itself, or nobody."""


IP6_MAX = 3
"""A machine collects temporary addresses of IPv6, and they must not crowd out those of its home."""


def told_hosts(interfaces: Mapping[str, Iterable[str]], *versions: int) -> tuple[str, ...]:
    """Of the addresses of each interface those of some IP versions that others may dial, in order;
    public ones first. With nothing but virtual interfaces, a container's for instance, theirs."""
    real = {name: hosts for name, hosts in interfaces.items() if not name.startswith(VIRTUAL)}
    return _usable(real, versions) or _usable(interfaces, versions)


def loopback_host(interfaces: Mapping[str, Iterable[str]], *versions: int) -> str:
    """This machine's own address for itself, in the first of the versions that has one; or nothing:
    a host may have lost 127.0.0.1 together with all of IPv4."""
    here = {host for hosts in interfaces.values() for host in hosts}
    return next((LOOPBACKS[one] for one in versions if LOOPBACKS[one] in here), "")


LOOPBACKS = {4: "127.0.0.1", 6: "::1"}


def _usable(interfaces: Mapping[str, Iterable[str]], versions: Collection[int]) -> tuple[str, ...]:
    found = set()
    for host in (host for hosts in interfaces.values() for host in hosts):
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            continue  # A hardware address.
        if address.version in versions and not (address.is_loopback or address.is_link_local):
            found.add(address)
    ordered = sorted(found, key=lambda one: (one.is_private, one.version, int(one)))
    sixes = [one for one in ordered if one.version == 6][IP6_MAX:]
    return tuple(str(one) for one in ordered if one not in sixes)
