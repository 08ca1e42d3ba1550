"""What a trainer hears with two rounds in flight (R5), in whatever order things happen."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol import events as ev
from protocol.manifest import RunManifest
from sim.world.toy_run import toy_run
from tests.node.builders import peers_named, roster_of
from tests.node.edge import toy_manifest
from tests.node.trainers.test_work import LEASE, Heard, Scene
from training.channel.exchange import Outcome, Turn

CELLS = (2, 1, 3)


def in_flight() -> RunManifest:
    manifest = toy_manifest()
    manifest = toy_run(manifest.founder, rounds=100, cells=CELLS, timing=manifest.timing)
    return replace(manifest, outer=replace(manifest.outer, overlap=2))


@dataclass
class Strict(Heard):
    """A trainer that breaks where the channel would."""

    told: list[tuple[str, int]] = field(default_factory=list)
    round: int = -1
    handed: list[int] = field(default_factory=list)
    is_free: bool = False
    anchors: list[float] = field(default_factory=list)
    may_go_back: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    async def start(self, start, *, anchors) -> None:
        self.round, self.is_free = start.clock.round, False
        self.anchors = [float(anchor_N[0]) for anchor_N in anchors]
        await super().start(start, anchors=anchors)

    async def deliver(self, outcome: Outcome, *, validate: bool = False) -> None:
        index = self.handed.pop(0)
        assert index not in outcome.others
        self._take({index % len(CELLS): outcome.anchor_N, **outcome.others})
        self.told.append(("outcome", index))
        await super().deliver(outcome, validate=validate)

    async def proceed(self, turn: Turn) -> None:
        assert self.is_free, "told to go on in the midst of a round"
        assert self.may_go_back or turn.clock.round > self.round, "a round that it worked for"
        self._take(dict(turn.others))
        assert all(index > turn.clock.round - 2 for index in self.handed), "an outcome is owed"
        self.round, self.is_free = turn.clock.round, False
        self.told.append(("turn", self.round))

    def _take(self, anchors) -> None:
        for fragment, anchor_N in anchors.items():
            self.anchors[fragment] = float(anchor_N[0])


class FlyingScene(Scene):
    """The anchor of a fragment is the number of the last sealed round about it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, in_flight())
        self.trainer: Strict = Strict()
        self.sealed = 0
        self.seated = 1

    def wants(
        self, sealed: int, *, lease=LEASE, listed=False, resync=False, ahead=1, branch=0
    ) -> None:
        """The seal of that round is here; `ahead` is 2 where the next one has its contribution.
        Rounds of another `branch` have other names."""
        self.sealed = sealed
        genesis = self.desk.core.machine.certificate
        roster = roster_of(peers_named(self.seated))
        head = replace(genesis, value=replace(genesis.value, round=sealed, roster=roster))
        layout = self.desk.store.layout
        anchor_N = np.zeros(layout.numel, dtype=np.float32)
        for index in range(max(0, sealed - len(CELLS) + 1), sealed + 1):
            anchor_N[layout.fragment_span(layout.fragment_of(index))] = index
        index = sealed + ahead
        bases = tuple((1000 * branch + sealed + each).to_bytes(32) for each in (1, 2))
        train = ev.Train(head, lease, listed, resync, index, bases[ahead - 1], bases)
        self.work.train(train, anchor_N)

    async def hands_over(self) -> None:
        index = self.trainer.round
        self.trainer.handed.append(index)
        self.trainer.is_free = True
        await self.contributes(fragment=index % len(CELLS))


@asynccontextmanager
async def flying(folder: Path, *, seated: int = 1) -> AsyncIterator[FlyingScene]:
    scene = FlyingScene(folder)
    scene.seated = seated
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.work._feed, scene.trainer)
        scene.wants(4)
        await wait_all_tasks_blocked()
        assert [start.clock.round for start in scene.trainer.starts] == [5]
        yield scene
        nursery.cancel_scope.cancel()


async def test_trainer_goes_on_before_the_seal_and_hears_of_it_in_the_midst_of_a_round(tmp_path):
    async with flying(tmp_path) as scene:
        await scene.hands_over()
        assert scene.trainer.told == []
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        assert scene.trainer.told == [("turn", 6)]
        scene.wants(5, listed=True)
        await wait_all_tasks_blocked()
        assert scene.trainer.told[1:] == [("outcome", 5)]
        assert scene.trainer.outcomes[0].listed
        await scene.hands_over()
        scene.wants(5, ahead=2)
        await wait_all_tasks_blocked()
        assert scene.trainer.told[2:] == [("turn", 7)]


async def test_branch_that_is_left_voids_what_is_in_flight_and_the_trainer_goes_back(tmp_path):
    """Rounds 5 to 7 were of a branch (R4); round 6 is wanted again, behind another seal of 5."""
    async with flying(tmp_path) as scene:
        scene.trainer.may_go_back = True
        await scene.hands_over()
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        await scene.hands_over()
        scene.wants(5, listed=True, ahead=2)
        await wait_all_tasks_blocked()
        assert scene.trainer.told == [("turn", 6), ("outcome", 5), ("turn", 7)]
        scene.wants(6, listed=True, ahead=2)
        scene.work.fell_back()
        await scene.hands_over()
        await wait_all_tasks_blocked()
        assert scene.trainer.told[3:] == [], "something of the branch that was left"
        scene.wants(5, resync=True, branch=1)
        await wait_all_tasks_blocked()
        assert scene.trainer.told[3:] == [("outcome", 6), ("outcome", 7), ("turn", 6)]
        assert scene.trainer.outcomes[-1].is_resync
        assert scene.trainer.anchors == [3.0, 4.0, 5.0]


