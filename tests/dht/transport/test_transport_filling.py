"""What all transports promise of memory that is filled: see `test_transport_contract`."""

import pytest
import trio

from protocol.errors import StreamClosedError
from protocol.transport import Stream
from tests.dht.muxing import muxed_stream
from tests.dht.transport.test_transport_contract import DEADLINE_S, ECHO, MIB
from tests.dht.transport.test_transport_contract import world as world


async def test_pieces_of_a_stream_fill_memory_of_the_callers_in_any_sizes(world):
    """Between frames and what is received otherwise, and nothing beside it is touched."""

    async def count(stream: Stream) -> None:
        await stream.send_frame(b"first")
        await stream.send_all(bytes(range(256)) * 4096)
        await stream.send_frame(b"last")

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: count}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            assert await stream.receive_frame(100) == b"first"
            place = bytearray(b"?" * (MIB + 2))
            at = 1
            for num_bytes in (0, 1, 3, 250, 65_536, 100_000, 500_000):
                await stream.receive_into(memoryview(place)[at : at + num_bytes])
                at += num_bytes
            place[at : at + 1000] = await stream.receive_exactly(1000)
            await stream.receive_into(memoryview(place)[at + 1000 : -1])
            assert place == b"?" + bytes(range(256)) * 4096 + b"?"
            assert await stream.receive_frame(100) == b"last"
            with pytest.raises(StreamClosedError):
                await stream.receive_into(memoryview(bytearray(1)))


async def test_several_places_are_filled_and_several_parts_sent_one_behind_the_other(world):
    data = bytes(range(256)) * 4096

    async def send(stream: Stream) -> None:
        await stream.send_all(data[:3], b"", memoryview(data)[3:300_000])
        # More than is counted at a time.
        await stream.send_all(data[300_000:], bytes(MIB), b"last")

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: send}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)
            sizes = (1, 0, 70_000, 200_000, 10, MIB - 270_011)
            places = [memoryview(bytearray(size)) for size in sizes]
            await stream.receive_into(*places[:3])
            await stream.receive_into(*places[3:], memoryview(bytearray(0)))
            assert b"".join(places) == data
            await stream.receive_exactly(MIB)
            assert await stream.receive_exactly(4) == b"last"
            assert client.traffic()[1] == server.traffic()[0] == 2 * MIB + 4


async def test_closing_wakes_who_waits_for_memory_to_be_filled(world):
    async def half(stream: Stream) -> None:
        await stream.send_all(b"x" * 1000)
        await trio.sleep_forever()

    with trio.fail_after(DEADLINE_S):
        async with world.open({ECHO: half}) as server, world.open() as client:
            await client.connect(server.peer_id, server.addresses())
            stream = await client.open_stream(server.peer_id, ECHO)

            async def wait_in_vain() -> None:
                with pytest.raises(StreamClosedError):
                    await stream.receive_into(memoryview(bytearray(2000)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_in_vain)
                await trio.testing.wait_all_tasks_blocked(0.05)
                await stream.aclose()


async def test_bytes_that_come_to_memory_open_the_window_as_those_that_are_taken_do():
    muxer_posts = []
    for is_placed in (False, True):
        muxed = muxed_stream()
        place = memoryview(bytearray(200_000))
        async with trio.open_nursery() as nursery:
            if is_placed:
                nursery.start_soon(muxed.receive_into, place)
                await trio.testing.wait_all_tasks_blocked()
            for _ in range(4):
                assert muxed.take_window(50_000)
                muxed.feed(memoryview(bytes(50_000)), whole=bytes(50_000))
                if not is_placed:
                    muxed.take(50_000)
        assert muxed.num_buffered == 0
        muxer_posts.append(muxed._conn.posted)
    assert muxer_posts[0] == muxer_posts[1] != []


async def test_what_does_not_fit_is_kept_for_the_next_and_cancelling_lets_go_of_memory():
    muxed = muxed_stream()
    place = memoryview(bytearray(10))
    with trio.move_on_after(0.01):
        await muxed.receive_into(place)
    muxed.feed(memoryview(b"abcdefgh"), whole=b"abcdefgh")
    assert bytes(place) == bytes(10), "nobody waits in it any more"
    await muxed.receive_into(place[:3])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(muxed.receive_into, place[3:])
        await trio.testing.wait_all_tasks_blocked()
        muxed.feed(memoryview(b"ijKLM"), whole=b"ijKLM")
    assert bytes(place) == b"abcdefghij"
    assert b"".join(muxed.take(10)) == b"KLM"
