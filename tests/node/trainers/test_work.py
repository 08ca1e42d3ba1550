"""What the trainer hears of its contributions, however late it is (R6)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.plane.hooks import NodeHooks
from node.status.board import EventLog
from node.trainers.choosing import FIRST_STEPS, SHARE
from node.trainers.trainer import TrainerConfig
from node.trainers.work import TrainerWork, WorkParts
from protocol import events as ev
from protocol.errors import TrainerError
from protocol.leases import lease_size
from protocol.manifest import RunManifest
from sim.world.toy_run import toy_run
from tests.node.edge import FOUNDER_SEED, Desk, toy_manifest
from training.channel.exchange import Contribution, Outcome
from training.channel.frames import Start

LEASE = ((0, 8),)
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


def in_fragments() -> RunManifest:
    """Three fragments of two cells."""
    manifest = toy_manifest()
    return toy_run(manifest.founder, rounds=20, cells=(2, 2, 2), timing=manifest.timing)


class Heard:
    """A trainer that keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.outcomes: list[Outcome] = []
        self.grades: list[tuple[int, int]] = []
        """How many outcomes it had before it was told, and what."""

    async def start(self, start: Start, *, anchors) -> None:
        self.starts.append(start)

    async def deliver(self, outcome: Outcome, *, validate: bool = False) -> None:
        self.outcomes.append(outcome)

    async def encode_in(self, bits: int) -> None:
        self.grades.append((len(self.outcomes), bits))


class Scene:
    """A work whose core wants what a test says."""

    def __init__(
        self, folder, manifest: RunManifest | None = None, met: trio.Event | None = None
    ) -> None:
        manifest = manifest or toy_manifest()
        self.mbit: float | None = None
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
            uplink_mbit=lambda: self.mbit,
            met=met,
        )
        config = TrainerConfig(
            folder=folder, manifest=manifest, manifest_path=folder, inner_folder=folder
        )
        self.work = TrainerWork(parts, config)

    def wants(self, sealed: int, *, lease=LEASE, listed=False, resync=False) -> None:
        genesis = self.desk.core.machine.certificate
        head = replace(genesis, value=replace(genesis.value, round=sealed))
        anchor_N = np.full(self.desk.store.layout.numel, sealed, dtype=np.float32)
        value = head.value
        bases = (value.digest,)
        train = ev.Train(head, lease, listed, resync, value.round + 1, value.digest, bases)
        self.work.train(train, anchor_N)

    async def contributes(self, fragment: int = 0) -> None:
        await self.work._contribute(replace(LATE, fragment=fragment))
        await wait_all_tasks_blocked()


@asynccontextmanager
async def working(
    folder, manifest: RunManifest | None = None, met: trio.Event | None = None
) -> AsyncIterator[Scene]:
    scene = Scene(folder, manifest, met)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.work._feed, scene.trainer)
        yield scene
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def begun(folder, sealed: int, manifest: RunManifest | None = None) -> AsyncIterator[Scene]:
    async with working(folder, manifest) as scene:
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


@pytest.mark.parametrize(
    ("sealed", "resync", "others"),
    [(5, False, []), (6, False, [0]), (8, False, [0, 1]), (5, True, [0, 1]), (9, True, [0, 1])],
)
async def test_outcome_brings_the_anchors_of_all_fragments_that_went_on(
    tmp_path, sealed, resync, others
):
    async with begun(tmp_path, 4, in_fragments()) as scene:
        scene.wants(sealed, resync=resync, listed=not resync)
        await scene.contributes(fragment=5 % 3)
        (outcome,) = scene.trainer.outcomes
        layout = scene.desk.store.layout
        assert outcome.anchor_N.tolist() == [sealed] * layout.fragment_numels[2]
        assert sorted(outcome.others) == others
        for other, anchor_N in outcome.others.items():
            assert anchor_N.tolist() == [sealed] * layout.fragment_numels[other]


