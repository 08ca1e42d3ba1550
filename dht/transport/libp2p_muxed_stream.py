"""One stream of a yamux connection: what has arrived and was not taken, and what may be sent."""

from collections import deque
from typing import Protocol, Self

import trio
from libp2p.abc import IMuxedStream
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.stream_muxer.exceptions import MuxedStreamClosed, MuxedStreamEOF, MuxedStreamReset

from protocol import limits

WINDOW_BYTES_START = 256 * limits.KIB
"""What either end may send at first; yamux prescribes it."""

WINDOW_BYTES_MAX = 16 * limits.MIB
"""To which the window of a stream grows that is read fast: 100 ms there and back at 160 MB/s."""

GROWS_WITHIN_S = 1.0
"""A window of which half was taken within so long holds its sender up on a long way."""

SMALL_BYTES = 4096
"""Smaller pieces are put together: a million of one byte would take fifty megabytes."""

JOINED_BYTES_MAX = 64 * limits.KIB

UNYIELDED_BYTES_MAX = 512 * limits.KIB
UNYIELDED_BYTES_A_READ = 16 * limits.KIB
"""What is here is taken without a step of the loop, but not for ever: each taking counts for so
much beyond its bytes."""

_WINDOW_UPDATE, _FIN, _RST = 1, 4, 8

Part = memoryview | bytearray | bytes


