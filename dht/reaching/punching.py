"""Opening a direct connection between two peers behind routers, agreed on over a relayed one. Pure.

A router lets in what answers a packet that went out. So both ends send their first packet at the
same moment, from the port on which they listen to the one on which the other does: to each router
the other's packet looks like an answer, and TCP makes one connection of the two. That works where
routers leave the port of a connection as it is, and not where they draw another one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from dht.reaching.addresses import host_and_port, is_public
from protocol.transport import Address, TypedFrames
from protocol.wire import Size

PUNCH_PROTOCOL = "/barnraise/punch/1"

TARGETS_MAX = 4
"""Addresses that one end may have the other send packets to."""

FRAME_BYTES_MAX = 2048


@dataclass(frozen=True, slots=True)
class Offer:
    """Where my first packet will come from, as far as I know. None: I do not know."""

    addresses: Annotated[tuple[Address, ...], Size(0, TARGETS_MAX)]


@dataclass(frozen=True, slots=True)
class Go:
    """Send now: I do so when this is with you."""


PUNCH_FRAMES = TypedFrames[Offer | Go]("signal of a punch", (Offer, Go), max_bytes=FRAME_BYTES_MAX)


def mapped_addresses(seen: Iterable[str], port: int) -> tuple[str, ...]:
    """Where a router that keeps ports shows our listening port: `seen` are addresses that others
    see us come from, whatever port that was."""
    places = (host_and_port(one) for one in seen if is_public(one))
    hosts = dict.fromkeys(place[0] for place in places if place is not None)
    found = (f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}" for host in hosts)
    return tuple(found)[:TARGETS_MAX]


def targets(offer: Offer) -> tuple[str, ...]:
    """Of what the other end names, where we send packets: never into somebody's home network."""
    return tuple(address for address in dict.fromkeys(offer.addresses) if is_public(address))


FIRST_WAIT_S = 0.5
"""A connection that is only a short visit is not worth the packets."""

TRIES = 3
TRY_S = 2.5
"""For one try: the first packet, and those that the system sends again after 1 s."""

AGAIN_FIRST_S, AGAIN_MAX_S = 20.0, 600.0


@dataclass(slots=True)
class Due:
    """When one peer is tried again."""

    at_s: float
    delay_s: float = AGAIN_FIRST_S

    def postpone(self, now_s: float) -> None:
        """It is tried now; should that fail, less and less often: networks change."""
        self.at_s = now_s + self.delay_s
        self.delay_s = min(2 * self.delay_s, AGAIN_MAX_S)
