"""What a node says on its own network over mDNS, and what it believes of what is said there. Pure.

Everybody on that network hears it: that there is a Barnraise node, its peer id, its addresses and
port, and a tag by which those who know the run know it again. Neither the run's name nor the
machine's is told. A machine on the network may answer whatever it likes; it can only have us dial
machines of this same network, and who answers there has to prove the id.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blake3 import blake3

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId, parse_peer_id, peer_id_text

SERVICE = "_barnraise._tcp.local."

TAG_BYTES = 16
_TAG_DOMAIN = b"barnraise/lan/run/1\x00"
_PEER, _TAG = "peer", "run"

_TEXT_BYTES_MAX = 128
"""Of one property; ours have 52 at most."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class LanPeer:
    """A node of this network, as somebody there says."""

    peer: PeerId
    addresses: tuple[str, ...]
    tag: str
    """Of its run; empty of a node that is in none."""


def run_tag(run: bytes) -> str:
    """The tag of a run's digest. Nobody can tell the run by it who does not know it already."""
    return blake3(_TAG_DOMAIN + run).digest(length=TAG_BYTES).hex()


def properties_of(peer: PeerId, tag: str) -> dict[str, str]:
    """What is told beside addresses and port."""
    return {_PEER: peer_id_text(peer), _TAG: tag}


def networks_of(hosts: Iterable[tuple[str, str | None]]) -> tuple[Network, ...]:
    """The networks that these own addresses lie in; with each goes its mask, if there is one."""
    found: dict[Network, None] = {}
    for host, mask in hosts:
        try:
            if ":" in host:
                # Masks of IPv6 are told in full by some systems and as a number by others: homes
                # have /64.
                found[ipaddress.ip_network((host.partition("%")[0], 64), strict=False)] = None
            elif mask:
                found[ipaddress.ip_network(f"{host}/{mask}", strict=False)] = None
        except ValueError:
            continue
    return tuple(found)


def heard(
    properties: Mapping[bytes, bytes | None],
    hosts: Iterable[str],
    port: int | None,
    *,
    networks: Iterable[Network],
) -> LanPeer | None:
    """The node that an answer names, at those of its addresses that lie in `networks`; else None.

    Anything may be in an answer. Link-local addresses are left out: they mean nothing without an
    interface.
    """
    texts = {name: properties.get(name.encode()) or b"" for name in (_PEER, _TAG)}
    if (
        port is None
        or not 0 < port < 2**16
        or any(len(t) > _TEXT_BYTES_MAX for t in texts.values())
    ):
        return None
    try:
        peer = parse_peer_id(texts[_PEER].decode("ascii"))
        tag = texts[_TAG].decode("ascii")
        if tag and len(bytes.fromhex(tag)) != TAG_BYTES:
            return None
    except (ValueError, DecodeError):
        return None
    addresses = _addresses(hosts, port, tuple(networks))
    return LanPeer(peer, addresses, tag) if addresses else None


def _addresses(hosts: Iterable[str], port: int, networks: tuple[Network, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in hosts:
        try:
            host = ipaddress.ip_address(text)
        except ValueError:
            continue
        near = (one for one in networks if one.version == host.version)
        if not host.is_link_local and any(host in one for one in near):
            found[f"/ip{host.version}/{host}/tcp/{port}"] = None
    return tuple(found)[: limits.DHT_ADDRESSES_PER_CONTACT_MAX]