class Muxer(Protocol):
    """What a stream needs of its connection."""

    def post(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Send a frame without data soon."""
        ...

    async def send_data(self, stream: "MuxedStream", waiting: deque[memoryview]) -> None:
        """Take of what waits what may be sent now, perhaps nothing, and send it."""
        ...

    def post_data(self, stream_id: int, data: bytes) -> bool:
        """Send a few bytes with what goes next; False if there is too much of that."""
        ...

    def forget(self, stream: "MuxedStream") -> None:
        """Both ends are done."""
        ...

    def count(self, stream: "MuxedStream") -> None:
        """Count anew what may lie unread in it."""
        ...

    def may_widen(self, num_bytes: int) -> bool:
        """Whether the windows of all streams together may grow by so many bytes."""
        ...

    def get_remote_address(self) -> tuple[str, int] | None:
        """IP address and port of the other end."""
        ...


class MuxedStream(IMuxedStream):
    """Bytes come in by `feed` and leave by `take`; only then may the other end send more."""

    def __init__(self, conn: Muxer, stream_id: int, *, is_ours: bool) -> None:
        self.stream_id = stream_id
        self.is_ours = is_ours
        self.muxed_conn = conn  # type: ignore[assignment] # the muxer, of which this is enough
        self.send_window = WINDOW_BYTES_START
        self.num_buffered = 0
        self.window_target = WINDOW_BYTES_START
        """Up to so many bytes may lie here unread."""
        self.counted_bytes = 0
        """Of these and those here, what the connection has counted."""
        self._conn = conn
        self._chunks: deque[memoryview | bytearray] = deque()
        self._window = WINDOW_BYTES_START
        self._owed = self._unyielded_bytes = 0
        self._granted_s = trio.current_time()
        self._came = trio.Event()
        self._needed = 1
        self._places: deque[memoryview] = deque()
        """What is still to be filled of the memory that somebody waits in; see `receive_into`."""
        self._widened = trio.Event()
        self._why = ""
        self._is_left = False
        self._is_finished = self._has_finished = False

    # In ------------------------------------------------------------------------------------------

    def take_window(self, num_bytes: int) -> bool:
        """Count bytes that are announced; False if they are more than this end allowed."""
        self._window -= num_bytes
        return self._window >= 0

    def feed(self, piece: memoryview, *, whole: Part) -> None:
        """Keep bytes that arrived as a part of `whole`."""
        if self._why:
            return
        if self._places:
            rest = self._placed(piece)
            self._grant(len(piece) - len(rest))
            if not self._places:
                self._came.set()
            if not rest:
                return
            piece = rest
        self.num_buffered += len(piece)
        last = self._chunks[-1] if self._chunks else None
        if len(piece) >= SMALL_BYTES and 2 * len(piece) >= len(whole):
            self._chunks.append(piece)
        elif isinstance(last, bytearray) and len(last) < JOINED_BYTES_MAX:
            last += piece
        else:
            # A view would hold the whole record for a few bytes of it.
            self._chunks.append(bytearray(piece))
        if self.num_buffered >= self._needed:
            self._came.set()

    def take(self, num_bytes: int) -> list[Part]:
        """At most so many of the bytes that are here; the other end may send as many more."""
        found: list[Part] = []
        left = num_bytes
        while left and self._chunks:
            chunk = self._chunks[0]
            if len(chunk) <= left:
                found.append(self._chunks.popleft())
            elif isinstance(chunk, bytearray):
                # Taking from the front of a bytearray moves nothing.
                found.append(bytes(memoryview(chunk)[:left]))
                del chunk[:left]
            else:
                found.append(chunk[:left])
                self._chunks[0] = chunk[left:]
            left -= len(found[-1])
        self.num_buffered -= num_bytes - left
        self._grant(num_bytes - left)
        return found

    def _grant(self, num_bytes: int) -> None:
        """Few large updates: each is a record on the wire."""
        if self._is_finished or self._why:
            self._conn.count(self)
            return
        self._owed += num_bytes
        if 2 * self._owed < self.window_target:
            return
        now_s = trio.current_time()
        more = min(self.window_target, WINDOW_BYTES_MAX - self.window_target)
        if more and now_s - self._granted_s < GROWS_WITHIN_S and self._conn.may_widen(more):
            self.window_target += more
            self._owed += more
            self._conn.count(self)
        self._granted_s = now_s
        self._window += self._owed
        self._conn.post(_WINDOW_UPDATE, 0, self.stream_id, self._owed)
        self._owed = 0

    def begin_with(self, num_bytes: int) -> None:
        """The other end, which opened the stream, is told that it may send so many at first."""
        self._window += num_bytes - self.window_target
        self.window_target = num_bytes

    async def readable(self, num_bytes: int = 1) -> None:
        """Until so many bytes can be taken, or as many as surely come before some are taken, or
        the last. Raises MuxedStreamReset, MuxedStreamEOF where there is nothing to take any more.
        """
        # A step for each piece that arrives would be ten for a cell. Half of the window is sure to
        # come: what was taken and not granted again is less than the other half.
        self._needed = max(1, min(num_bytes, self.window_target // 2))
        if self.num_buffered >= self._needed:
            await self.take_breath(num_bytes)
        while self.num_buffered < self._needed:
            if self.num_buffered and (self._why or self._is_finished):
                await trio.lowlevel.checkpoint()
                return
            await self._more()

    async def _more(self) -> None:
        """Until enough or the end has come. Raises MuxedStreamReset, MuxedStreamEOF behind that,
        and MuxedStreamClosed when the reader is told to leave."""
        if self._is_left:
            raise MuxedStreamClosed("closed here")
        if self._why:
            raise MuxedStreamReset(self._why)
        if self._is_finished:
            raise MuxedStreamEOF("the other end closed")
        self._came = trio.Event()
        await self._came.wait()

    def leave(self) -> None:
        """Nobody here wants to read any more: whoever waits to, stops."""
        self._is_left = True
        self._came.set()

    async def drain(self, most: int) -> None:
        """Throw away what comes behind `leave`, until the other end has sent its last byte, or as
        many as `most`."""
        while most > 0 and not (self._why or (self._is_finished and not self.num_buffered)):
            if self.num_buffered:
                most -= self.num_buffered
                self.take(self.num_buffered)
                continue
            self._needed, self._came = 1, trio.Event()
            await self._came.wait()

    async def take_breath(self, num_bytes: int) -> None:
        """Where nothing is to be waited for: a step of the loop once in a while, for the others."""
        self._unyielded_bytes += UNYIELDED_BYTES_A_READ + num_bytes
        if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
            self._unyielded_bytes = 0
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    def _placed(self, piece: memoryview) -> memoryview:
        """Put what fits where somebody waits; the rest."""
        while piece and self._places:
            place = self._places.popleft()
            num_bytes = min(len(piece), len(place))
            place[:num_bytes] = piece[:num_bytes]
            piece = piece[num_bytes:]
            if num_bytes < len(place):
                self._places.appendleft(place[num_bytes:])
        return piece

    async def receive_into(self, *places: memoryview) -> None:
        """Fill them, as the bytes come. Raises as `readable` does, with a part of them filled."""
        self._places.extend(place for place in places if place)
        num_bytes = sum(map(len, places))
        for part in self.take(num_bytes):
            self._placed(memoryview(part))
        if not self._places:
            await self.take_breath(num_bytes)
        try:
            while self._places:
                await self._more()
        finally:
            self._places.clear()

    async def read(self, n: int | None = None) -> bytes:
        """At most `n` bytes, at least one; see `readable`."""
        await self.readable()
        return b"".join(self.take(self.num_buffered if n is None or n < 0 else n))

    def finish(self) -> None:
        """The other end sends nothing more."""
        self._is_finished = True
        self._came.set()
        self._forget_if_done()

    # Out -----------------------------------------------------------------------------------------

    def widen(self, num_bytes: int) -> None:
        """The other end takes more."""
        self.send_window += num_bytes
        self._widened.set()

    def raise_if_not_sending(self) -> None:
        """Raise MuxedStreamReset or MuxedStreamClosed if the stream takes nothing any more."""
        if self._why:
            raise MuxedStreamReset(self._why)
        if self._has_finished:
            raise MuxedStreamClosed("closed here")

    async def write(self, *parts: bytes | memoryview) -> None:
        """Send every byte, as the other end's window allows; whoever waits sets the deadline.

        Raises MuxedStreamReset, MuxedStreamClosed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        waiting = deque(memoryview(part) for part in parts if part)
        while waiting:
            self.raise_if_not_sending()
            if self.send_window <= 0:
                self._widened = trio.Event()
                await self._widened.wait()
                continue
            try:
                await self._conn.send_data(self, waiting)
            except ConnectionClosedError as error:
                raise MuxedStreamReset(str(error)) from error

    def write_soon(self, data: bytes) -> bool:
        """Send a few bytes with what goes next; False, and nothing is sent, if there is no room.

        Raises as `write`, which nobody is in meanwhile.
        """
        self.raise_if_not_sending()
        if len(data) > self.send_window or not self._conn.post_data(self.stream_id, data):
            return False
        self.send_window -= len(data)
        return True

    async def close(self) -> None:
        """Send nothing more; the other end still may."""
        if not (self._has_finished or self._why):
            self._has_finished = True
            self._conn.post(_WINDOW_UPDATE, _FIN, self.stream_id, 0)
            self._forget_if_done()
        if self._why:
            self._drop_unread()
        await trio.lowlevel.checkpoint()

    async def reset(self) -> None:
        """End both directions at once."""
        if not self._why:
            if not (self._has_finished and self._is_finished):
                self._conn.post(_WINDOW_UPDATE, _RST, self.stream_id, 0)
            self.end("closed here")
        self._drop_unread()
        await trio.lowlevel.checkpoint()

    def _drop_unread(self) -> None:
        self._chunks.clear()
        self.num_buffered = 0
        self._conn.count(self)

    def end(self, why: str) -> None:
        """Nothing comes and nothing goes any more, for this reason; what is here can be taken."""
        self._why = self._why or why
        self._came.set()
        self._widened.set()
        self._conn.forget(self)

    def _forget_if_done(self) -> None:
        if self._has_finished and self._is_finished:
            self._conn.forget(self)

    # What the library asks -----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether both directions are at their end."""
        return bool(self._why) or (self._has_finished and self._is_finished)

    def set_deadline(self, ttl: int) -> None:
        """Callers set deadlines with trio's scopes."""
        raise NotImplementedError

    def get_remote_address(self) -> tuple[str, int] | None:
        """IP address and port of the other end."""
        return self._conn.get_remote_address()

    async def __aenter__(self) -> Self:
        """Nothing to enter."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()
