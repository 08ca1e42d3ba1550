"""What cells take of a line: no more than its owner said, and nearly all of it."""

from dataclasses import replace

import pytest
import trio

from node.plane.bulk_queue import LineLimits
from node.plane.bulk_streams import BULK_PROTOCOL, STALL_S
from node.state.config import NodeConfig
from protocol import events as ev
from protocol.errors import ConfigError
from protocol.frames import Bulk
from tests.memory_transport import MemoryNetwork
from tests.node.cells.test_bulk_streams import CELLS, good_transfer
from tests.node.edge import FOUNDER_SEED, Desk

RATE = 80_000.0
"""Bytes per second: ten seconds are a hundred transfers of the four cells that a desk has."""

SECONDS = 10.0


def limit(desk: Desk, **bytes_per_s: float) -> LineLimits:
    line = LineLimits(**bytes_per_s)
    desk.state_parts = replace(desk.state_parts, line=line)
    return line


async def moved(*, up: float = 0.0, down: float = 0.0) -> float:
    """Bytes per second of two peers' transfers at once, through a line with these limits."""
    source, target, header, items = good_transfer()
    limit(source, up_bytes_per_s=up)
    limit(target, down_bytes_per_s=down)
    num_bytes = 0
    size = sum(len(item.payload) for item in items)
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
    ):
        far.serve(BULK_PROTOCOL, target.streams(far).accept)
        await near.connect(far.peer_id, far.addresses())
        push = ev.Push(far.peer_id, Bulk.PART, header.subject, CELLS)

        async def again_and_again() -> None:
            nonlocal num_bytes
            streams = source.streams(near)  # One queues what goes to one peer.
            while True:
                await streams.push(push)
                num_bytes += size

        began_s = trio.current_time()
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(again_and_again)
                nursery.start_soon(again_and_again)
        assert target.faults() == []
    return num_bytes / (trio.current_time() - began_s)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", ["up", "down"])
async def test_limit_is_kept_within_a_tenth_over_ten_seconds(
    way: str, autojump_clock: trio.abc.Clock
) -> None:
    assert 0.9 * RATE < await moved(**{way: RATE}) < 1.1 * RATE


async def test_transfer_that_waits_longer_for_its_turn_than_a_stall_is_not_given_up(
    autojump_clock: trio.abc.Clock,
) -> None:
    source, target, header, items = good_transfer()
    size = sum(len(item.payload) for item in items)
    line = limit(source, up_bytes_per_s=size / (STALL_S + 2.0))
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
    ):
        far.serve(BULK_PROTOCOL, target.streams(far).accept)
        await near.connect(far.peer_id, far.addresses())
        # What may go at once is gone.
        await line.before_sending(32 * 1024, trio.CancelScope())
        await source.streams(near).push(ev.Push(far.peer_id, Bulk.PART, header.subject, CELLS))
    told = [cell for e in target.told if isinstance(e, ev.CellsArrived) for cell in e.cells]
    assert told == list(CELLS)
    assert trio.current_time() > STALL_S


@pytest.mark.parametrize("field", ["up_mbit", "down_mbit"])
def test_limit_that_no_round_fits_through_is_refused(field: str, tmp_path) -> None:
    with pytest.raises(ConfigError, match=rf"{field}: 0\.5 is neither 0"):
        NodeConfig(state=tmp_path, manifest=tmp_path, **{field: 0.5})  # type: ignore[arg-type]
