"""What may wait for company does, and who leaves a stream is not kept by it."""

from typing import Any

import pytest
import trio
import trio.testing
from libp2p.stream_muxer.exceptions import MuxedStreamClosed, MuxedStreamReset

from dht.transport import libp2p_yamux
from dht.transport.libp2p_yamux import DATA, FIN, HEADER, PATIENCE_S, SYN, WINDOW_UPDATE
from tests.dht.loopback import MIB
from tests.dht.muxing import frame, muxers


async def test_answer_that_is_not_urgent_goes_with_the_next_frame_or_a_little_later(autojump_clock):
    one, two = muxers()
    stream: Any = await one.open_stream()
    records: list[bytes] = []
    send = one.secured_conn.send

    async def noted(parts):
        records.append(b"".join(parts))
        await send(parts)

    one.secured_conn.send = noted
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.start)
        nursery.start_soon(two.start)
        theirs: Any = await two.accept_stream()
        records.clear()
        began_s = trio.current_time()
        assert stream.write_soon(b"a")
        assert stream.write_soon(b"bc")
        await stream.write(b"now")
        assert len(records) == 1
        assert await theirs.read(6) == b"abcnow"
        assert trio.current_time() == began_s
        assert stream.write_soon(b"d")
        assert stream.write_soon(b"e")
        await theirs.readable(2)
        assert trio.current_time() == pytest.approx(began_s + PATIENCE_S)
        assert [len(record) for record in records[1:]] == [2 * HEADER.size + 2]
        # And again: the one who waits for company waits anew.
        await trio.sleep(1)
        assert stream.write_soon(b"f")
        await theirs.readable(3)
        assert await theirs.read(3) == b"def"
        assert trio.current_time() == pytest.approx(began_s + 1 + 2 * PATIENCE_S)
        await one.close()


async def test_answer_that_is_not_urgent_goes_when_more_of_a_frame_has_come(autojump_clock):
    """No timer is set while it is on its way, and none is missed when it ends."""
    one, two = muxers()
    sent_s: list[float] = []
    comes, goes = two.secured_conn.out, two.secured_conn.into

    async def notes():
        while True:
            await goes.receive()
            sent_s.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.start)
        nursery.start_soon(notes)
        await comes.send(frame(WINDOW_UPDATE, SYN, 2, 0) + frame(DATA, 0, 2, 300, bytes(100)))
        stream: Any = await one.accept_stream()
        await trio.testing.wait_all_tasks_blocked()
        sent_s.clear()
        assert stream.write_soon(b"a")
        await trio.sleep(1)
        assert sent_s == []
        await comes.send(bytes(100))
        await trio.testing.wait_all_tasks_blocked()
        assert sent_s == [trio.current_time()]
        # The frame ends before the patience does.
        assert stream.write_soon(b"b")
        await comes.send(bytes(100))
        await trio.sleep(1)
        assert sent_s[1:] == [pytest.approx(sent_s[0] + PATIENCE_S)]
        nursery.cancel_scope.cancel()


async def test_answer_for_which_there_is_no_room_is_the_callers_again():
    muxer, _ = muxers()
    stream: Any = await muxer.open_stream()
    stream.send_window = 3
    assert stream.write_soon(b"abc")
    assert not stream.write_soon(b"d")
    assert stream.send_window == 0
    stream.widen(10 * MIB)
    while stream.write_soon(bytes(100)):
        assert len(muxer._unsent) <= libp2p_yamux.UNSENT_BYTES_MAX // 2
    assert not muxer.secured_conn.reasons
    stream.end("the connection is gone")
    with pytest.raises(MuxedStreamReset):
        stream.write_soon(b"d")


async def test_reader_is_told_to_leave_and_what_comes_is_thrown_away(autojump_clock):
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    stream = muxer.streams[2]
    place = memoryview(bytearray(100))

    async def reads(read):
        with pytest.raises(MuxedStreamClosed, match="closed here"):
            await read

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads, stream.receive_into(place))
        await trio.testing.wait_all_tasks_blocked()
        stream.leave()
        drained = trio.Event()

        async def drains():
            await stream.drain(MIB)
            drained.set()

        nursery.start_soon(drains)
        await trio.testing.wait_all_tasks_blocked()
        muxer.feed(frame(DATA, 0, 2, 5000, bytes(5000)))
        await trio.testing.wait_all_tasks_blocked()
        assert stream.num_buffered == 0
        assert not drained.is_set()
        muxer.feed(frame(DATA, FIN, 2, 3, b"end"))
        await drained.wait()
    await reads(stream.readable())


async def test_who_sends_on_to_a_reader_that_left_is_not_listened_to_for_ever():
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    stream = muxer.streams[2]
    stream.leave()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.drain, 10_000)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            muxer.feed(frame(DATA, 0, 2, 5000, bytes(5000)))
    assert stream.num_buffered == 5000
