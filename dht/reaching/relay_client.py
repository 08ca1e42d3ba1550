"""Places at relays, for a node that nobody can dial; and the first words of a circuit.

A place lasts as long as a stream to the relay, over which both say now and then that they are
there: that also keeps the router's mapping of the connection.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from dht.reaching.addresses import (
    RELAY_FRAMES,
    RELAY_PROTOCOL,
    Granted,
    Incoming,
    Join,
    Joined,
    Refused,
    Reserve,
    circuit_address,
    is_public,
)
from protocol.errors import DecodeError, NetworkError, PeerError, RefusedError, UnreachableError
from protocol.identity import PeerId, short_id
from protocol.transport import Stream, Transport

logger = logging.getLogger(__name__)


PLACES_WANTED = 2
"""One relay may die. Each costs a stream and a few bytes a second."""

BEAT_S = 5.0
"""A router forgets a silent connection after minutes, a relay a silent peer after 20 s."""

ANSWER_S = 10.0
LOOK_S = 0.25
"""How often to look for peers that may be relays; a newcomer waits for its first place."""

_AGAIN_FIRST_S, _AGAIN_MAX_S = 2.0, 600.0
_CANDIDATES_MAX = 1024
"""Peers that were asked once, or will be: most are no relays, and must not stand before those."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a relay listens, and the address that it sees us come from, or nothing."""

    address: str
    seen: str


@dataclass(slots=True)
class _RelayCandidate:
    """A peer that may be a relay; when it is asked again."""

    address: str
    due_s: float
    delay_s: float = _AGAIN_FIRST_S
    is_asked: bool = False


