"""Whether an address of ours is answered from outside: a peer dials it back and says. Pure.

    Check(4001) --> a peer that sees us come from 203.0.113.7 dials /ip4/203.0.113.7/tcp/4001
    Answered("/ip4/203.0.113.7/tcp/4001") <--

Who is asked dials the address that the asker comes from and no other, so that nobody has a third
party dialled; what tells the asker from whoever else may listen there is the handshake. A peer's
word is one vote. Votes count by the network of whoever gave them, and a majority decides: a single
liar can neither make us give up an address that works nor name one that is not ours.
"""

import ipaddress
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from dht.reaching.circuits import is_public, is_service
from dht.reaching.gone import host_and_port
from dht.reaching.subnets import NARROW_BITS
from protocol.errors import DecodeError
from protocol.wire import Range, Size, decode, encode

DIAL_BACK_PROTOCOL = "/barnraise/dial-back/1"

ADDRESS_BYTES_MAX = 64
REASON_BYTES_MAX = 64
FRAME_BYTES_MAX = 160

VOTES_MAX = 64
"""That are kept: each network has one per port that was asked for."""

GIVE_UP_LEAD = 2
"""So many networks more must say that an address is dead before others are not told it any more:
one that cannot dial out finds everybody dead, and a dead address costs its dialler a second."""

VOTE_S = 1800.0
"""A vote counts for so long: two rounds of asking."""


# Messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """Dial the address that I come from, at this port, and say whether I answer there."""

    port: Annotated[int, Range(1, 65535)]


@dataclass(frozen=True, slots=True)
class Answered:
    """I dialled `address`, and you proved there who you are."""

    address: Annotated[str, Size(1, ADDRESS_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Silent:
    """I dialled `address`, and nobody answered, or somebody else."""

    address: Annotated[str, Size(1, ADDRESS_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Declined:
    """I dialled nothing, and why."""

    reason: Annotated[str, Size(0, REASON_BYTES_MAX)]


Outcome = Answered | Silent | Declined

_KINDS: dict[int, type[Check | Outcome]] = {1: Check, 2: Answered, 3: Silent, 4: Declined}
_TYPE_IDS = {kind: type_id for type_id, kind in _KINDS.items()}


def encode_check(message: Check | Outcome) -> bytes:
    """The frame of a message: one type byte, then canonical msgpack."""
    return bytes((_TYPE_IDS[type(message)],)) + encode(message)


def decode_check(frame: bytes) -> Check | Outcome:
    """The message in `frame`. Raises DecodeError for all other bytes."""
    kind = _KINDS.get(frame[0]) if frame else None
    if kind is None:
        raise DecodeError("no message of a dial-back")
    return decode(kind, frame[1:], max_bytes=FRAME_BYTES_MAX)


# Who is asked ---------------------------------------------------------------------------------


def network_of(address: str) -> str:
    """The network that votes as one, of a public address; nothing for any other."""
    place = host_and_port(address)
    if place is None or not is_public(address):
        return ""
    host = ipaddress.ip_address(place[0])
    return str(ipaddress.ip_network((host, NARROW_BITS[host.version]), strict=False))


def to_dial(seen: str, port: int) -> str:
    """Where a peer is dialled back that comes from `seen`; nothing where it may not be."""
    place = host_and_port(seen)
    if place is None or not is_public(seen) or is_service(port):
        return ""
    host = ipaddress.ip_address(place[0])
    return f"/ip{host.version}/{host}/tcp/{port}"


class DialBackQuotas:
    """How often a peer dials back for others: each is a packet to somebody's router."""

    PER_NETWORK, IN_ALL, WINDOW_S = 6, 60, 60.0

    def __init__(self) -> None:
        self._times: deque[tuple[float, str]] = deque()

    def take(self, network: str, now_s: float) -> bool:
        """Whether one more may be done for that network now; it is counted if so."""
        while self._times and now_s - self._times[0][0] >= self.WINDOW_S:
            self._times.popleft()
        num_same = sum(other == network for _, other in self._times)
        if len(self._times) >= self.IN_ALL or num_same >= self.PER_NETWORK:
            return False
        self._times.append((now_s, network))
        return True


# Who asks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Vote:
    outcome: Answered | Silent
    heard_s: float


class Votes:
    """What others found out about our addresses: of each network the last word for a port.

    Who answers at an address is seen there by most. So a vote is one against every other address of
    its port and IP version; an address that nobody else has heard of is not proved by one network.
    """

    def __init__(self) -> None:
        self._votes: dict[tuple[int, str], _Vote] = {}

    def heard(self, outcome: Answered | Silent, network: str, port: int, now_s: float) -> None:
        """A peer of that network was asked for `port`. Raises DecodeError for a strange answer."""
        address = outcome.address
        place = host_and_port(address)
        if place is None or place[1] != port or not is_public(address):
            raise DecodeError("a dial-back to another place than was asked for")
        if _is_ip6(place[0]) != _is_ip6(network):
            raise DecodeError("a dial-back by another IP version than we are seen by")
        # Again at the end: the first one is of whom was heard longest ago.
        self._votes.pop((port, network), None)
        if len(self._votes) >= VOTES_MAX:
            del self._votes[next(iter(self._votes))]
        self._votes[port, network] = _Vote(outcome, now_s)

    def proved(self, now_s: float) -> tuple[str, ...]:
        """Addresses at which we answer, as most networks say that were asked for the like."""
        asked: Counter[tuple[int, bool]] = Counter()
        answered: Counter[tuple[int, bool, str]] = Counter()
        for (port, network), outcome in self._fresh(now_s):
            asked[port, _is_ip6(network)] += 1
            answered[port, _is_ip6(network), outcome.address] += isinstance(outcome, Answered)
        most = (one for one, num in answered.items() if 2 * num > asked[one[:2]])
        return tuple(sorted(address for _, _, address in most))

    def refuted(self, now_s: float, *, lead: int = 1) -> tuple[str, ...]:
        """Addresses at which we do not, by so many networks more than say that we do."""
        against: Counter[str] = Counter()
        for _, outcome in self._fresh(now_s):
            against[outcome.address] += -1 if isinstance(outcome, Answered) else 1
        return tuple(one for one in sorted(against) if against[one] >= lead)

    def _fresh(self, now_s: float) -> list[tuple[tuple[int, str], Answered | Silent]]:
        return [
            (asked, one.outcome)
            for asked, one in self._votes.items()
            if now_s - one.heard_s < VOTE_S
        ]

    def forget(self) -> None:
        """The machine is in another network."""
        self._votes.clear()


def _is_ip6(host: str) -> bool:
    return ":" in host


def told_addresses(
    own: Iterable[str], *, proved: Iterable[str], refuted: Iterable[str], num_max: int
) -> tuple[str, ...]:
    """Of this machine's `own` addresses all but public ones that nobody answers; behind them those
    where a router lets others in."""
    gone = {one for one in refuted if is_public(one)}
    kept = [one for one in dict.fromkeys(own) if one not in gone]
    outer = [one for one in dict.fromkeys(proved) if one not in {*kept, *gone}][:num_max]
    return (*kept[: num_max - len(outer)], *outer)
