"""How much may lie unread: windows grow where they are read, and all together are bounded."""

from weakref import WeakSet

import pytest
import trio
from libp2p.peer.id import ID

from dht.transport.libp2p_yamux import (
    ACK,
    FIN,
    INBOUND_STREAMS_MAX,
    RST,
    SYN,
    UNREAD_BYTES_MAX,
    UNREAD_BYTES_OF_ALL_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_START,
    WINDOW_UPDATE,
    Yamux,
)
from tests.dht.loopback import MIB
from tests.dht.muxing import feed, frame, muxed_stream, muxers
from tests.dht.transport.test_libp2p_yamux import posted


async def test_window_grows_while_it_is_read_fast_and_stays_when_not(autojump_clock):
    fast, slow = muxed_stream(), muxed_stream()
    await trio.sleep(60)  # Also of a stream that was quiet at first.
    for _ in range(20):
        feed_half(fast)
    for _ in range(20):
        await trio.sleep(2)
        feed_half(slow)
    assert fast.window_target == WINDOW_BYTES_MAX
    assert slow.window_target == WINDOW_BYTES_START


def feed_half(muxed):
    size = muxed.window_target // 2
    assert muxed.take_window(size)
    muxed.feed(memoryview(bytes(size)), whole=bytes(size))
    muxed.take(size)


async def test_windows_of_all_streams_together_are_bounded():
    muxer, _ = muxers()
    for number in range(INBOUND_STREAMS_MAX):
        muxer.feed(frame(WINDOW_UPDATE, SYN, 2 * number + 2, 0))
    for _ in range(20):
        for stream in muxer.streams.values():
            feed_half(stream)
    assert sum(one.window_target for one in muxer.streams.values()) <= UNREAD_BYTES_MAX


async def test_windows_of_all_connections_together_are_bounded():
    shared = WeakSet[Yamux]()
    crowd = [Yamux(muxers()[1].secured_conn, ID(b"peer"), shared) for _ in range(12)]
    for number in range(8):
        for muxer in crowd:
            muxer.feed(frame(WINDOW_UPDATE, SYN, 2 * number + 1, 0))
    for _ in range(10):
        for muxer in crowd:
            for stream in muxer.streams.values():
                feed_half(stream)
    granted = sum(muxer.granted_bytes for muxer in crowd)
    assert UNREAD_BYTES_OF_ALL_MAX // 2 < granted <= UNREAD_BYTES_OF_ALL_MAX
    alone = Yamux(muxers()[1].secured_conn, ID(b"peer"))
    assert alone.may_widen(UNREAD_BYTES_MAX)
    for muxer in crowd[1:]:
        for stream in tuple(muxer.streams.values()):
            stream.end("gone")
    assert crowd[0].may_widen(MIB), "what others held is free once they are gone"


@pytest.mark.parametrize("is_taken", [True, False])
async def test_what_lies_unread_in_a_stream_that_ended_counts_until_it_is_gone(is_taken):
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    stream = muxer.streams[2]
    feed_half(stream)
    feed(stream, [bytes(100_000)])
    assert muxer.granted_bytes == stream.window_target == 2 * WINDOW_BYTES_START
    muxer.feed(frame(WINDOW_UPDATE, RST, 2, 0))
    assert muxer.granted_bytes == 100_000
    if is_taken:
        stream.take(60_000)
        assert muxer.granted_bytes == 40_000
        stream.take(40_000)
    else:
        await stream.close()
    assert (muxer.granted_bytes, stream.num_buffered) == (0, 0)


async def test_next_stream_begins_with_the_window_that_the_last_one_came_to():
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    assert posted(muxer) == [(WINDOW_UPDATE, ACK, 2, 0)]
    for _ in range(3):
        feed_half(muxer.streams[2])
    grown = muxer.streams[2].window_target
    assert grown == 8 * WINDOW_BYTES_START
    posted(muxer)
    await muxer.streams[2].close()
    muxer.feed(frame(WINDOW_UPDATE, FIN, 2, 0) + frame(WINDOW_UPDATE, SYN, 4, 0))
    assert posted(muxer)[-1] == (WINDOW_UPDATE, ACK, 4, grown - WINDOW_BYTES_START)
    assert muxer.streams[4].take_window(grown), "as much as was allowed"
    assert not muxer.streams[4].take_window(1), "and no byte more"
    for number in range(3, INBOUND_STREAMS_MAX):
        muxer.feed(frame(WINDOW_UPDATE, SYN, 2 * number, 0))
    granted = sum(one.window_target for one in muxer.streams.values())
    assert granted <= UNREAD_BYTES_MAX + len(muxer.streams) * WINDOW_BYTES_START


async def test_stream_that_is_opened_beside_another_begins_with_its_window():
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    feed_half(muxer.streams[2])
    posted(muxer)
    muxer.feed(frame(WINDOW_UPDATE, SYN, 4, 0))
    assert posted(muxer)[-1] == (WINDOW_UPDATE, ACK, 4, WINDOW_BYTES_START)
    assert muxer.streams[4].window_target == muxer.streams[2].window_target
