"""Parts on a line that a joiner's state fills: they take hardly longer than alone."""

from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from node.plane import bulk_queue
from node.plane.bulk_queue import YIELD_TIMES
from node.plane.bulk_streams import BULK_PROTOCOL
from protocol import events as ev
from protocol import limits
from protocol.frames import Bulk
from protocol.identity import Ed25519Signer, PeerId
from protocol.transport import Stream
from tests.memory_transport import MemoryNetwork
from tests.node.cells.test_bulk_slow import SlowLine, SlowStream
from tests.node.cells.test_bulk_streams import CELLS, MANIFEST, good_transfer
from tests.node.edge import FOUNDER_SEED, Desk
from tests.node.state_transfer.test_state_streams import sealed_state

JOINER = b"j" * 32
JOINER_ID = Ed25519Signer(JOINER).peer_id
PARTS_S = 8.0
"""What the parts take alone, on the line that is chosen for it."""


class SharedLine(SlowLine):
    """One line up, to a member and to a joiner."""

    accepts: dict[PeerId, Callable[[Stream], Coroutine[Any, Any, None]]]

    async def open_stream(self, peer: PeerId, protocol: str) -> SlowStream:
        assert protocol == BULK_PROTOCOL
        self._accept = self.accepts[peer]  # type: ignore[assignment]  # no method there either
        return SlowStream(self, peer)


@asynccontextmanager
async def scene():
    """Source, its streams on a line, the push of its parts, that of its state, who takes both."""
    source, member, header, items = good_transfer()
    certificate = sealed_state(source)  # type: ignore[arg-type]  # all it uses
    joiner = Desk(JOINER, MANIFEST)
    joiner.state_parts.gathered.expect_state(certificate)
    source.linked.add(JOINER_ID)
    size = sum(len(item.payload) for item in items)
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=FOUNDER_SEED) as near,
        network.open(signer_seed=b"t" * 32) as far,
        network.open(signer_seed=JOINER) as third,
        trio.open_nursery() as nursery,
    ):
        line = SharedLine(near, far, nursery, size / PARTS_S, member)
        line.accepts = {
            far.peer_id: member.streams(far).accept,
            JOINER_ID: joiner.streams(third).accept,
        }
        parts = ev.Push(far.peer_id, Bulk.PART, header.subject, CELLS)
        state = ev.Push(JOINER_ID, Bulk.STATE, certificate.value.digest, tuple(range(8)))
        streams = source.streams(line)  # type: ignore[arg-type]  # a line
        # Virtual time does not wait for threads.
        streams._serving.wait_for_disk = source.compute  # type: ignore[method-assign]
        yield streams, parts, state, joiner
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pieces of the toy's cells as a real one has on a slow line."""
    monkeypatch.setattr(limits, "PIECE_BYTES_MIN", 2 * limits.PIECE_BYTES_LEAST)
    monkeypatch.setattr(bulk_queue, "WINDOW_BYTES_START", 4 * limits.PIECE_BYTES_LEAST)


async def test_state_of_a_joiner_slows_the_parts_of_a_round_by_a_tenth_at_most(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene() as (streams, parts, state, joiner), trio.open_nursery() as nursery:
        nursery.start_soon(streams.push, state)
        await trio.sleep(10.0)
        began_s = trio.current_time()
        await streams.push(parts)
        took_s = trio.current_time() - began_s
        # What was on the line already cannot be overtaken: the sender lets so much wait there.
        assert took_s < PARTS_S * (1 + 1 / YIELD_TIMES) + 1.5 * bulk_queue.QUEUED_S
        arrived = sum(isinstance(event, ev.CellsFetched) for event in joiner.told)
        assert 0 < arrived < 8, "it was under way all the time"
        nursery.cancel_scope.cancel()


async def test_state_goes_on_beside_parts_that_never_end_and_has_the_line_when_they_do(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with scene() as (streams, _, state, joiner), trio.open_nursery() as nursery:
        streams._serving.num_of_round += 1
        nursery.start_soon(streams.push, state)
        await trio.sleep(200.0)
        slow = sum(isinstance(event, ev.CellsFetched) for event in joiner.told)
        assert 2 <= slow <= 7, "a tenth of a line that nobody else uses"
        streams._serving.num_of_round -= 1
        await trio.sleep(PARTS_S * 4)
        assert sum(isinstance(event, ev.CellsFetched) for event in joiner.told) == 8
        nursery.cancel_scope.cancel()
