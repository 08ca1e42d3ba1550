"""Our muxer: windows are kept, streams end cleanly, and a stock peer notices no difference."""

import os
import random
from collections import deque
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import (
    MuxedStreamEOF,
    MuxedStreamReset,
)

from dht.transport import libp2p_yamux
from dht.transport.libp2p_session import JOINED_BYTES_MAX, SEND_BYTES_MAX
from dht.transport.libp2p_yamux import (
    ACK,
    DATA,
    FIN,
    HEADER,
    INBOUND_STREAMS_MAX,
    PING,
    RST,
    SYN,
    WINDOW_BYTES_START,
    WINDOW_UPDATE,
    ProtocolError,
)
from protocol.identity import parse_peer_id
from sim.bench.libp2p_stock import open_stock, stock_stream
from tests.dht.loopback import DEADLINE_S, ECHO, MIB, open_loopback
from tests.dht.muxing import Muxer, feed, frame, muxed_stream, muxers


def posted(muxer):
    data = bytes(muxer._unsent)
    muxer._unsent.clear()
    return [HEADER.unpack_from(data, start)[1:] for start in range(0, len(data), HEADER.size)]


async def test_many_streams_carry_what_was_sent_in_order(seed, autojump_clock):
    rng = random.Random(seed)
    one, two = muxers()
    sent = [rng.randbytes(rng.randrange(1, 3 * MIB)) for _ in range(5)]

    async def send(data):
        stream: Any = await one.open_stream()
        start = 0
        while start < len(data):
            stop = start + rng.choice((1, 100, 5000, 300_000, MIB))
            await stream.write(memoryview(data)[start:stop])
            start = stop
        await stream.close()
        with pytest.raises(MuxedStreamEOF):
            await stream.read(1)

    async def receive(found):
        stream: Any = await two.accept_stream()
        data = b""
        try:
            while True:
                data += await stream.read(rng.choice((1, 1000, 100_000, MIB)))
        except MuxedStreamEOF:
            found.append(data)
        await stream.close()

    found: list[bytes] = []
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.start)
            nursery.start_soon(two.start)
            async with trio.open_nursery() as streams:
                for data in sent:
                    streams.start_soon(send, data)
                    streams.start_soon(receive, found)
            assert sorted(found) == sorted(sent)
            assert not one.streams
            assert not two.streams
            await one.close()


async def test_answers_that_wait_leave_with_a_full_frame():
    one, _ = muxers()
    stream: Any = await one.open_stream()
    stream.send_window = MIB
    for _ in range(5000):
        one.post(PING, ACK, 0, 7)
    waiting = deque([memoryview(bytes(MIB))])
    await one.send_data(stream, waiting)
    taken = MIB - len(waiting[0])
    assert taken + len(HEADER.pack(0, 0, 0, 0, 0)) * 5002 == SEND_BYTES_MAX
    assert not one._unsent


@pytest.mark.parametrize("seed", range(5))
async def test_parts_of_any_size_go_in_frames_as_full_as_may_be(seed):
    rng = random.Random(seed)
    one, _ = muxers()
    stream: Any = await one.open_stream()
    stream.send_window = window = rng.choice([1, 5000, 3 * MIB])
    sizes = [rng.choice([1, 20, 4096, 4097, 100_000, 600_000]) for _ in range(12)]
    waiting = deque(memoryview(rng.randbytes(size)) for size in sizes)
    whole, records, frames = b"".join(waiting), list[list[Any]](), list[bytes]()

    async def keeps(parts):
        records.append(parts)

    one.secured_conn.send = keeps
    one._unsent.clear()
    while waiting and stream.send_window:
        await one.send_data(stream, waiting)
    for parts in records:
        joined = b"".join(parts)
        *_, length = HEADER.unpack_from(joined)
        assert len(joined) == HEADER.size + length <= SEND_BYTES_MAX
        frames.append(joined[HEADER.size :])
        # What is copied is little, and nothing small is a record of its own beside it.
        assert all(isinstance(part, bytearray) or len(part) > JOINED_BYTES_MAX for part in parts)
        kinds = [isinstance(part, bytearray) for part in parts]
        assert (True, True) not in pairwise(kinds)
    assert b"".join(frames) == whole[:window]
    assert b"".join(waiting) == whole[window:]
    assert all(len(found) == SEND_BYTES_MAX - HEADER.size for found in frames[:-1])


