"""Having ourselves dialled back: by peers of several networks, again and again."""

import logging
from collections.abc import Callable, Mapping

import trio

from dht.reaching.dial_back import (
    DIAL_BACK_PROTOCOL,
    FRAME_BYTES_MAX,
    Check,
    Declined,
    Votes,
    decode_check,
    encode_check,
    network_of,
)
from protocol.errors import DecodeError, NetworkError, PeerError
from protocol.identity import PeerId, short_id
from protocol.transport import Transport

logger = logging.getLogger(__name__)

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
                    await stream.send_frame(encode_check(Check(port)))
                    outcome = decode_check(await stream.receive_frame(FRAME_BYTES_MAX))
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
