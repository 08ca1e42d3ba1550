"""Addresses with a name in them, turned into those that the system knows for the name.

The library would ask name servers by itself. These know nothing of a home's own names, and one
that they do not know becomes an error that speaks of something else.
"""

import socket
from functools import partial

import trio
from multiaddr import Multiaddr

LOOKUPS_MAX = 4
"""At a time: each holds a thread that nobody can end, and strangers choose the names."""

LOCATIONS_MAX = 4

_FAMILIES = {
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}
_PROTOCOLS = {socket.AF_INET: "ip4", socket.AF_INET6: "ip6"}


async def located(address: Multiaddr, limiter: trio.CapacityLimiter) -> list[Multiaddr]:
    """Where to dial a dialable address: at itself, or at what its name stands for, best first.

    Raises ValueError, saying why, for a name that the system does not know. Cancelled, it leaves a
    thread behind that holds its place in `limiter` until the system answers.
    """
    kind, name = str(address).split("/")[1:3]
    if kind not in _FAMILIES:
        return [address]
    port = int(address.value_for_protocol("tcp"))
    ask = partial(socket.getaddrinfo, name, port, _FAMILIES[kind], socket.SOCK_STREAM)
    try:
        # The stubs that libp2p's dependencies bring predate this argument's name.
        found = await trio.to_thread.run_sync(
            ask,
            abandon_on_cancel=True,  # type: ignore[call-arg]
            limiter=limiter,
        )
    except (OSError, UnicodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise ValueError(f"the name {name} does not resolve: {why}") from error
    hosts = dict.fromkeys(
        (_PROTOCOLS[family], str(where[0]).partition("%")[0])
        for family, _, _, _, where in found
        if family in _PROTOCOLS
    )
    return [Multiaddr(f"/{kind}/{host}/tcp/{port}") for kind, host in hosts][:LOCATIONS_MAX]