async def test_turn_waits_for_the_seal_that_names_it(tmp_path):
    async with flying(tmp_path) as scene:
        await scene.hands_over()
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        await scene.hands_over()
        assert scene.trainer.told == [("turn", 6)]
        scene.wants(5, ahead=2)
        await wait_all_tasks_blocked()
        assert scene.trainer.told[1:] == [("outcome", 5), ("turn", 7)]


async def test_trainer_hears_how_many_have_a_seat_in_its_round(tmp_path, monkeypatch):
    async with flying(tmp_path, seated=3) as scene:
        assert [start.members for start in scene.trainer.starts] == [3]
        turns: list[Turn] = []

        async def heard(turn: Turn) -> None:
            turns.append(turn)

        monkeypatch.setattr(scene.trainer, "proceed", heard)
        await scene.hands_over()
        scene.seated = 5
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        assert [turn.members for turn in turns] == [5]


async def test_trainer_that_begins_hears_what_names_the_rounds_that_are_over(tmp_path):
    """R4: what it kept of a round of another name is of a branch that was left."""
    scene = FlyingScene(tmp_path)
    for sealed in (4, 5):
        scene.wants(sealed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.work._feed, scene.trainer)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (start,) = scene.trainer.starts
    genesis = scene.desk.core.machine.certificate.value
    named = [int.from_bytes(basis) for basis in start.bases if basis != genesis.basis]
    assert (start.bases.count(genesis.basis), named) == (2, [6, 7])


async def test_clock_of_a_round_counts_what_is_in_flight_as_whole(tmp_path, monkeypatch):
    async with flying(tmp_path) as scene:
        turns: list[Turn] = []
        proceed = scene.trainer.proceed

        async def heard(turn: Turn) -> None:
            turns.append(turn)
            await proceed(turn)

        monkeypatch.setattr(scene.trainer, "proceed", heard)
        await scene.hands_over()
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        steps = scene.trainer.starts[0].clock.step
        inner_steps = in_flight().inner.inner_steps
        assert (turns[0].clock.round, turns[0].clock.step) == (6, steps + inner_steps)


async def test_resync_in_the_midst_of_a_round_is_told_of_the_round_that_it_left_behind(tmp_path):
    async with flying(tmp_path) as scene:
        await scene.hands_over()
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        scene.wants(5, resync=True)
        await wait_all_tasks_blocked()
        (outcome,) = scene.trainer.outcomes
        assert outcome.is_resync
        assert sorted(outcome.others) == [0, 1]
        await scene.hands_over()
        # What the resync wanted is the round that was handed in: it stays in flight.
        assert scene.trainer.told == [("turn", 6), ("outcome", 5)]
        scene.wants(6, listed=True)
        await wait_all_tasks_blocked()
        assert (scene.trainer.outcomes[1].is_resync, scene.trainer.outcomes[1].listed) == (
            False,
            True,
        )


async def test_end_of_the_run_is_told_behind_all_outcomes(tmp_path, monkeypatch):
    async with flying(tmp_path) as scene:
        await scene.hands_over()
        scene.wants(4, ahead=2)
        await wait_all_tasks_blocked()
        await scene.hands_over()
        core = scene.desk.core
        monkeypatch.setattr(type(core), "is_finished", property(lambda core: True))
        scene.wants(6, lease=())
        await wait_all_tasks_blocked()
        assert scene.trainer.told == [("turn", 6), ("outcome", 5), ("outcome", 6), ("turn", 7)]


@pytest.mark.parametrize("number", range(8))
async def test_in_whatever_order_things_happen_the_trainer_has_each_anchor_once_it_goes_on(
    tmp_path, seed, number
):
    """Seals come in bursts, trainers sleep, seats are lost, states are fetched: never a turn
    without the anchors that it stands on, never an outcome twice or out of turn."""
    luck = random.Random(f"{seed}/{number}")
    async with flying(tmp_path) as scene:
        trainer, handed = scene.trainer, 0
        for _ in range(60):
            if luck.random() < 0.5 and not trainer.is_free:
                await scene.hands_over()
                handed += 1
            else:
                sealed = scene.sealed + luck.choice((0, 1, 1, 1, 2, 4))
                is_next = trainer.handed and trainer.handed[-1] == sealed + 1
                scene.wants(
                    sealed,
                    lease=LEASE if luck.random() < 0.8 else (),
                    listed=luck.random() < 0.7,
                    resync=luck.random() < 0.1,
                    ahead=2 if is_next else 1,
                )
            await wait_all_tasks_blocked()
            assert all(index > scene.sealed for index in trainer.handed)
            if not trainer.is_free:
                # The version that its contribution will be relative to.
                assert trainer.anchors[trainer.round % len(CELLS)] >= trainer.round - len(CELLS)
        outcomes = [index for kind, index in trainer.told if kind == "outcome"]
        assert outcomes == sorted(set(outcomes))
        assert len(outcomes) + len(trainer.handed) == handed
        assert trainer.told
