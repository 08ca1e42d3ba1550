"""What a hostile peer costs the others: nothing of their rate, and a bounded memory.

Rates are those of a slow line, taken in turn with and without the hostile peer: so it is not the
machine that decides.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from dht.transport import libp2p_yamux
from dht.transport.libp2p_yamux import UNREAD_BYTES_MAX, WINDOW_BYTES_START
from protocol.errors import BarnraiseError, LimitError
from sim.processes.shaper import Shape, Shaper
from tests.dht.loopback import MIB, Wire, only_link, open_loopback, open_wire, until, wait

pytestmark = [pytest.mark.net, pytest.mark.slow]

TAKE, TRICKLE, FRAMES = "/test/take/1", "/test/trickle/1", "/test/frames/1"
LEAVE = "/test/leave/1"
LINE = Shape(bits_per_s=16e6, round_trip_s=0.01)
TAKEN_BYTES = MIB
TURNS, TURNS_MAX = 2, 12
SLOWER_MAX = 1.1
AGAIN_S = 0.1
STREAMS = 8


async def take(stream):
    """Reads it all, and says so."""
    await stream.receive_exactly(TAKEN_BYTES)
    await stream.send_all(b"!")


async def trickle(stream):
    """Reads a byte a second."""
    while True:
        await stream.receive_exactly(1)
        await wait(1.0)


async def leave(stream):
    """Is not read: whatever it was for does not come to an end."""
    await trio.sleep_forever()


async def frames(stream):
    """Reads frames of a kilobyte; anything longer is refused, and ends the stream."""
    while True:
        await stream.receive_frame(1024)


@dataclass
class Scene:
    """A victim, an honest peer behind a slow line, and a hostile one, which all know each other."""

    victim: Any
    honest: Any
    hostile: Any
    wire: Wire

    async def transfer_s(self):
        """How long the victim needs to get a MiB to the honest peer."""
        stream = await self.victim.open_stream(self.honest.peer_id, TAKE)
        began_s = trio.current_time()
        await stream.send_all(bytes(TAKEN_BYTES))
        assert await stream.receive_exactly(1) == b"!"
        await stream.aclose()
        return trio.current_time() - began_s

    def unread(self):
        """Bytes that lie at the victim and that nobody took."""
        return sum(
            one.num_buffered
            for link in self.victim._links.everything()
            for one in (link.muxed.streams.values() if link.muxed else ())
        )

    async def reconnected(self):
        """The hostile peer comes again, whatever became of its last connection."""
        await self.hostile.disconnect(self.victim.peer_id)
        await self.hostile.connect(self.victim.peer_id, self.victim.addresses())
        return only_link(self.hostile)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nursery = await enter(trio.open_nursery())
        victim = await enter(open_loopback({TAKE: take, FRAMES: frames, LEAVE: leave}))
        honest = await enter(open_loopback({TAKE: take}))
        hostile = await enter(open_loopback({TRICKLE: trickle}))
        shaper = Shaper(LINE, seed=0, nursery=nursery)
        port = await shaper.add_port("honest", int(honest.addresses()[0].rpartition("/")[2]))
        wire, address = await enter(open_wire(hostile.addresses()[0]))
        await victim.connect(honest.peer_id, [f"/ip4/127.0.0.1/tcp/{port.listen}"])
        await victim.connect(hostile.peer_id, [address])
        yield Scene(victim, honest, hostile, wire)
        wire.release()
        nursery.cancel_scope.cancel()


async def reads_a_byte_a_second(it: Scene) -> None:
    stream = await it.victim.open_stream(it.hostile.peer_id, TRICKLE)
    await stream.send_all(bytes(64 * MIB))


async def freezes(it: Scene) -> None:
    stream = await it.victim.open_stream(it.hostile.peer_id, TRICKLE)
    it.wire.hold()
    await stream.send_all(bytes(64 * MIB))


async def stalls(it: Scene) -> None:
    """A byte is missing of what is waited for; then it sends what windows take, and nobody reads.

    Wide windows are had for one stream that is read quickly.
    """
    wide = await it.hostile.open_stream(it.victim.peer_id, TAKE)
    await wide.send_all(bytes(TAKEN_BYTES))
    await wide.receive_exactly(1)
    await wide.aclose()
    for _ in range(STREAMS):
        stream = await it.hostile.open_stream(it.victim.peer_id, TAKE)
        await stream.send_all(bytes(TAKEN_BYTES - 1))
    async with trio.open_nursery() as nursery:
        for _ in range(STREAMS):
            stream = await it.hostile.open_stream(it.victim.peer_id, LEAVE)
            nursery.start_soon(stream.send_all, bytes(16 * MIB))


async def sends_garbage(it: Scene) -> None:
    while True:
        with contextlib.suppress(BarnraiseError):
            link = await it.reconnected()
            await link.write(bytes(range(256)) * 100)
            await until(link.lost.is_set)
        await wait(AGAIN_S)


async def lies_about_a_length(it: Scene) -> None:
    """First of a frame of ours, then of one of the muxer's."""
    while True:
        with contextlib.suppress(BarnraiseError):
            link = await it.reconnected()
            stream = await it.hostile.open_stream(it.victim.peer_id, FRAMES)
            await stream.send_all(b"\xff" * 4 + bytes(1000))
            muxed = link.muxed
            opened = await muxed.open_stream()
            muxed.post(libp2p_yamux.DATA, 0, opened.stream_id, 1 << 31)
            await until(link.lost.is_set)
        await wait(AGAIN_S)


