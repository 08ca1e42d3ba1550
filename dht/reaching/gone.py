"""Whether a peer whose connection broke is gone: its process, and not only the connection.

A system refuses connections to a port on which nobody listens. That says nothing where an address
may lead to somebody else's machine, behind a router for instance. So it counts in two cases only:
the broken connection was one that we had opened to this very address, or it came from this host and
the host is on our own network.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import trio

PROBE_S = 0.5
"""For one look. A machine that is busy answers later, and is there."""

LOOKS, LOOK_AGAIN_S = 2, 0.1
"""A listener that is being replaced is missing for an instant."""


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
