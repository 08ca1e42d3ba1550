"""Who of those that dial us keeps a connection, and who has to go for another. Pure.

Anybody may connect, from any number of sockets, so that a place is worth what its holder does with
it. Hosts take turns to begin their handshakes, and who stalls in it makes room. Behind it members
of the run come before all others, and of the others those go first that open no stream.
Part of all places is left for what this node dials itself.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dht.reaching.addresses import NARROW_BITS, subnets
from protocol.identity import PeerId

OWN_SHARE = 5
"""One part in so many of all connections is for this node's own dials. As many may be at their
handshake, beside those that are through with it."""

KNOCKING_MIN = 16
"""At their handshake at one time: each is over in a few round trips."""

STALL_S = 1.0
"""Where others wait, who says nothing for so long in the middle of its handshake has to go."""

WAITING_MAX = 128
"""Connections that wait for their turn. They cost a socket each, and nothing is read of them."""

MEMBER_SHARE, PLACES_A_MEMBER = 4, 3
"""Of the places of those that dialled us, at most one in four is kept for members that are not here
yet; three each: two for streams, and one more while both dial."""

HOST_SHARE, SUBNET_SHARE = 4, 2
"""One public host holds at most a quarter of a kind of places, and its subnet half of them. Hosts
of the own network hold what they need: a home or a laboratory is behind one address."""

HOST_KNOCKS_MAX, SUBNET_KNOCKS_MAX, KNOCKS_S = 30, 60, 10.0
"""New connections of one public host and one subnet in that time. A handshake takes processor time,
whoever it is with."""

STREAMLESS_S = 10.0
"""Where places are scarce, whoever has no stream for so long has to go."""

HOSTS_MAX = 4096


@dataclass(slots=True, eq=False)
class Guest:
    """One connection that somebody else has opened."""

    host: str
    subnet: str
    since_s: float
    num_bytes: int = 0
    heard_s: float = 0.0
    """What it has said before its handshake was over, and when last; kept by whoever reads."""

    peer: PeerId | None = None
    """Who it is; None before the handshake is over."""

    used_s: float = 0.0
    """When it had a stream the last time."""


class InboundPlaces:
    """The places of one node. Whoever is named in an answer is to be cut off."""

    def __init__(
        self, num_max: int, *, has_stream: Callable[[Guest], bool] = lambda _: False
    ) -> None:
        """`num_max` connections in all, in and out; `has_stream` looks at one that is proven."""
        self.num_knocking_max = max(KNOCKING_MIN, num_max // OWN_SHARE)
        self.num_proven_max = max(1, num_max - num_max // OWN_SHARE)
        self.members: Callable[[], Collection[PeerId]] = frozenset
        """The run's members, as this node knows."""

        self._has_stream = has_stream
        self._waiting: dict[Guest, None] = {}
        self._knocking: dict[Guest, None] = {}
        self._proven: dict[Guest, None] = {}
        self._knocks: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._knocking) + len(self._proven)

    def knock(self, host: str, now_s: float) -> Guest | None:
        """Somebody has connected, and waits for its turn; None if it has to go: too often, too
        many. `turn` says who may begin its handshake."""
        subnet = _subnet_of(host)
        if subnet and not self._may_knock(host, subnet, now_s):
            return None
        if len(self._waiting) >= WAITING_MAX:
            of_host = sum(one.host == host for one in self._waiting)
            if 2 * of_host >= WAITING_MAX or len(self._waiting) >= 2 * WAITING_MAX:
                return None
        guest = Guest(host, subnet, now_s, heard_s=now_s, used_s=now_s)
        self._waiting[guest] = None
        return guest

    def turn(self, now_s: float) -> tuple[list[Guest], list[Guest]]:
        """Who may begin its handshake now, and who has to go because it does not go on with its.

        Hosts take turns: who holds few of these places comes before who holds many.
        """
        admitted, gone = list[Guest](), list[Guest]()
        while self._waiting:
            held = Counter(one.host for one in self._knocking)
            nets = Counter(one.subnet for one in self._knocking if one.subnet)
            following = min(self._waiting, key=lambda one: (held[one.host], one.since_s))
            is_over = bool(following.subnet) and (
                held[following.host] >= max(1, self.num_knocking_max // HOST_SHARE)
                or nets[following.subnet] >= max(1, self.num_knocking_max // SUBNET_SHARE)
            )
            if is_over or len(self._knocking) >= self.num_knocking_max:
                stalled = [
                    one
                    for one in self._knocking
                    if now_s - one.heard_s >= STALL_S
                    and (not is_over or one.subnet == following.subnet)
                ]
                if not stalled:
                    break
                victim = min(stalled, key=lambda one: (one.num_bytes, one.heard_s))
                self.leave(victim)
                gone.append(victim)
            del self._waiting[following]
            following.heard_s = now_s
            self._knocking[following] = None
            admitted.append(following)
        return admitted, gone

    def prove(self, guest: Guest, peer: PeerId, now_s: float) -> tuple[bool, list[Guest]]:
        """Its handshake is over; whether it has a place, and who has to go for it."""
        self._knocking.pop(guest, None)
        guest.peer, guest.used_s = peer, now_s
        members = self.members()
        strangers = {one: None for one in self._proven if one.peer not in members}
        is_member, gone = peer in members, list[Guest]()
        if not is_member and guest.subnet:
            gone = self._over_cap(guest, strangers, self._num_strangers_max(members))
            if gone and self._has_stream(gone[0]):
                return False, []
        is_full = len(self._proven) - len(gone) >= self.num_proven_max
        if not is_member:
            most = self._num_strangers_max(members)
            is_full = is_full or len(strangers) - len(gone) >= most
        if is_full:
            victim = self._victim(strangers, for_member=is_member)
            if victim is None:
                return False, []
            gone.append(victim)
        for one in gone:
            self.leave(one)
        self._proven[guest] = None
        return True, gone

    def leave(self, guest: Guest) -> None:
        """It is gone, or about to be."""
        self._waiting.pop(guest, None)
        self._knocking.pop(guest, None)
        self._proven.pop(guest, None)

    def sweep(self, now_s: float) -> list[Guest]:
        """Who has had no stream for long, where more than half of the places are taken."""
        members = self.members()
        strangers = [one for one in self._proven if one.peer not in members]
        for one in strangers:
            if self._has_stream(one):
                one.used_s = now_s
        if 2 * len(strangers) <= self._num_strangers_max(members):
            return []
        gone = [one for one in strangers if now_s - one.used_s >= STREAMLESS_S]
        for one in gone:
            self.leave(one)
        return gone

    def _num_strangers_max(self, members: Collection[PeerId]) -> int:
        kept = min(self.num_proven_max // MEMBER_SHARE, PLACES_A_MEMBER * len(members))
        return self.num_proven_max - kept

    def _victim(self, strangers: Collection[Guest], *, for_member: bool) -> Guest | None:
        """The stranger that does least with its place; one with streams goes for members alone."""
        idle = [one for one in strangers if not self._has_stream(one)]
        if idle:
            return _least(_of_fullest_host(idle), lambda one: (one.used_s, one.since_s))
        if for_member and strangers:
            # The last that came: the others are in the middle of something for longer.
            return max(_of_fullest_host(strangers), key=lambda one: one.since_s)
        return None

    def _over_cap(self, guest: Guest, among: Collection[Guest], most: int) -> list[Guest]:
        """Of the same host or subnet, whoever has to go because it holds its share already."""
        host = [one for one in among if one.host == guest.host]
        subnet = [one for one in among if one.subnet == guest.subnet]
        for group, share in ((host, HOST_SHARE), (subnet, SUBNET_SHARE)):
            if len(group) >= max(1, most // share):
                return [_least(group, lambda one: (self._has_stream(one), one.used_s))]
        return []

    def _may_knock(self, host: str, subnet: str, now_s: float) -> bool:
        """Count a new connection; whether its host and subnet have not made too many."""
        counts = []
        for name in (host, subnet):
            since_s, num = self._knocks.pop(name, (now_s, 0))
            if now_s - since_s >= KNOCKS_S:
                since_s, num = now_s, 0
            self._knocks[name] = since_s, num + 1
            counts.append(num + 1)
        while len(self._knocks) > HOSTS_MAX:
            self._knocks.popitem(last=False)
        return counts[0] <= HOST_KNOCKS_MAX and counts[1] <= SUBNET_KNOCKS_MAX


def _least(guests: Iterable[Guest], key: Callable[[Guest], tuple[float, ...]]) -> Guest:
    return min(guests, key=key)


def _of_fullest_host(guests: Collection[Guest]) -> list[Guest]:
    counts = Counter(one.host for one in guests)
    most = max(counts.values())
    return [one for one in guests if counts[one.host] == most]


def _subnet_of(host: str) -> str:
    """The public network that a host is in; empty of one's own, and of who comes by a relay."""
    version = 6 if ":" in host else 4
    return min(subnets((f"/ip{version}/{host}/tcp/1",), NARROW_BITS), default="")