HOSTILE: list[Callable[[Scene], Awaitable[None]]] = [
    reads_a_byte_a_second,
    sends_garbage,
    lies_about_a_length,
    stalls,
    freezes,
]


@pytest.mark.parametrize("does_wrong", HOSTILE, ids=lambda one: one.__name__)
async def test_hostile_peer_costs_the_others_no_tenth_of_their_rate(does_wrong):
    alone_s: list[float] = []
    beside_s: list[float] = []
    unread: list[int] = []

    def is_slower():
        # The best of each: a machine that is busy is slower, never faster.
        return min(beside_s) > SLOWER_MAX * min(alone_s)

    with trio.fail_after(120.0):
        async with scene() as it:
            await it.transfer_s()
            tasks = trio.lowlevel.current_statistics().tasks_living
            while len(alone_s) < TURNS_MAX and (len(alone_s) < TURNS or is_slower()):
                alone_s.append(await it.transfer_s())
                it.wire.release()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(does_wrong, it)
                    await wait(0.2)
                    beside_s.append(await it.transfer_s())
                    unread.append(it.unread())
                    nursery.cancel_scope.cancel()
            sent, _ = it.victim.traffic_with(it.hostile.peer_id)
            more_tasks = trio.lowlevel.current_statistics().tasks_living - tasks
    assert not is_slower(), (alone_s, beside_s)
    turns = len(alone_s)
    most = STREAMS * turns * WINDOW_BYTES_START + MIB
    if does_wrong is stalls:
        # Of one connection; streams that come when nothing is left have the window of yamux.
        most += UNREAD_BYTES_MAX + STREAMS * turns * WINDOW_BYTES_START
        assert max(unread) > most // 8, "it did what it could"
    assert max(unread) <= most, (unread, most)
    # Counted as it is handed over, a MiB at a time; a window and the system's buffers take it.
    assert sent <= turns * 16 * MIB
    assert more_tasks < 20 + 10 * STREAMS * turns


async def test_frame_that_claims_too_much_is_refused_before_anything_is_read(monkeypatch):
    refused = trio.Event()

    async def noted(stream):
        with contextlib.suppress(LimitError):
            await stream.receive_frame(1024)
            return
        refused.set()

    with trio.fail_after(20.0):
        async with open_loopback({FRAMES: noted}) as victim, open_loopback() as hostile:
            await hostile.connect(victim.peer_id, victim.addresses())
            stream = await hostile.open_stream(victim.peer_id, FRAMES)
            await stream.send_all(b"\xff" * 4)
            await refused.wait()
