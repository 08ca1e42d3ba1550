"""Dialling others back: whether they answer at the address that they come from."""

import logging
from collections.abc import Awaitable, Callable

import trio

from dht.reaching.dial_back import (
    DIAL_BACK_PROTOCOL,
    FRAME_BYTES_MAX,
    Answered,
    Check,
    Declined,
    DialBackQuotas,
    Outcome,
    Silent,
    decode_check,
    encode_check,
    network_of,
    to_dial,
)
from protocol.errors import DecodeError
from protocol.identity import PeerId, short_id
from protocol.transport import Stream, Transport

logger = logging.getLogger(__name__)

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
                message = decode_check(await stream.receive_frame(FRAME_BYTES_MAX))
                if not isinstance(message, Check):
                    raise DecodeError("an answer where a check belongs")
                outcome = await self._check(stream.peer, message.port)
                await stream.send_frame(encode_check(outcome))
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
