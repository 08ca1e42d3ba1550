"""Which part of the internet addresses lie in, so that nobody fills a table from one corner. Pure.

Private, loopback and link-local addresses belong to no corner: the machines of a home or a campus
must all find room. A name is resolved by whoever dials it, and belongs to none either.
"""

import ipaddress
from collections.abc import Iterable

from dht.reaching.gone import host_and_port

NARROW_BITS = {4: 24, 6: 48}
WIDE_BITS = {4: 16, 6: 32}


def subnets(addresses: Iterable[str], bits: dict[int, int]) -> frozenset[str]:
    """The public networks of so many bits that `addresses` lie in."""
    found = set()
    for place in map(host_and_port, addresses):
        if place is None:
            continue
        try:
            host = ipaddress.ip_address(place[0])
        except ValueError:
            continue
        if host.is_global:
            network = ipaddress.ip_network((host, bits[host.version]), strict=False)
            found.add(str(network))
    return frozenset(found)
