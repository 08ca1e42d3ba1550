"""Before the status server: who has not shown the token gets no further than here, for little.

A connection is a few hundred bytes of state until the head of its request is whole. With the token
in it, it is handed on to the server, whose places are for such alone. Without, it is answered here
and ended. So strangers on this machine, however many connections they hold, take no place from the
owner, start no handler, and leave nothing in the log.

Of those who have said nothing yet there are so many at most: one more, and the oldest goes. It has
had the most time to speak, and whoever has the token speaks at once.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

HEAD_BYTES_MAX = 4096
"""Of a request with the token: some two hundred are enough."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'",
    "Connection": "close",
    "Server": "barnraise",
}
"""Of every answer."""

TURNS_AT_END = 8

_END = b"\r\n\r\n"
_MORE = {401: ("WWW-Authenticate", "Bearer"), 405: ("Allow", "GET"), 429: ("Retry-After", "1")}


class Bucket:
    """A token bucket: `per_s` a second, and as many at once."""

    def __init__(self, per_s: float, now_s: float) -> None:
        self._per_s = self._level = per_s
        self._looked_s = now_s

    def take(self, now_s: float) -> bool:
        """Whether one more is allowed now."""
        gained = (now_s - self._looked_s) * self._per_s
        self._level, self._looked_s = min(self._per_s, self._level + gained), now_s
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True


class Hall:
    """All who stand at the door; the server's loop owns it.

    `expected` is what the header with the token says; `hand_on` makes the server's end of a
    connection whose client has shown it, or None where there is no place for one more.
    """

    def __init__(
        self,
        expected: bytes,
        hand_on: Callable[[], asyncio.Protocol | None],
        bounds: tuple[int, float, float],
    ) -> None:
        """`bounds`: how many may wait, for how many seconds, and how many are answered a second."""
        self.expected = expected
        self.hand_on = hand_on
        self.places, self.patience_s, per_s = bounds
        self.answers = Bucket(per_s, time.monotonic())
        self.waiting: dict[Door, asyncio.Transport] = {}
        self._num_open = 0
        self._is_closed = False
        self._emptied = asyncio.Event()

    def __call__(self) -> "Door":
        """A connection for `create_server`."""
        return Door(self)

    def enter(self, door: "Door", transport: asyncio.Transport) -> None:
        """One more waits; who has waited longest makes room."""
        self._num_open += 1
        if self._is_closed:
            transport.abort()
            return
        while len(self.waiting) >= self.places:
            self.waiting.pop(next(iter(self.waiting))).abort()
        self.waiting[door] = transport

    def leave(self, door: "Door") -> None:
        """It is gone, or handed on."""
        self.waiting.pop(door, None)
        self._num_open -= 1
        if self._is_closed and not self._num_open:
            self._emptied.set()

    async def shutdown(self, limit_s: float) -> None:
        """Cut off all who wait, and who comes yet; until the loop has let go of them."""
        self._is_closed = True
        for transport in self.waiting.values():
            transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                # Who was accepted in this moment enters in one of the next.
                for _ in range(TURNS_AT_END):
                    await asyncio.sleep(0)
                if self._num_open:
                    await self._emptied.wait()


class Door(asyncio.Protocol):
    """One connection, until the head of its request is there."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the head, for a while."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._hall.enter(self, transport)
        # Not close, which would wait for a client that does not read.
        self._timer = asyncio.get_running_loop().call_later(self._hall.patience_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Some of the head."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._head += data
        end = self._head.find(_END)
        if end < 0 and len(self._head) <= HEAD_BYTES_MAX:
            return
        head = bytes(self._head[: max(end, 0)])
        if not _is_request(head) or len(head) > HEAD_BYTES_MAX:
            self._refuse(400, "not a request of HTTP/1.1 within the limits")
        elif not hmac.compare_digest(token_header(head), self._hall.expected):
            self._refuse(401, "the bearer token is in api.token of the run's folder")
        else:
            self._hand_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it out."""
        del exc
        self._leave()

    def _leave(self) -> None:
        self._hall.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def _hand_on(self) -> None:
        """The token is shown: the server has it from here."""
        assert self._transport is not None
        handler = self._hall.hand_on()
        if handler is None:
            self._refuse(429, "too many requests at once")
            return
        self._leave()
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(bytes(self._head))

    def _refuse(self, status: int, reason: str) -> None:
        assert self._transport is not None
        if not self._hall.answers.take(time.monotonic()):
            status, reason = 429, "too many requests a second"
        # The timer stays: it ends whoever does not read the answer.
        self._transport.write(_answer(status, reason))
        self._transport.close()


def token_header(head: bytes) -> bytes:
    """What the one Authorization header of a head says; empty if there is none, or are two."""
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    found = [value.strip() for name, _, value in lines if name.lower() == b"authorization"]
    return found[0] if len(found) == 1 else b""


def _is_request(head: bytes) -> bool:
    words = head.partition(b"\r\n")[0].split(b" ")
    return len(words) == 3 and words[2] in (b"HTTP/1.1", b"HTTP/1.0")


def _answer(status: int, reason: str) -> bytes:
    body = json.dumps({"error": reason}).encode()
    fields = {**HEADERS, "Content-Type": "application/json", "Content-Length": str(len(body))}
    fields |= dict([_MORE[status]]) if status in _MORE else {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + body
