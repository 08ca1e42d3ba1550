"""The driver: what a peer, or a round that went on, must not do to the loop."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.daemon.driver import Driver, DriverParts
from node.holdings.checkpoints import Checkpoints
from node.holdings.journal import FileJournal
from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from node.reporting.narrator import FAULTS_SHOWN_MAX
from node.status.board import EventLog
from protocol import events as ev
from protocol.frames import StatusAsk
from protocol.identity import Ed25519Signer
from protocol.rounds.chain import genesis
from protocol.rounds.restart import Restart
from tests.memory_transport import MemoryNetwork, MemoryTransport
from tests.node.edge import NUMEL, Desk, toy_manifest

MANIFEST = toy_manifest()
SEED = b"n" * 32
LIAR, FRIEND = (Ed25519Signer(name * 32).peer_id for name in (b"l", b"g"))


async def no_evidence(evidence) -> None:
    """Keeps nothing."""
    del evidence


class NoLinks:
    """Nobody is there."""

    def send(self, peer, frame) -> None:
        pass

    def send_all(self, peers, frame) -> None:
        pass

    def linked(self):
        return ()

    def ban(self, banned) -> None:
        pass

    def strike(self, peer) -> None:
        pass


class NoWork:
    """Nobody trains."""

    train_loss = None

    def train(self, action, anchor_N) -> None:
        pass

    def adopted(self, anchor_N) -> None:
        pass

    def results_here(self) -> None:
        pass


@asynccontextmanager
async def working(folder: Path) -> AsyncIterator[tuple[Driver, trio.Nursery]]:
    """A driver that nobody runs yet, and a nursery that is cancelled at the end."""
    async with MemoryNetwork().open(signer_seed=SEED) as transport, trio.open_nursery() as nursery:
        driver = driver_of(transport, folder)
        yield driver, nursery
        journal = driver._parts.journal
        assert isinstance(journal, FileJournal)
        journal.close()
        nursery.cancel_scope.cancel()


def driver_of(transport: MemoryTransport, folder: Path) -> Driver:
    desk = Desk(SEED, MANIFEST)
    parts = DriverParts(
        core=desk.core,
        store=desk.store,
        transport=transport,
        log=EventLog(None, 0.0),
        journal=FileJournal(folder),
        restart=Restart(chain=tuple(desk.core.chain)),
        checkpoints=Checkpoints(folder, MANIFEST, 0),
        states=desk.state_parts,
        hooks=NodeHooks(),
    )
    driver = Driver(parts, compute_threads=1)
    driver.connect(NoLinks(), NoWork(), no_evidence)  # type: ignore[arg-type]  # all that is used of them
    return driver


async def test_frame_of_an_honest_peer_waits_behind_few_of_a_flooder(tmp_path: Path) -> None:
    async with working(tmp_path) as (driver, nursery):

        async def flood() -> None:
            while True:
                await driver.tell(ev.FrameArrived(LIAR, StatusAsk(nonce=1)))

        nursery.start_soon(flood)
        await wait_all_tasks_blocked()
        nursery.start_soon(driver.tell, ev.BytesArrived(FRIEND))
        await wait_all_tasks_blocked()
        before = 0
        while await driver._events.receive() != ev.BytesArrived(FRIEND):
            before += 1
    assert before < 100


async def test_state_that_the_core_gave_up_meanwhile_replaces_nothing(tmp_path: Path) -> None:
    other = ShardStore(MANIFEST, 0, np.ones(NUMEL, dtype=np.float32))
    root = other.state.root
    async with working(tmp_path) as (driver, nursery):
        before = driver.store.state.root
        certificate = driver.core.catchup.wanted = genesis(MANIFEST, 0, root)
        await driver.state_arrived(certificate, other.state)
        driver.core.catchup.abandon()
        nursery.start_soon(driver.run)
        await wait_all_tasks_blocked()
    assert driver.store.state.root == before != root


async def test_step_of_a_round_that_went_on_while_it_waited_is_not_taken(tmp_path: Path) -> None:
    async with working(tmp_path) as (driver, nursery):
        async with driver._limiter:
            apply = ev.Apply(b"l" * 32, is_empty=False)
            nursery.start_soon(driver._answer, apply, driver.core.machine.view)
            await wait_all_tasks_blocked()
            driver.core.machine.reset(driver.core.machine.certificate, now_s=1.0)
        await wait_all_tasks_blocked()
        # The results of that LIST are gone: taking the step would have ended the node.
        assert driver._events.statistics().current_buffer_used == 0


async def test_faults_beyond_a_few_are_counted_and_not_logged_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.abc.Clock
) -> None:
    caplog.set_level(logging.WARNING, "node.reporting.narrator")
    async with working(tmp_path) as (driver, _):
        for _ in range(1000):
            driver._fault(ev.Fault(LIAR, "lies"))
        assert len(caplog.records) == FAULTS_SHOWN_MAX
        await trio.sleep(60.0)
        driver._fault(ev.Fault(LIAR, "lies"))
        assert len(caplog.records) == FAULTS_SHOWN_MAX + 2
        assert "count=980" in caplog.text
