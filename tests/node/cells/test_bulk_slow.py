"""Cells over a line that takes long: no stall while it moves, nothing twice, parts first."""

from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.plane import bulk_queue as uplink
from node.plane import bulk_streams
from node.plane.bulk_queue import WINDOW_BYTES_MAX, WINDOW_BYTES_START, LineLimits, SendWindow
from node.plane.bulk_streams import BULK_PROTOCOL, STALL_S
from protocol import events as ev
from protocol import limits
from protocol.errors import NetworkError, PeerError, StreamClosedError
from protocol.frames import Bulk, Heartbeat
from protocol.identity import PeerId
from protocol.rounds.giving import STILL_S
from tests.memory_transport import MemoryNetwork, MemoryStream, stream_pair
from tests.node.cells.test_bulk_streams import CELLS, good_transfer
from tests.node.edge import FOUNDER_SEED, Desk


class SlowStream:
    """The near end of a stream whose bytes take their time on one line, and then are taken."""

    def __init__(self, line: "SlowLine", peer: PeerId) -> None:
        self.peer = peer
        self._line = line
        self._near, self._far = stream_pair(line.near, line.far)
        line.nursery.start_soon(line.takes, self._far)

    async def send_all(self, *parts) -> None:
        line, data = self._line, b"".join(parts)
        line.sent += len(data)
        some = max(64, len(data) // 16)  # A line brings what it is given bit by bit.
        for start in range(0, len(data), some):
            part = bytes(data[start : start + some])
            line.free_s = max(line.free_s, trio.current_time()) + len(part) / line.bytes_per_s
            line.nursery.start_soon(self._arrive, part, line.free_s)

    async def _arrive(self, data: bytes, at_s: float) -> None:
        # A buffer without end, as the system's is for what a round sends.
        with trio.move_on_at(at_s):
            await trio.Event().wait()
        with suppress(StreamClosedError):
            await self._near.send_all(data)

    async def send_soon(self, data) -> None:
        await self.send_all(data)

    async def receive_into(self, *places: memoryview) -> None:
        for place in places:
            place[:] = await self.receive_exactly(len(place))

    async def send_frame(self, frame: bytes) -> None:
        await self.send_all(len(frame).to_bytes(4, "big") + frame)

    @property
    def num_buffered(self) -> int:
        return self._near.num_buffered

    async def receive_exactly(self, num_bytes: int) -> bytes:
        return await self._near.receive_exactly(num_bytes)

    async def aclose(self) -> None:
        await self._near.aclose()


class SlowLine:
    """A transport that only opens streams, all of which share one line."""

    def __init__(self, near, far, nursery, bytes_per_s: float, target: Desk) -> None:
        self.near, self.far, self.nursery, self.bytes_per_s = near, far, nursery, bytes_per_s
        self.free_s, self.sent, self.opened = 0.0, 0, 0
        self._accept = target.streams(far).accept

    async def takes(self, stream: MemoryStream) -> None:
        with suppress(NetworkError, PeerError):
            await self._accept(stream)
        await stream.aclose()

    async def open_stream(self, peer: PeerId, protocol: str) -> SlowStream:
        assert protocol == BULK_PROTOCOL
        self.opened += 1
        return SlowStream(self, peer)


ROUND_TRIP_S = 1.0


class LongLine(SlowLine):
    """What asks for a stream goes behind what is on the line, and its answer comes back."""

    async def open_stream(self, peer: PeerId, protocol: str) -> SlowStream:
        self.opened += 1
        with trio.move_on_at(max(self.free_s, trio.current_time()) + ROUND_TRIP_S):
            await trio.Event().wait()
        return YieldingStream(self, peer)


class YieldingStream(SlowStream):
    """Others have their turn before bytes are on the line, as with a socket."""

    async def send_all(self, *parts) -> None:
        with trio.move_on_after(0.01):
            await trio.Event().wait()
        await super().send_all(*parts)


@asynccontextmanager
async def slow_line(bytes_per_s: float, target: Desk, kind: type[SlowLine] = SlowLine):
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
        trio.open_nursery() as nursery,
    ):
        yield kind(near, far, nursery, bytes_per_s, target)
        nursery.cancel_scope.cancel()


