"""SEAM Transport and Stream: all that Barnraise asks of a network.

The node and the DHT open and serve streams through this seam alone, so that loopback TCP, libp2p
and memory behave alike. Implementations: `dht.transport.libp2p_transport`, the tests' memory
transport.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Generic, Protocol, TypeVar

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId
from protocol.wire import Size, decode, encode

T = TypeVar("T")

Address = Annotated[str, Size(1, limits.ADDRESS_BYTES_MAX)]
Addresses = Annotated[tuple[Address, ...], Size(0, limits.DHT_ADDRESSES_PER_CONTACT_MAX)]
"""Multiaddrs of one peer where a message carries them."""


class Stream(Protocol):
    """An ordered, authenticated, two-way byte stream to one peer; one task per direction."""

    @property
    def peer(self) -> PeerId:
        """The proven identity of the other end."""
        ...

    @property
    def num_buffered(self) -> int:
        """Bytes that have arrived and were not asked for yet: to ask for them does not wait.

        Never more than there are; more may be under way.
        """
        ...

    async def send_all(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send every byte, one part behind the other.

        Raises StreamClosedError when the stream is gone. After a cancellation the stream is in an
        unknown position: close it.
        """
        ...

    async def send_soon(self, data: bytes) -> None:
        """As `send_all` for a few bytes that are not urgent: they go with what goes to the peer
        next, or a few milliseconds later."""
        ...

    async def receive_exactly(self, num_bytes: int) -> bytes:
        """Exactly `num_bytes` bytes; the caller has checked the number against a limit.

        Raises StreamClosedError when the stream ends before that.
        """
        ...

    async def receive_into(self, *places: memoryview) -> None:
        """Fill one place after the other, memory of the caller's, with the bytes that come next.

        Raises StreamClosedError when the stream ends before that; a part is filled then.
        """
        ...

    async def send_frame(self, frame: bytes) -> None:
        """Send one frame: a 4-byte big-endian length, then the bytes."""
        ...

    async def receive_frame(self, max_bytes: int) -> bytes:
        """The next frame. Raises LimitError, before allocating, if it claims over `max_bytes`."""
        ...

    async def aclose(self) -> None:
        """Close both directions. Never raises, never blocks on the peer; safe to call twice."""
        ...


StreamHandler = Callable[[Stream], Awaitable[None]]

Pace = Callable[[str], Awaitable[bool]]
"""Waits until an address may be dialled; False if it may not be."""


async def at_once(_address: str) -> bool:
    """The pace of dials that wait for nothing."""
    return True


class Transport(Protocol):
    """SEAM: reach peers by id. The transport owns connections; callers own streams."""

    @property
    def peer_id(self) -> PeerId:
        """Our own id, proven to every peer by the secure channel."""
        ...

    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs, without `/p2p/`, at which others may dial us."""
        ...

    async def connect(self, peer: PeerId, addresses: Sequence[str], pace: Pace = at_once) -> None:
        """Connect to `peer`, trying every address in turn; at once if connected already.

        `pace` is awaited before each dial. Raises UnreachableError naming each address and why it
        failed. The caller sets the deadline.
        """
        ...

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """A new stream to a connected peer that speaks `protocol`, e.g. "/barnraise/control/1".

        Raises UnreachableError when there is no connection or the peer does not serve it.
        """
        ...

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Run `handler` in a task of its own for each inbound stream; closes it afterwards.

        Call before the transport starts to accept. The handler's PeerError and NetworkError end
        that stream only.
        """
        ...

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to `peer`. Never raises."""
        ...

    def connected(self) -> tuple[PeerId, ...]:
        """Peers with an open connection, ascending. A frozen peer stays: only heartbeats tell."""
        ...

    def has_dialled(self, peer: PeerId) -> bool | None:
        """Whether this node dialled a connected peer; None if each has dialled the other."""
        ...

    def dialled(self, peer: PeerId) -> str:
        """The address at which this node has dialled a connected peer, directly; else nothing."""
        ...

    def traffic(self) -> tuple[int, int]:
        """Payload bytes (sent, received) over all streams since the start."""
        ...


def taken(waiting: deque[memoryview], num_bytes: int) -> Iterator[memoryview]:
    """The first `num_bytes` bytes of those that wait, no fewer than so many, part by part."""
    while num_bytes:
        part = waiting.popleft()
        if len(part) > num_bytes:
            waiting.appendleft(part[num_bytes:])
            part = part[:num_bytes]
        num_bytes -= len(part)
        yield part


class TypedFrames(Generic[T]):
    """The frames of a protocol of few messages: one type byte, then canonical msgpack."""

    def __init__(self, what: str, kinds: Sequence[type[T]], *, max_bytes: int) -> None:
        """`kinds` have the type bytes 1, 2, ... in their order; `what` is said of no frame."""
        self._what = what
        self._kinds = dict(enumerate(kinds, 1))
        self._numbers = {kind: number for number, kind in self._kinds.items()}
        self._bytes_max = max_bytes

    def encode(self, message: T) -> bytes:
        """The frame of a message."""
        return bytes((self._numbers[type(message)],)) + encode(message)

    def decode(self, frame: bytes) -> T:
        """The message in `frame`. Raises DecodeError for all other bytes."""
        kind = self._kinds.get(frame[0]) if frame else None
        if kind is None:
            raise DecodeError(f"no {self._what}")
        return decode(kind, frame[1:], max_bytes=self._bytes_max)

    async def send(self, stream: Stream, message: T) -> None:
        """Send one message. Raises StreamClosedError."""
        await stream.send_frame(self.encode(message))

    async def receive(self, stream: Stream) -> T:
        """The next message. Raises DecodeError, LimitError, StreamClosedError."""
        return self.decode(await stream.receive_frame(self._bytes_max))