async def test_writer_waits_for_the_window_as_long_as_its_caller_does(autojump_clock):
    one, two = muxers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.start)
        nursery.start_soon(two.start)
        stream: Any = await one.open_stream()
        with trio.move_on_after(600) as scope:
            await stream.write(bytes(WINDOW_BYTES_START + 1))
        assert scope.cancelled_caught
        other: Any = await two.accept_stream()
        assert other.num_buffered == WINDOW_BYTES_START
        other.take(WINDOW_BYTES_START)
        await stream.write(bytes(WINDOW_BYTES_START))
        nursery.cancel_scope.cancel()


async def test_byte_beyond_the_window_is_refused():
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    muxer.feed(frame(DATA, 0, 2, WINDOW_BYTES_START, bytes(WINDOW_BYTES_START)))
    with pytest.raises(ProtocolError, match="beyond the window"):
        muxer.feed(frame(DATA, 0, 2, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        HEADER.pack(1, DATA, 0, 2, 0),
        HEADER.pack(0, 9, 0, 2, 0),
        frame(WINDOW_UPDATE, SYN, 0, 0),
        frame(WINDOW_UPDATE, SYN, 3, 0),
        frame(WINDOW_UPDATE, SYN, 2, 0) * 2,
        frame(DATA, SYN, 2, WINDOW_BYTES_START + 1),
    ],
    ids=["version", "type", "stream 0", "our number", "opened twice", "too much at once"],
)
async def test_frame_that_makes_no_sense_is_refused(wrong):
    muxer, _ = muxers()
    with pytest.raises(ProtocolError):
        muxer.feed(wrong)


async def test_more_streams_than_allowed_are_reset_one_by_one():
    muxer, _ = muxers()
    for number in range(INBOUND_STREAMS_MAX + 1):
        muxer.feed(frame(WINDOW_UPDATE, SYN, 2 * number + 2, 0))
    answers = posted(muxer)
    assert [flags for _, flags, _, _ in answers] == [ACK] * INBOUND_STREAMS_MAX + [RST]
    assert len(muxer.streams) == INBOUND_STREAMS_MAX


async def test_streams_that_nobody_accepts_in_time_are_bounded_though_they_end():
    muxer, _ = muxers()
    for number in range(2 * INBOUND_STREAMS_MAX):
        muxer.feed(frame(WINDOW_UPDATE, SYN, 2 * number + 2, 0))
        muxer.feed(frame(WINDOW_UPDATE, RST, 2 * number + 2, 0))
    flags = [flags for _, flags, _, _ in posted(muxer)]
    assert flags.count(RST) == INBOUND_STREAMS_MAX


async def test_peer_that_asks_without_reading_is_cut_off(monkeypatch):
    monkeypatch.setattr(libp2p_yamux, "UNSENT_BYTES_MAX", 1200)
    muxer, _ = muxers()
    muxer.feed(frame(PING, SYN, 0, 7) * 100)
    assert not muxer.secured_conn.reasons
    muxer.feed(frame(PING, SYN, 0, 7))
    assert muxer.secured_conn.reasons == ["it asks, and does not read the answers"]


async def test_end_of_a_stream_comes_behind_its_last_byte():
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    stream = muxer.streams[2]
    data = frame(DATA, FIN, 2, 3, b"abc")
    muxer.feed(data[:13])
    assert stream.num_buffered == 1
    muxer.feed(data[13:])
    assert await stream.read(9) == b"abc"
    with pytest.raises(MuxedStreamEOF):
        await stream.readable()