async def test_cells_on_a_slow_line_are_told_as_they_come_and_asking_again_sends_nothing(
    autojump_clock: trio.abc.Clock,
) -> None:
    source, target, header, items = good_transfer()
    size = sum(len(item.payload) for item in items)
    async with slow_line(size / 20.0, target) as line, trio.open_nursery() as nursery:
        streams = source.streams(line)
        push = ev.Push(line.far.peer_id, Bulk.PART, header.subject, CELLS)
        for _ in range(12):
            nursery.start_soon(streams.push, push)
            await trio.sleep(1.0)
        told = [event.cells for event in target.told if isinstance(event, ev.CellsArrived)]
        assert told == [(0,), (1,)], "what is here before the end counts"
        assert streams.parts_in_flight == 1
    assert line.opened == 1
    assert size < line.sent < 1.3 * size
    told = [event.cells for event in target.told if isinstance(event, ev.CellsArrived)]
    assert told == [(0,), (1,), (2,), (3,)]
    assert trio.current_time() > 20.0, "longer than a stall, but it moved"
    assert streams.parts_in_flight == 0


async def test_parts_of_a_peer_go_before_results_that_waited_longer(
    autojump_clock: trio.abc.Clock,
) -> None:
    source, target, header, items = good_transfer()
    size = sum(len(item.payload) for item in items)
    async with slow_line(size / 4.0, target) as line, trio.open_nursery() as nursery:
        streams = source.streams(line)
        to, began = line.far.peer_id, []
        send = streams._send

        async def noted(push: ev.Push, is_sent) -> bool:
            began.append((push.bulk, push.cells))
            return await send(push, is_sent)

        streams._send = noted  # type: ignore[method-assign]
        for bulk_kind, cells in (
            (Bulk.PART, (0,)),
            (Bulk.PART, (3,)),
            (Bulk.RESULT, (0, 1)),
            (Bulk.PART, (1,)),
            (Bulk.PART, (0, 2)),
        ):
            nursery.start_soon(streams.push, ev.Push(to, bulk_kind, header.subject, cells))
            await trio.sleep(0.01)
    # The first is sent and not through, the second on its way: all else waits.
    first, second, *later = began
    assert (first, second) == ((Bulk.PART, (0,)), (Bulk.PART, (3,)))
    assert later == [(Bulk.PART, (1, 2)), (Bulk.RESULT, (0, 1))]


@pytest.mark.parametrize(("up_bytes_per_s", "round_trips"), [(0.0, 1), (1e9, 2)])
async def test_a_long_line_is_full_between_two_transfers_unless_its_owner_limits_it(
    autojump_clock: trio.abc.Clock, up_bytes_per_s: float, round_trips: int
) -> None:
    source, target, header, items = good_transfer()
    limits_of_owner = LineLimits(up_bytes_per_s=up_bytes_per_s)
    source.state_parts = replace(source.state_parts, line=limits_of_owner)
    size = sum(len(item.payload) for item in items)
    async with slow_line(size / 8.0, target, LongLine) as line, trio.open_nursery() as nursery:
        streams, began_s = source.streams(line), trio.current_time()
        for cells in ((0, 1), (2, 3)):
            push = ev.Push(line.far.peer_id, Bulk.PART, header.subject, cells)
            nursery.start_soon(streams.push, push)
            await trio.sleep(0.01)
    assert line.opened == 2
    on_line_s = line.sent / line.bytes_per_s
    expected_s = on_line_s + round_trips * ROUND_TRIP_S
    assert trio.current_time() - began_s == pytest.approx(expected_s, abs=0.3)


async def test_line_is_known_by_what_leaves_this_node(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "SAMPLE_BYTES", 1024)
    source, target, header, items = good_transfer()
    size = sum(len(item.payload) for item in items)
    async with slow_line(size / 20.0, target) as line:
        streams = source.streams(line)
        push = ev.Push(line.far.peer_id, Bulk.PART, header.subject, CELLS)
        await streams.push(push)
        assert streams.uplink.mbit() == pytest.approx(8e-6 * size / 20.0, rel=0.2)
        # Of what broke off nobody knows how much arrived.
        known = streams.uplink.mbit()
        line.bytes_per_s = 1.0
        await streams.push(push)
        assert trio.current_time() > STALL_S
        assert streams.uplink.mbit() == known


