"""Agreeing on the protocol of a stream: multistream-select, in one round trip.

Ours and not the library's, for two reasons. The library waits for each line before it sends the
next, two round trips for every new stream. And its answering side lets a line that is not UTF-8
end the whole host: one stream of one peer, and the node is gone.
"""

from collections.abc import Container
from typing import Protocol

from protocol.errors import DecodeError, UnreachableError

LINE_BYTES_MAX = 256
"""A protocol id with its line end; ours are under 40 bytes, the library's under 60."""

PROPOSALS_MAX = 8
"""Protocol ids a peer may try on one stream; ours try one."""

_HELLO = "/multistream/1.0.0"
_REFUSAL = "na"


class Lines(Protocol):
    """The part of a stream that negotiation needs; its bytes are not counted as payload."""

    async def send_raw(self, data: bytes) -> None:
        """Send every byte."""
        ...

    async def receive_raw(self, num_bytes: int) -> bytes:
        """Exactly that many bytes."""
        ...

    @property
    def num_buffered(self) -> int:
        """Bytes that have arrived and were not asked for yet."""
        ...


def encode_line(text: str) -> bytes:
    """The line with its length before it and a line end behind."""
    line = text.encode() + b"\n"
    low, high = len(line) & 0x7F, len(line) >> 7
    return (bytes([low | 0x80, high]) if high else bytes([low])) + line


async def request(stream: Lines, protocol: str) -> None:
    """Ask the other end for `protocol`.

    Raises UnreachableError if it does not serve it, StreamClosedError if it goes away.
    """
    await stream.send_raw(encode_line(_HELLO) + encode_line(protocol))
    try:
        answers = (await _receive_line(stream), await _receive_line(stream))
    except DecodeError as error:
        raise UnreachableError(f"no answer to {protocol}: {error}") from error
    if answers != (_HELLO, protocol):
        raise UnreachableError(f"it does not serve {protocol}")


async def accept(stream: Lines, served: Container[str]) -> str:
    """The protocol that the other end asked for and we serve.

    Raises DecodeError if it asks for no such or sends nonsense, StreamClosedError if it goes away.
    """
    if await _receive_line(stream) != _HELLO:
        raise DecodeError("no multistream-select")
    answer = encode_line(_HELLO)
    for _ in range(PROPOSALS_MAX):
        if not stream.num_buffered:
            # It waits for our hello before it goes on, as the library does.
            await stream.send_raw(answer)
            answer = b""
        proposal = await _receive_line(stream)
        known = proposal in served
        await stream.send_raw(answer + encode_line(proposal if known else _REFUSAL))
        answer = b""
        if known:
            return proposal
    raise DecodeError(f"asked for {PROPOSALS_MAX} protocols that we do not serve")


async def _receive_line(stream: Lines) -> str:
    num_bytes = (await stream.receive_raw(1))[0]
    if num_bytes & 0x80:
        num_bytes = num_bytes & 0x7F | (await stream.receive_raw(1))[0] << 7
    if not 1 <= num_bytes <= LINE_BYTES_MAX:
        raise DecodeError(f"a line of {num_bytes} bytes")
    line = await stream.receive_raw(num_bytes)
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("a line that is not UTF-8") from error
    if not text.endswith("\n"):
        raise DecodeError("a line without an end")
    return text[:-1]