async def test_reader_of_many_bytes_is_woken_by_the_last_or_by_half_a_window(autojump_clock):
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    stream, half = muxer.streams[2], WINDOW_BYTES_START // 2
    for wanted, came in ((1000, 1000), (10 * half, half)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.readable, wanted)
            await trio.testing.wait_all_tasks_blocked()
            muxer.feed(frame(DATA, 0, 2, came - 1, bytes(came - 1)))
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            muxer.feed(frame(DATA, 0, 2, 1, b"x"))
        stream.take(came)
    muxer.feed(frame(DATA, FIN, 2, 3, b"end"))
    await stream.readable(1000)
    assert await stream.read(9) == b"end"


async def test_bytes_of_a_stream_that_is_gone_are_dropped():
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0) + frame(WINDOW_UPDATE, RST, 2, 0))
    muxer.feed(frame(DATA, 0, 2, 5, b"stray") + frame(PING, SYN, 0, 7))
    assert posted(muxer)[-1] == (PING, ACK, 0, 7)
    assert not muxer.streams


async def test_number_that_is_used_again_is_another_stream():
    """Its first stream may still wait to be told that the other end has closed it."""
    muxer, _ = muxers()
    muxer.feed(frame(WINDOW_UPDATE, SYN, 2, 0))
    first = muxer.streams[2]
    await first.close()
    muxer.feed(frame(WINDOW_UPDATE, FIN, 2, 0) + frame(WINDOW_UPDATE, SYN, 2, 0))
    second = muxer.streams[2]
    assert second is not first
    await first.reset()
    assert muxer.streams == {2: second}
    muxer.feed(frame(DATA, 0, 2, 5, b"still"))
    assert await second.read() == b"still"
    for number in range(2 * INBOUND_STREAMS_MAX):
        muxer.feed(frame(WINDOW_UPDATE, SYN, 2 * number + 4, 0))
    assert len(muxer.streams) <= INBOUND_STREAMS_MAX


async def test_small_pieces_of_a_large_record_do_not_hold_it():
    muxed = muxed_stream()
    record = bytes(60_000)
    muxed.feed(memoryview(record)[:10_000], whole=record)
    assert all(isinstance(part, bytearray) for part in muxed.take(10_000))


async def test_reset_stream_says_why_but_keeps_what_came():
    muxed = muxed_stream(Muxer())
    muxed.feed(memoryview(b"here"), whole=b"here")
    muxed.end("reset by the other end")
    assert await muxed.read(4) == b"here"
    with pytest.raises(MuxedStreamReset, match="reset by the other end"):
        await muxed.readable()
    with pytest.raises(MuxedStreamReset):
        await muxed.write(b"x")


async def test_half_closed_stream_still_reads():
    muxer = Muxer()
    muxed = muxed_stream(muxer)
    await muxed.close()
    feed(muxed, [b"answer"])
    assert await muxed.read(9) == b"answer"
    assert muxer.posted == [(WINDOW_UPDATE, FIN, 1, 0)]


@pytest.mark.net
@pytest.mark.parametrize("dials", ["ours", "theirs"])
async def test_stock_peer_notices_no_difference(dials):
    data = os.urandom(2 * MIB)

    async def send_back(stream):
        await stream.send_all(await stream.receive_exactly(len(data)))

    async def check(stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            assert await stream.receive_exactly(len(data)) == data
        await stream.aclose()

    with trio.fail_after(DEADLINE_S):
        async with (
            open_stock(ECHO, send_back) as (host, peer, addresses),
            open_loopback({ECHO: send_back}) as transport,
        ):
            if dials == "ours":
                await transport.connect(parse_peer_id(peer), addresses)
                await check(await transport.open_stream(parse_peer_id(peer), ECHO))
            else:
                ours = ID.from_base58(str(transport.host.get_id()))
                await check(await stock_stream(host, str(ours), list(transport.addresses()), ECHO))
