"""multistream-select, byte by byte: what is answered to whom, and when it is enough."""

import pytest

from dht.transport.libp2p_inbound import (
    LINE_BYTES_MAX,
    PROPOSALS_MAX,
    accept_protocol,
    encode_line,
    request_protocol,
)
from protocol.errors import DecodeError, StreamClosedError, UnreachableError

HELLO = encode_line("/multistream/1.0.0")
REFUSAL = encode_line("na")
OURS, OTHER = "/ours/1", "/other/1"


class Talk:
    """One end of a stream: what arrived, and what was sent while so much of it was not read yet."""

    def __init__(self, *arrived: bytes, waits: bool = False) -> None:
        self._arrived = list(arrived)
        self._here = bytearray() if waits else bytearray(b"".join(arrived))
        self._waits = waits
        self.sent = b""

    @property
    def num_buffered(self) -> int:
        return len(self._here)

    async def send_raw(self, data: bytes) -> None:
        self.sent += data

    async def receive_raw(self, num_bytes: int) -> bytes:
        if self._waits and len(self._here) < num_bytes and self._arrived:
            self._here += self._arrived.pop(0)
        if len(self._here) < num_bytes:
            raise StreamClosedError("the other end closed")
        taken = bytes(self._here[:num_bytes])
        del self._here[:num_bytes]
        return taken


@pytest.mark.parametrize("waits", [False, True])
async def test_other_end_is_greeted_once_however_often_it_proposes(waits: bool) -> None:
    words = (HELLO, encode_line(OTHER), encode_line(OTHER), encode_line(OURS))
    talk = Talk(*words, waits=waits)
    assert await accept_protocol(talk, {OURS}) == OURS
    assert talk.sent == HELLO + REFUSAL + REFUSAL + encode_line(OURS)


async def test_last_proposal_that_is_allowed_is_answered_and_none_behind_it() -> None:
    others = [encode_line(OTHER)] * (PROPOSALS_MAX - 1)
    assert await accept_protocol(Talk(HELLO, *others, encode_line(OURS)), {OURS}) == OURS
    talk = Talk(HELLO, *others, encode_line(OTHER), encode_line(OURS))
    with pytest.raises(DecodeError, match="protocols that we do not serve"):
        await accept_protocol(talk, {OURS})
    assert talk.sent == HELLO + REFUSAL * PROPOSALS_MAX


@pytest.mark.parametrize("num_bytes", [1, 126, 127, 128, LINE_BYTES_MAX - 1])
async def test_name_of_any_length_is_asked_for_and_found(num_bytes: int) -> None:
    name = "/" + "x" * (num_bytes - 1)
    asked = Talk(HELLO, encode_line(name))
    await request_protocol(asked, name)
    assert await accept_protocol(Talk(asked.sent), {name}) == name


@pytest.mark.parametrize(
    "line",
    [
        encode_line("/" + "x" * (LINE_BYTES_MAX - 1)),  # A byte too long, with its end.
        b"\x00",
        b"\xff\xff" + b"x" * 40_000,
        b"\x03abc",  # No end.
        b"\x02\xff\n",
    ],
)
async def test_line_that_is_none_is_not_answered(line: bytes) -> None:
    talk = Talk(HELLO, line)
    with pytest.raises(DecodeError):
        await accept_protocol(talk, {OURS})
    assert talk.sent == b""
    with pytest.raises(UnreachableError):
        await request_protocol(Talk(HELLO, line), OURS)


async def test_who_does_not_greet_or_answers_something_else_serves_nothing() -> None:
    with pytest.raises(DecodeError, match="no multistream-select"):
        await accept_protocol(Talk(encode_line(OURS), encode_line(OURS)), {OURS})
    for answer in (REFUSAL, encode_line(OTHER)):
        with pytest.raises(UnreachableError, match="does not serve"):
            await request_protocol(Talk(HELLO, answer), OURS)
