"""Whether an address of ours is answered from outside: a peer dials it back and says.

    Check(4001) --> a peer that sees us come from 203.0.113.7 dials /ip4/203.0.113.7/tcp/4001
    Answered("/ip4/203.0.113.7/tcp/4001") <--

Who is asked dials the address that the asker comes from and no other, so that nobody has a third
party dialled; what tells the asker from whoever else may listen there is the handshake. A peer's
word is one vote. Votes count by the network of whoever gave them, and a majority decides: a single
liar can neither make us give up an address that works nor name one that is not ours.
"""

import ipaddress
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import trio

from dht.reaching.addresses import NARROW_BITS, host_and_port, ip_of, is_public, is_service
from protocol import limits
from protocol.errors import DecodeError, NetworkError, PeerError
from protocol.identity import PeerId, short_id
from protocol.transport import Stream, Transport, TypedFrames
from protocol.wire import Range, Size

logger = logging.getLogger(__name__)

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

DIAL_BACK_FRAMES = TypedFrames[Check | Outcome](
    "message of a dial-back", (Check, Answered, Silent, Declined), max_bytes=FRAME_BYTES_MAX
)


# Who is asked ---------------------------------------------------------------------------------


def network_of(address: str) -> str:
    """The network that votes as one, of a public address; nothing for any other."""
    host = ip_of(address)
    if host is None or not is_public(address):
        return ""
    return str(ipaddress.ip_network((host, NARROW_BITS[host.version]), strict=False))


def to_dial(seen: str, port: int) -> str:
    """Where a peer is dialled back that comes from `seen`; nothing where it may not be."""
    host = ip_of(seen)
    if host is None or not is_public(seen) or is_service(port):
        return ""
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
        limits.keep_newest(self._votes, (port, network), _Vote(outcome, now_s), VOTES_MAX)

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


# Dialling others back ---------------------------------------------------------------------------

ASK_S = 10.0
"""For all of it: the question, the dial, and the answer."""

KNOCK_S = 5.0
"""For a connection and its handshake."""

AT_ONCE_MAX = 8

Seen = Callable[[PeerId], str]
"""The address that a peer comes from over a direct connection; empty where there is none."""

Knock = Callable[[PeerId, str], Awaitable[bool]]
"""Whether that peer, and nobody else, answers at an address. Raises nothing."""


class DialBackServer:
    """Serves `DIAL_BACK_PROTOCOL` on a transport."""

    def __init__(self, transport: Transport, *, seen: Seen, knock: Knock) -> None:
        self._seen = seen
        self._knock = knock
        self._quotas = DialBackQuotas()
        self._num_at_once = 0
        transport.serve(DIAL_BACK_PROTOCOL, self.serve)

    async def serve(self, stream: Stream) -> None:
        """One check of a peer. Raises PeerError, NetworkError."""
        if self._num_at_once >= AT_ONCE_MAX:
            return
        self._num_at_once += 1
        try:
            with trio.move_on_after(ASK_S):
                message = await DIAL_BACK_FRAMES.receive(stream)
                if not isinstance(message, Check):
                    raise DecodeError("an answer where a check belongs")
                outcome = await self._check(stream.peer, message.port)
                await DIAL_BACK_FRAMES.send(stream, outcome)
        finally:
            self._num_at_once -= 1

    async def _check(self, peer: PeerId, port: int) -> Outcome:
        seen = self._seen(peer)
        address = to_dial(seen, port)
        if not address:
            return Declined("no public address, or a port of the system")
        if not self._quotas.take(network_of(seen), trio.current_time()):
            return Declined("too many of late")
        answers = False
        with trio.move_on_after(KNOCK_S):
            answers = await self._knock(peer, address)
        logger.debug("dialled back peer=%s address=%s answers=%s", short_id(peer), address, answers)
        return Answered(address) if answers else Silent(address)


# Having ourselves dialled -----------------------------------------------------------------------

LOOK_S = 0.5
ANSWER_S = 12.0

NETWORKS_ENOUGH = 3
"""That are asked in a round: two liars of three would be needed."""

ROUND_FIRST_S, ROUND_S = 15.0, 900.0
"""Between rounds: soon while nothing is proved, and then now and then."""