class Places:
    """The places that a node has. `run` keeps as many as are wanted."""

    def __init__(
        self,
        transport: Transport,
        *,
        listens: Callable[[PeerId], str],
        is_wanted: Callable[[], bool],
    ) -> None:
        """`listens` tells a public address at which we have dialled a connected peer, or nothing:
        there others may dial it too. `is_wanted`: whether nobody can dial this node, as far as it
        knows, so that it needs a relay."""
        self._transport = transport
        self._listens = listens
        self.is_wanted = is_wanted
        self._candidates: dict[PeerId, _RelayCandidate] = {}
        self._places: dict[PeerId, Place] = {}
        self._changed = trio.Event()

    def addresses(self) -> tuple[str, ...]:
        """Where we may be dialled through the relays."""
        return tuple(circuit_address(relay, one.address) for relay, one in self._places.items())

    def holds(self, relay: PeerId) -> bool:
        """Whether we have a place there."""
        return relay in self._places

    def seen(self) -> tuple[str, ...]:
        """From where relays see us come, each address once."""
        return tuple(dict.fromkeys(one.seen for one in self._places.values() if one.seen))

    @property
    def change(self) -> trio.Event:
        """Set when a place has come or gone; another one from then on."""
        return self._changed

    def start_over(self) -> None:
        """The machine is in another network: ask everybody anew."""
        for one in self._candidates.values():
            one.due_s, one.delay_s = 0.0, _AGAIN_FIRST_S

    async def run(self) -> None:
        """Find relays among the peers that we dial, and keep places there, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                if self.is_wanted():
                    self._look(nursery)
                await trio.sleep(LOOK_S)

    def _look(self, nursery: trio.Nursery) -> None:
        now_s = trio.current_time()
        connected = self._transport.connected()
        for peer in connected:
            address, known = self._listens(peer), self._candidates.get(peer)
            if not address:
                continue
            if known is not None:
                # Of a place, what is told changes with the place.
                known.address = known.address if known.is_asked else address
            elif self._has_room(connected):
                self._candidates[peer] = _RelayCandidate(address, now_s)
        wanted = PLACES_WANTED - sum(one.is_asked for one in self._candidates.values())
        if wanted <= 0:
            return
        due = [(peer, one) for peer, one in self._candidates.items() if now_s >= one.due_s]
        # Who failed least often first: among many peers that are no relays a new one gets its turn.
        for peer, one in sorted(
            (found for found in due if not found[1].is_asked), key=lambda found: found[1].delay_s
        )[:wanted]:
            one.is_asked = True
            nursery.start_soon(self._keep, peer, one)

    def _has_room(self, connected: Collection[PeerId]) -> bool:
        """Whether there is room for one more: whoever is gone and failed most often makes it."""
        if len(self._candidates) < _CANDIDATES_MAX:
            return True
        gone = [
            (one.delay_s, peer)
            for peer, one in self._candidates.items()
            if peer not in connected and not one.is_asked
        ]
        if gone:
            del self._candidates[max(gone)[1]]
        return bool(gone)

    async def _keep(self, relay: PeerId, candidate: _RelayCandidate) -> None:
        stream: Stream | None = None
        try:
            with trio.fail_after(ANSWER_S):
                await self._transport.connect(relay, (candidate.address,))
                stream = await self._transport.open_stream(relay, RELAY_PROTOCOL)
            await self._stay(relay, candidate, stream)
        except (PeerError, NetworkError, trio.TooSlowError) as error:
            logger.debug("no place relay=%s reason=%r", short_id(relay), error)
        finally:
            if self._places.pop(relay, None) is not None:
                logger.info("place lost relay=%s", short_id(relay))
                self._note_change()
            candidate.is_asked = False
            candidate.due_s = trio.current_time() + candidate.delay_s
            candidate.delay_s = min(2 * candidate.delay_s, _AGAIN_MAX_S)
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await stream.aclose()

    async def _stay(self, relay: PeerId, candidate: _RelayCandidate, stream: Stream) -> None:
        while True:
            with trio.fail_after(ANSWER_S):
                await RELAY_FRAMES.send(stream, Reserve())
                answer = await RELAY_FRAMES.receive(stream)
            if isinstance(answer, Refused):
                raise RefusedError(f"no place: {answer.reason}")
            if not isinstance(answer, Granted):
                raise DecodeError(f"{type(answer).__name__} instead of a place")
            # A relay that sees something else tells nothing that others could use.
            place = Place(candidate.address, answer.seen if is_public(answer.seen) else "")
            if self._places.get(relay) != place:
                logger.info("place at relay=%s seen=%s", short_id(relay), place.seen or "unknown")
                self._places[relay] = place
                self._note_change()
            candidate.delay_s = _AGAIN_FIRST_S
            due_s = trio.current_time() + BEAT_S
            while trio.current_time() < due_s:
                await trio.sleep(LOOK_S)
                if relay not in self._transport.connected():
                    raise UnreachableError("the connection is gone")

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def join_circuit(transport: Transport, relay: PeerId, target: PeerId) -> Stream:
    """A stream that ends at `target`, by way of a connected relay.

    Raises UnreachableError if the relay does not lead there, DecodeError for nonsense from it.
    """
    stream = await transport.open_stream(relay, RELAY_PROTOCOL)
    is_joined = False
    try:
        await RELAY_FRAMES.send(stream, Join(target))
        answer = await RELAY_FRAMES.receive(stream)
        if isinstance(answer, Refused):
            raise UnreachableError(f"the relay {short_id(relay)} says: {answer.reason}")
        if not isinstance(answer, Joined):
            raise DecodeError(f"{type(answer).__name__} instead of a circuit")
        is_joined = True
        return stream
    finally:
        if not is_joined:
            with trio.CancelScope(shield=True):
                await stream.aclose()


async def accept_circuit(stream: Stream) -> PeerId:
    """Agree to what a relay brings; who it says wants to speak with us, to be proved.

    Raises DecodeError, StreamClosedError, trio.TooSlowError.
    """
    with trio.fail_after(ANSWER_S):
        word = await RELAY_FRAMES.receive(stream)
        if not isinstance(word, Incoming):
            raise DecodeError(f"{type(word).__name__} instead of a peer")
        await RELAY_FRAMES.send(stream, Joined())
    return word.source