async def test_trainer_hears_what_names_its_round_and_those_that_are_over(tmp_path):
    """R4: what it keeps of a round of another name is of a branch that was left."""
    async with begun(tmp_path, 4) as scene:
        (start,) = scene.trainer.starts
        genesis = scene.desk.core.machine.certificate.value
        assert start.bases == (genesis.basis, start.clock.basis)
        scene.wants(5)
        await scene.contributes()
        (outcome,) = scene.trainer.outcomes
        names = [start.clock.basis, outcome.clock.basis]
        assert names == [replace(genesis, round=sealed).digest for sealed in (4, 5)]


async def test_contribution_to_another_fragment_than_the_round_s_ends_the_node(tmp_path):
    async with begun(tmp_path, 4, in_fragments()) as scene:
        with pytest.raises(TrainerError, match="fragment 1"):
            await scene.work._contribute(replace(LATE, fragment=1))


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


async def test_paced_trainer_gets_as_much_of_its_lease_as_it_is_to_use(tmp_path, autojump_clock):
    plain = toy_manifest()
    inner = replace(plain.inner, inner_steps=64, batch=2)
    manifest = replace(plain, inner=inner, outer=replace(plain.outer, preset="auto"))
    lease = ((0, 100), (200, 228))  # Of whole rounds.
    async with working(tmp_path, manifest) as scene:
        scene.wants(4, lease=lease)
        await wait_all_tasks_blocked()
        assert scene.trainer.starts[0].lease == ((0, 2 * FIRST_STEPS),)
        for sealed in range(5, 75):
            # A step takes a second; a seal comes two seconds behind what was handed in.
            outcomes = scene.trainer.outcomes
            given = lease_size(outcomes[-1].lease if outcomes else scene.trainer.starts[0].lease)
            await trio.sleep(given / 2)
            handed = replace(LATE, steps=given // 2)
            scene.work._choosing.handed(sealed, handed, trio.current_time())
            await trio.sleep(2.0)
            scene.wants(sealed, lease=lease, listed=True)
            scene.work._is_open = True
            scene.work._changed.set()
            await wait_all_tasks_blocked()
        sizes = [lease_size(outcome.lease) for outcome in scene.trainer.outcomes]
        assert sizes[-1] == pytest.approx(2 * SHARE / (1.0 - SHARE) * 2.0, rel=0.25)
        assert scene.trainer.outcomes[-1].lease == ((0, 100), (200, 100 + sizes[-1]))


async def test_trainer_is_told_in_how_many_bits_to_encode_as_its_line_shows(tmp_path):
    plain = toy_manifest()
    manifest = replace(plain, outer=replace(plain.outer, codec="graded"))
    async with working(tmp_path, manifest) as scene:
        for sealed, mbit in enumerate((None, None, 300.0, 300.0, 20.0)):
            scene.mbit = mbit
            scene.wants(4 + sealed)
            await wait_all_tasks_blocked()
            await scene.contributes()
        scene.wants(9)
        await wait_all_tasks_blocked()
    # Before it hears of the round in which it is to do so, and not with each.
    assert len(scene.trainer.outcomes) == 5
    assert scene.trainer.grades == [(0, 2), (1, 8), (3, 2)]


async def test_trainer_of_a_codec_without_grades_hears_of_none(tmp_path):
    async with working(tmp_path) as scene:
        scene.mbit = 300.0
        scene.wants(0)
        await wait_all_tasks_blocked()
    assert scene.trainer.grades == []


async def test_newcomer_that_has_met_nobody_of_its_run_trains_nothing(tmp_path):
    met = trio.Event()
    async with working(tmp_path, met=met) as scene:
        scene.wants(0)
        await wait_all_tasks_blocked()
        assert scene.trainer.starts == []
        scene.wants(4)
        met.set()
        await wait_all_tasks_blocked()
        assert [start.clock.round for start in scene.trainer.starts] == [5]
