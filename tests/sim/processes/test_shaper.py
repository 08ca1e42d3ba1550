"""The proxy, over real sockets of loopback."""

import random
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import trio

from sim.processes import shaper as shaper_module
from sim.processes.shaper import HOST, Line, Shape, Shaper, dialler, free_port

pytestmark = pytest.mark.net


@asynccontextmanager
async def shaped(shape: Shape, *names: str) -> AsyncIterator[Shaper]:
    """A shaper with nodes of these names, each of which sends back what it gets."""

    async def echo(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                await stream.send_all(data)

    async with trio.open_nursery() as nursery:
        shaper = Shaper(shape, seed=1, nursery=nursery)
        for name in names:
            listeners = await nursery.start(partial(trio.serve_tcp, echo, 0, host=HOST))
            await shaper.add_port(name, listeners[0].socket.getsockname()[1])
        yield shaper
        nursery.cancel_scope.cancel()


async def receive_all(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(65_536)
        assert piece, "the stream ended"
        data += piece
    return data


async def round_trip(stream: trio.SocketStream, data: bytes) -> bytes:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        back = await receive_all(stream, len(data))
    return back


async def dial(shaper: Shaper, name: str) -> trio.SocketStream:
    return await trio.open_tcp_stream(HOST, shaper.ports[name].listen)


async def dial_in(stack: AsyncExitStack, shaper: Shaper, name: str) -> trio.SocketStream:
    return await stack.enter_async_context(await dial(shaper, name))


async def test_bytes_come_through_unchanged_and_in_order():
    data = random.Random(1).randbytes(300_000)
    with trio.fail_after(20):
        shape = Shape(loss=0.02, round_trip_s=0.002)
        async with shaped(shape, "A") as shaper, await dial(shaper, "A") as stream:
            assert await round_trip(stream, data) == data


async def test_end_of_one_direction_leaves_the_other_open():
    with trio.fail_after(20):
        async with shaped(Shape(), "A") as shaper, await dial(shaper, "A") as stream:
            await stream.send_all(b"last words")
            await stream.send_eof()
            assert await receive_all(stream, 10) == b"last words"
            assert await stream.receive_some(1) == b""


async def test_stalled_line_keeps_its_connections_and_passes_nothing():
    with trio.fail_after(20):
        async with AsyncExitStack() as stack:
            shaper = await stack.enter_async_context(shaped(Shape(), "A", "B"))
            stream, other = [await dial_in(stack, shaper, name) for name in ("A", "B")]
            assert await round_trip(stream, b"x") == b"x"
            shaper.stall("A")
            await stream.send_all(b"y")
            # What is behind it in time has come through, so it would have come too.
            for _ in range(20):
                assert await round_trip(other, b"z") == b"z"
            with trio.move_on_after(0.1) as scope:
                await stream.receive_some(1)
            assert scope.cancelled_caught
            shaper.go_on("A")
            assert await receive_all(stream, 1) == b"y"


async def test_reset_breaks_every_connection_of_the_node_and_no_other():
    with trio.fail_after(20):
        async with AsyncExitStack() as stack:
            shaper = await stack.enter_async_context(shaped(Shape(), "A", "B"))
            one, two, other = [await dial_in(stack, shaper, name) for name in ("A", "A", "B")]
            for stream in (one, two, other):
                assert await round_trip(stream, b"x") == b"x"
            assert shaper.reset("A") == 2
            for stream in (one, two):
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some(1)
            assert await round_trip(other, b"x") == b"x"
            assert await round_trip(await dial_in(stack, shaper, "A"), b"x") == b"x"


async def test_node_that_does_not_listen_is_a_broken_connection():
    with trio.fail_after(20):
        async with shaped(Shape()) as shaper:
            await shaper.add_port("A", free_port(random.Random(1)))
            async with await dial(shaper, "A") as stream:
                with pytest.raises(trio.BrokenResourceError):
                    await stream.receive_some(1)


async def test_stall_of_the_dialler_holds_up_what_it_dialled(monkeypatch):
    monkeypatch.setattr(shaper_module, "dialler", lambda port, pids: "B")
    with trio.fail_after(20):
        async with shaped(Shape(), "A", "B") as shaper, await dial(shaper, "A") as stream:
            assert await round_trip(stream, b"x") == b"x"
            assert shaper.reset("B") == 1
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)


async def test_partition_holds_what_crosses_it_and_passes_it_on_when_it_is_over(monkeypatch):
    by = iter(("B", "C", None))
    monkeypatch.setattr(shaper_module, "dialler", lambda port, pids: next(by))
    with trio.fail_after(20):
        async with AsyncExitStack() as stack:
            shaper = await stack.enter_async_context(shaped(Shape(), "A", "B", "C"))
            near, far, unknown = [await dial_in(stack, shaper, "A") for _ in range(3)]
            for stream in (near, far, unknown):
                assert await round_trip(stream, b"x") == b"x"
            shaper.part(frozenset(("A", "B")))
            shaper.part(frozenset(("C",)))
            for stream in (far, unknown):
                await stream.send_all(b"y")
            for _ in range(20):
                assert await round_trip(near, b"z") == b"z"
            shaper.join(frozenset(("A", "B")))
            for stream in (far, unknown):
                with trio.move_on_after(0.1) as scope:
                    await stream.receive_some(1)
                assert scope.cancelled_caught
            shaper.join(frozenset(("C",)))
            for stream in (far, unknown):
                assert await receive_all(stream, 1) == b"y"


def test_dialler_is_found_by_its_socket(tmp_path):
    table = tmp_path / "net" / "tcp"
    table.parent.mkdir()
    row = "   1: 0100007F:{port:04X} 0100007F:1F90 01 0:0 00:0 0 1000 0 {inode} 1"
    lines = [
        "  sl  local_address ...",
        row.format(port=4001, inode=77),
        row.format(port=5, inode=8),
    ]
    table.write_text("\n".join(lines) + "\n")
    for pid, inode in ((11, 8), (12, 77)):
        folder = tmp_path / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to("/dev/null")
        (folder / "4").symlink_to(f"socket:[{inode}]")
    pids = {"A": 11, "B": 12, "C": 13}
    assert dialler(4001, pids, tmp_path) == "B"
    assert dialler(5, pids, tmp_path) == "A"
    assert dialler(6, pids, tmp_path) is None
    assert dialler(4001, {"A": 11}, tmp_path) is None
    assert dialler(4001, pids, tmp_path / "nothing") is None


def test_line_passes_one_thing_after_the_other():
    line = Line(8000.0)  # A byte a millisecond.
    assert line.take(100, 5.0) == pytest.approx(5.1)
    assert line.take(100, 5.0) == pytest.approx(5.2)
    assert line.take(100, 9.0) == pytest.approx(9.1)
    assert Line(None).take(10**9, 1.0) == 1.0


def test_free_port_is_one_that_can_be_listened_on():
    taken: set[int] = set()
    for _ in range(20):
        port = free_port(random.Random(7), taken.__contains__)
        assert port not in taken
        taken.add(port)
        with socket.socket() as one:
            one.bind((HOST, port))


# Measured, so that `--shape` means what it says. A machine that is busy is slower, never faster.


@pytest.mark.slow
async def test_rate_and_round_trip_are_what_was_asked():
    shape = Shape(bits_per_s=20e6, round_trip_s=0.08)
    size = 2_000_000
    best_rate, best_trip_s = 0.0, 10.0
    async with shaped(shape, "A") as shaper, await dial(shaper, "A") as stream:
        for _ in range(5):
            began_s = trio.current_time()
            await round_trip(stream, b"x")
            best_trip_s = min(best_trip_s, trio.current_time() - began_s)
        for _ in range(3):
            began_s = trio.current_time()
            await round_trip(stream, bytes(size))
            took_s = trio.current_time() - began_s - shape.round_trip_s
            best_rate = max(best_rate, 8 * size / took_s)
    assert 0.08 <= best_trip_s < 0.096
    assert 17e6 < best_rate < 22e6


@pytest.mark.slow
async def test_connections_of_one_node_share_its_line():
    size, count, took = 500_000, 3, []
    async with shaped(Shape(bits_per_s=20e6), "A") as shaper:

        async def fetch() -> None:
            async with await dial(shaper, "A") as stream:
                await round_trip(stream, bytes(size))

        for _ in range(3):
            began_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(fetch)
            took.append(trio.current_time() - began_s)
    assert 17e6 < 8 * size * count / min(took) < 22e6