DECLINED_AGAIN_S = 60.0

Observers = Callable[[], Mapping[PeerId, str]]
"""Peers that may be asked: with a direct connection, and the public address of each."""


class DialBackClient:
    """What others find out about the ports where we may be reached. `run` it in a nursery."""

    def __init__(
        self, transport: Transport, *, observers: Observers, ports: Callable[[], tuple[int, ...]]
    ) -> None:
        self.votes = Votes()
        self._transport = transport
        self._observers = observers
        self._ports = ports
        self._asked: dict[int, set[str]] = {}
        """Of each port, the networks that were asked in this round."""
        self._again_s: dict[PeerId, float] = {}
        self._round_due_s = 0.0
        self._round_s = ROUND_FIRST_S
        self._known: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._changed = trio.Event()

    def proved(self) -> tuple[str, ...]:
        """Addresses at which others find us."""
        return self.votes.proved(trio.current_time())

    def refuted(self, *, lead: int = 1) -> tuple[str, ...]:
        """Addresses at which others do not; see `Votes.refuted`."""
        return self.votes.refuted(trio.current_time(), lead=lead)

    @property
    def change(self) -> trio.Event:
        """Set when an address is proved or refuted, or neither any more; then another one."""
        return self._changed

    def start_over(self) -> None:
        """The machine is in another network: what was found out says nothing now."""
        self.votes.forget()
        self._again_s.clear()
        self._round_due_s, self._round_s = 0.0, ROUND_FIRST_S
        self._compare()

    async def run(self) -> None:
        """Ask, until cancelled. Raises nothing."""
        async with trio.open_nursery() as nursery:
            while True:
                self._look(nursery)
                await trio.sleep(LOOK_S)

    def _look(self, nursery: trio.Nursery) -> None:
        now_s = trio.current_time()
        self._compare()  # Votes grow old.
        if now_s >= self._round_due_s:
            self._asked = {port: set() for port in self._ports()}
            self._round_due_s = now_s + self._round_s
            self._round_s = min(2 * self._round_s, ROUND_S)
        observers = self._observers()
        self._again_s = {one: due for one, due in self._again_s.items() if one in observers}
        for peer, address in observers.items():
            network = network_of(address)
            if not network or now_s < self._again_s.get(peer, 0.0):
                continue
            for port, networks in self._asked.items():
                if network not in networks and len(networks) < NETWORKS_ENOUGH:
                    networks.add(network)
                    nursery.start_soon(self._ask, peer, network, port)

    async def _ask(self, peer: PeerId, network: str, port: int) -> None:
        asked = self._asked[port]
        has_voted = False
        try:
            with trio.fail_after(ANSWER_S):
                stream = await self._transport.open_stream(peer, DIAL_BACK_PROTOCOL)
                try:
                    await DIAL_BACK_FRAMES.send(stream, Check(port))
                    outcome = await DIAL_BACK_FRAMES.receive(stream)
                finally:
                    with trio.CancelScope(shield=True):
                        await stream.aclose()
            if isinstance(outcome, Check):
                raise DecodeError("a check where an answer belongs")
            if isinstance(outcome, Declined):
                logger.debug("not dialled back peer=%s reason=%r", short_id(peer), outcome.reason)
                return
            self.votes.heard(outcome, network, port, trio.current_time())
            has_voted = True
            if self.proved():
                # Should that end, it is soon looked for again.
                self._round_due_s, self._round_s = trio.current_time() + ROUND_S, ROUND_FIRST_S
            self._compare()
        except (PeerError, NetworkError, trio.TooSlowError) as error:
            logger.debug("not dialled back peer=%s reason=%r", short_id(peer), error)
        finally:
            if not has_voted:
                # Another peer of that network may do it, this one later.
                asked.discard(network)
                self._again_s[peer] = trio.current_time() + DECLINED_AGAIN_S

    def _compare(self) -> None:
        known = self.proved(), self.refuted()
        if known != self._known:
            self._known = known
            logger.info(
                "dialled back answered=%s silent=%s", *(",".join(one) or "none" for one in known)
            )
            self._changed.set()
            self._changed = trio.Event()