async def test_line_is_known_by_what_came_through_before_its_taker_left_the_round(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow line that is how most transfers to those who are faster end."""
    monkeypatch.setattr(uplink, "SAMPLE_BYTES", 1024)
    source, target, header, items = good_transfer()
    size = sum(len(item.payload) for item in items)
    async with slow_line(size / 20.0, target) as line, trio.open_nursery() as nursery:
        streams, peer = source.streams(line), line.far.peer_id
        streams._pace(peer).window_bytes = 1  # The second cell waits for the first one.
        nursery.start_soon(streams.push, ev.Push(peer, Bulk.PART, header.subject, CELLS))
        await trio.sleep(3.0)
        source.core.handle(
            ev.FrameArrived(peer, Heartbeat(round=2, head=bytes(32), held=(), links=())), 1.0
        )
    assert trio.current_time() < 18.0, "not all of it was sent"
    assert streams.uplink.mbit() == pytest.approx(8e-6 * size / 20.0, rel=0.2)
    assert not [event for event in source.told if isinstance(event, ev.BytesGiven)]


async def test_cell_that_takes_longer_than_a_stall_arrives_if_it_moves(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SendWindow, "piece_bytes", limits.PIECE_BYTES_LEAST)
    source, target, header, items = good_transfer()
    (item,) = items[:1]
    rate = len(item.payload) / (5 * STALL_S)
    async with slow_line(rate, target) as line:
        streams = source.streams(line)
        await streams.push(ev.Push(line.far.peer_id, Bulk.PART, header.subject, (0,)))
        assert trio.current_time() > 5 * STALL_S
        await wait_all_tasks_blocked()  # It is told once it is checked.
    assert ev.CellsArrived(Bulk.PART, header.subject, (0,)) in target.told
    signs = [event for event in target.told if isinstance(event, ev.BytesArrived)]
    assert len(signs) > 3 * 5, "so often that nobody takes it for a stall"
    assert all(event.subject == header.subject and not event.is_state for event in signs)


async def test_giver_hears_of_what_is_read_while_one_cell_takes_longer_than_takers_are_awaited(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SendWindow, "piece_bytes", limits.PIECE_BYTES_LEAST)
    monkeypatch.setattr(bulk_streams, "GIVEN", {Bulk.PART})
    source, target, header, items = good_transfer()
    took_s = 2 * STILL_S
    async with slow_line(len(items[0].payload) / took_s, target) as line:
        await source.streams(line).push(ev.Push(line.far.peer_id, Bulk.PART, header.subject, (0,)))
    *told, last = [event for event in source.told if isinstance(event, ev.BytesGiven)]
    assert last.seconds == pytest.approx(took_s, rel=0.1), "parts are told of once they are there"
    assert set(told) == {ev.BytesGiven(line.far.peer_id, Bulk.PART, header.subject)}
    assert took_s / STILL_S < len(told) <= took_s / bulk_streams.GIVEN_EVERY_S


async def test_line_that_became_slow_brings_what_stalled_on_it_when_it_is_asked_for_again(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces are as small again as on a line that nobody knows."""

    def size(pace: SendWindow) -> int:
        small = pace.window_bytes == WINDOW_BYTES_START
        return limits.PIECE_BYTES_LEAST if small else limits.PIECE_BYTES_MAX

    monkeypatch.setattr(SendWindow, "piece_bytes", property(size))
    source, target, header, items = good_transfer()
    told = ev.CellsArrived(Bulk.PART, header.subject, (0,))
    async with slow_line(len(items[0].payload) / (5 * STALL_S), target) as line:
        streams = source.streams(line)
        streams._pace(line.far.peer_id).window_bytes = WINDOW_BYTES_MAX
        push = ev.Push(line.far.peer_id, Bulk.PART, header.subject, (0,))
        for is_here in (False, True):
            await streams.push(push)
            await wait_all_tasks_blocked()
            assert (told in target.told) is is_here
            line.free_s = trio.current_time()  # What was not through went with its stream.
