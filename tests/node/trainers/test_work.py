"""What the trainer hears of its contributions, however late it is (R6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node import events as ev
from node.hooks import NodeHooks
from node.status.board import EventLog
from node.trainers.trainer_channel import TrainerConfig
from node.trainers.work import TrainerWork, WorkParts
from protocol.errors import TrainerError
from tests.node.edge import FOUNDER_SEED, NUMEL, Desk, toy_manifest
from training.exchange import Contribution, Outcome
from training.frames import Start

LEASE = ((0, 8),)
ANCHOR_N = np.zeros(NUMEL, dtype=np.float32)
LATE = Contribution(
    fragment=0,
    payloads=(),
    tokens=1,
    samples=1,
    steps=1,
    residual_before=bytes(32),
    residual_after=bytes(32),
    loss=0.0,
)
"""Of a round that is not under way: the work takes note of it, and stores nothing."""


class Heard:
    """A trainer that keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.outcomes: list[Outcome] = []

    async def start(self, start: Start, *, anchors) -> None:
        self.starts.append(start)

    async def deliver(self, outcome: Outcome, *, validate: bool = False) -> None:
        self.outcomes.append(outcome)


class Scene:
    """A work whose core wants what a test says."""

    def __init__(self, folder) -> None:
        manifest = toy_manifest()
        self.desk = Desk(FOUNDER_SEED, manifest)
        self.trainer = Heard()
        parts = WorkParts(
            core=self.desk.core,
            store=self.desk.store,
            hooks=NodeHooks(),
            log=EventLog(None, 0.0),
            tell=self.desk.tell,
            validate_every=0,
            is_observer=False,
        )
        config = TrainerConfig(
            folder=folder, manifest=manifest, manifest_path=folder, inner_folder=folder
        )
        self.work = TrainerWork(parts, config)

    def wants(self, sealed: int, *, lease=LEASE, listed=False, resync=False) -> None:
        genesis = self.desk.core.machine.certificate
        head = replace(genesis, value=replace(genesis.value, round=sealed))
        self.work.train(ev.Train(head, lease, listed, resync), ANCHOR_N)

    async def contributes(self) -> None:
        await self.work._contribute(LATE)
        await wait_all_tasks_blocked()


@asynccontextmanager
async def working(folder) -> AsyncIterator[Scene]:
    scene = Scene(folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.work._feed, scene.trainer)
        yield scene
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def begun(folder, sealed: int) -> AsyncIterator[Scene]:
    async with working(folder) as scene:
        scene.wants(sealed)
        await wait_all_tasks_blocked()
        assert [start.clock.round for start in scene.trainer.starts] == [sealed + 1]
        yield scene


@pytest.mark.parametrize("listed", [False, True])
async def test_rounds_that_passed_without_the_trainer_do_not_hide_what_became_of_its_own(
    tmp_path, listed
):
    async with begun(tmp_path, 4) as scene:
        scene.wants(5, listed=listed)
        scene.wants(6)
        await scene.contributes()
        (outcome,) = scene.trainer.outcomes
        assert (outcome.listed, outcome.is_resync, outcome.clock.round) == (listed, False, 7)


async def test_listed_contribution_is_not_told_of_the_next_one(tmp_path):
    async with begun(tmp_path, 4) as scene:
        scene.wants(5, listed=True)
        await scene.contributes()
        scene.wants(6)
        await scene.contributes()
        assert [outcome.listed for outcome in scene.trainer.outcomes] == [True, False]


@pytest.mark.parametrize("sealed", [5, 9])
async def test_resync_is_told_even_if_it_is_by_one_round(tmp_path, sealed):
    async with begun(tmp_path, 4) as scene:
        scene.wants(sealed, resync=True)
        await scene.contributes()
        (outcome,) = scene.trainer.outcomes
        assert (outcome.is_resync, outcome.clock.round) == (True, sealed + 1)


async def test_resync_is_told_even_if_a_round_was_adopted_behind_it(tmp_path):
    async with begun(tmp_path, 4) as scene:
        scene.wants(8, resync=True)
        scene.wants(9)
        await scene.contributes()
        assert scene.trainer.outcomes[0].is_resync
        scene.wants(10, listed=True)
        await scene.contributes()
        outcome = scene.trainer.outcomes[1]
        assert (outcome.listed, outcome.is_resync) == (True, False)


async def test_trainer_that_takes_long_to_start_hears_of_the_rounds_meanwhile(tmp_path):
    async with working(tmp_path) as scene:
        scene.wants(3, lease=(), listed=True)
        scene.wants(4, lease=())
        scene.wants(5)
        await wait_all_tasks_blocked()
        (start,) = scene.trainer.starts
        assert (start.clock.round, start.since, start.listed) == (6, 3, (3,))


@pytest.mark.parametrize(
    ("samples", "tokens", "wrong"),
    [(10**6, 10**6, "1000000 samples of a lease of"), (2, 3, "3 tokens for 2 samples of 1")],
)
async def test_trainer_that_counts_wrongly_ends_the_node_before_a_peer_hears_of_it(
    tmp_path, samples, tokens, wrong
):
    async with begun(tmp_path, 4) as scene:
        with pytest.raises(TrainerError, match=wrong):
            await scene.work._contribute(replace(LATE, samples=samples, tokens=tokens))
