"""A stream of ours puts together what the library hands over in pieces of any size."""

import random
import tracemalloc

import pytest
import trio
from libp2p.network.stream.exceptions import StreamError

from dht.transport.libp2p_stream import root_message
from dht.transport.libp2p_yamux import UNYIELDED_BYTES_MAX
from protocol.errors import StreamClosedError
from protocol.identity import PeerId
from tests.dht.muxing import feed, muxed_stream, stream_over

PEER = PeerId(bytes(32))


def stream_of(pieces):
    muxed = muxed_stream()
    muxed.take_window(-sum(map(len, pieces)))
    feed(muxed, pieces)
    return stream_over(muxed, PEER)


def cut(rng, data, sizes):
    pieces = []
    while data:
        size = rng.choice(sizes)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize("round_number", range(20))
async def test_bytes_come_in_order_whatever_the_pieces(seed, round_number):
    rng = random.Random(f"{seed}/{round_number}")
    data = rng.randbytes(500_000)
    stream = stream_of(cut(rng, data, [1, 3, 1000, 16_384, 65_507, 200_000]))
    received = b""
    while len(received) < len(data):
        wanted = min(rng.choice([0, 1, 4, 100, 16_384, 65_536, 300_000]), len(data) - len(received))
        received += await stream.receive_exactly(wanted)
    assert received == data
    with pytest.raises(StreamClosedError, match="the other end closed"):
        await stream.receive_exactly(1)


async def test_many_small_pieces_take_little_more_than_their_bytes():
    num_bytes = 20_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        stream = stream_of([b"x"] * num_bytes)
        assert await stream.receive_exactly(num_bytes) == b"x" * num_bytes
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 12 * num_bytes


async def test_stream_that_is_reset_while_bytes_are_taken_gives_an_error_and_no_fewer_bytes():
    # So much is not taken without a step of the loop, in which it is reset.
    data = bytes(UNYIELDED_BYTES_MAX)
    muxed = muxed_stream()
    muxed.take_window(-len(data))
    feed(muxed, [data])
    stream = stream_over(muxed, PEER)

    async def receive():
        with pytest.raises(StreamClosedError):
            await stream.receive_exactly(len(data))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        nursery.start_soon(muxed.reset)


async def test_reader_of_what_is_here_lets_others_go_on():
    muxed = muxed_stream()
    data = [b"x" * 100] * 1000
    muxed.take_window(-100_000)
    feed(muxed, data)
    stream = stream_over(muxed, PEER)
    taken = steps = 0

    async def read():
        nonlocal taken
        for _ in data:
            await stream.receive_exactly(100)
            taken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while taken < len(data):
            await trio.lowlevel.checkpoint()
            steps += 1
    assert taken == len(data)
    assert 10 < steps < len(data) / 10


async def test_reader_of_what_is_here_can_be_cancelled():
    muxed = muxed_stream()
    feed(muxed, [b"four"])
    stream = stream_over(muxed, PEER)
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.receive_exactly(4)
    assert scope.cancelled_caught
    assert stream.num_buffered == 4


def test_root_message_is_the_deepest_that_says_something():
    error = StreamError("dialling failed")
    error.__cause__ = OSError("connection refused")
    error.__cause__.__cause__ = StreamError()
    assert root_message(error) == "connection refused"
    assert root_message(StreamError()) == "StreamError"


def test_root_message_looks_into_a_group():
    refused = OSError(111, "Connection refused")
    error = StreamError()
    error.__cause__ = ExceptionGroup("all attempts failed", [OSError("no route"), refused])
    assert root_message(error) == "[Errno 111] Connection refused"
