"""Worlds with a round of delay: two rounds in flight on one fragment (R5)."""

import random
from collections import defaultdict
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Record, Signed
from protocol.manifest import OuterSpec, Setting, ThenSpec
from protocol.messages import Commit, Kind, decode_body
from protocol.rounds.fates import Fates
from sim.checks.invariants import InvariantBroken
from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial
from sim.world.links import Link
from sim.world.nodes import Device
from sim.world.toy_run import toy_run
from sim.world.trainer import Flight, Learned, SimTrainer
from tests.node.builders import peers_named, toy_manifest
from tests.sim.applied import Applied
from tests.sim.world.test_trainer import LEASE, train
from tests.sim.worlds import WatchedWorld

ROUNDS, PEERS = 10, 4


def world_of(
    seed: int,
    *,
    lag: int = 2,
    optimizer: str = "nesterov",
    train_s: tuple[float, float] = (0.8, 1),
    outer: OuterSpec | None = None,
) -> WatchedWorld:
    peers = peers_named(PEERS)
    manifest = toy_run(peers[0], rounds=ROUNDS, cells=(3,), timing=toy_manifest(peers[0]).timing)
    outer = outer or replace(manifest.outer, codec="int4", overlap=lag, optimizer=optimizer)
    if optimizer == "sgd":
        outer = replace(outer, momentum=0.0, learning_rate=1.0)
    manifest = replace(manifest, outer=outer)
    # Agreement takes about as long as training.
    world = WatchedWorld(
        manifest, seed=seed, link=Link(latency_s=(0.1, 0.2)), device=Device(train_s=train_s)
    )
    config = round_config(manifest)
    for number, peer in enumerate(peers):
        waiting = replace(config, wait_seats=PEERS - 1) if number == 0 else config
        world.join(peer, config=waiting)
    return world


@pytest.mark.extended
def test_a_round_is_trained_beside_the_exchange_of_the_one_before(seed):
    beside, alone = world_of(seed), world_of(seed, lag=1)
    beside.finish()
    alone.finish()
    assert beside.now_s < 0.8 * alone.now_s


def test_contribution_waits_for_the_round_before_and_counts_from_the_one_before_that(seed):
    """What is learned of begins at the version that seal r - 2 left, on every peer."""
    learned = {}

    def noted(trainer, *args):
        real = trainer._learner

        def learner(weights_N, lease, stream):
            learned[trainer._peer, trainer._round] = weights_N.tobytes()
            return real(weights_N, lease, stream)

        with patch.object(trainer, "_learner", learner):
            return contribute(trainer, *args)

    contribute = SimTrainer.contribute
    world = world_of(seed)
    anchors: dict[int, bytes] = {}
    sealed: dict[bytes, int] = defaultdict(int)
    waited: list[bool] = []

    def saw(record: Record) -> None:
        if isinstance(record, Adopted):
            value = record.certificate.value
            anchors[value.round] = world.nodes[record.peer].store.final.anchor_N.tobytes()
            sealed[record.peer] = value.round
        elif isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            index = record.message.slot.round
            # Who contributed to none before need not wait.
            if (record.peer, index - 1) in learned:
                waited.append(sealed[record.peer] == index - 1)

    world.tracers.append(saw)
    anchors[0] = next(iter(world.nodes.values())).store.final.anchor_N.tobytes()
    with patch.object(SimTrainer, "contribute", noted):
        world.finish()
    assert all(waited)
    assert len(waited) >= PEERS * (ROUNDS - 4)
    assert len(learned) >= PEERS * (ROUNDS - 3)
    for (_, index), begun in learned.items():
        assert begun == anchors[max(0, index - 2)], index
    assert len(set(anchors.values())) == ROUNDS + 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(10))
def test_what_was_applied_is_what_was_sealed_whatever_dies(seed):
    """The sum of the aggregates of all seals is the way from the first anchor to the last one."""
    world = world_of(seed, optimizer="sgd")
    applied = Applied(world)
    *_, other, last = peers_named(PEERS)
    world.until_round(3)
    world.crash(last)
    world.until_round(4)
    world.bounce(other)
    world.until_round(6)
    world.bounce(last)
    world.finish()
    applied.check(ROUNDS, PEERS)


def test_outer_step_changes_at_one_seal_on_every_node(seed):
    """I2 takes every step once more, and the anchors are equal: with the rule of the round."""
    later = ThenSpec(
        preset="one_step_delay", from_round=5, optimizer="sgd", learning_rate=0.3, momentum=0.0
    )
    world = world_of(seed, outer=replace(world_of(seed).manifest.outer, then=(later,)))
    slots: dict[int, set[bool]] = defaultdict(set)

    def saw(record: Record) -> None:
        if isinstance(record, Adopted):
            momentum_N = world.nodes[record.peer].store.final.slots["momentum"]
            slots[record.certificate.value.round].add(bool(momentum_N.any()))

    world.tracers.append(saw)
    world.finish()
    assert len(world.living()) == PEERS
    assert slots == {index: {index < later.from_round} for index in range(1, ROUNDS + 1)}


def test_cells_of_the_rank_that_they_need_are_summed_to_the_bit(seed):
    """DiLoCoX: contributions are of several sizes, and all invariants hold."""
    settings = (Setting("energy", 0.9), Setting("rank", 16))
    outer = world_of(seed).manifest.outer
    world = world_of(seed, outer=replace(outer, codec="lowrank", codec_settings=settings))
    sizes: set[int] = set()

    def saw(record: Record) -> None:
        if isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            body = decode_body(record.message)
            assert isinstance(body, Commit)
            parts = world.nodes[record.peer].store.parts(body.root, (0,))
            sizes.update(len(part.payload) for part in parts)

    world.tracers.append(saw)
    world.finish()
    assert len(sizes) > 1
    assert max(sizes) <= world.nodes[peers_named(1)[0]].store.part_bytes(0)


@pytest.mark.parametrize("moment", ["contributed", "joined"])
def test_restart_hands_over_the_same_bytes_and_goes_on_from_the_same_version(moment):
    """R6: also where the round before was sealed meanwhile: that version is not the newest."""
    manifest = world_of(0).manifest
    anchors = [np.full(manifest.layout(0).numel, 1.0 - 0.1 * n, np.float32) for n in range(5)]

    def learner(weights_N, lease, stream):
        return Learned(weights_N * np.float32(0.25), 0.0)

    def begun():
        trainer, fates = SimTrainer(manifest, learner), Fates()
        fates.hear(train(0))
        trainer.start(1, anchors[0], LEASE, fates, Flight(0))
        fates.taken_over(1, 0)
        first = trainer.contribute(random.Random(1))
        trainer.finish(2, anchors[0], LEASE, fates, Flight(0))
        fates.taken_over(2, 0)
        assert trainer.waits_for() == 1
        return trainer, fates, first

    trainer, fates, first = begun()
    fates.hear(train(1, listed=True))
    trainer.join(anchors[1], 1, fates)
    second = trainer.contribute(random.Random(1))
    assert second.residual_before == first.residual_after
    # It began from genesis, though the first round is sealed.
    other, others_fates, _ = begun()
    if moment == "joined":
        others_fates.hear(train(1, listed=True))
        other.join(anchors[1], 1, others_fates)
        other.contribute(random.Random(1))
    fresh, fates = other.restarted(), Fates()
    fates.hear(train(1, listed=True))
    is_under_way = fresh.start(2, anchors[1], LEASE, fates, Flight(1))
    assert is_under_way == (moment == "joined")
    assert fresh.contribute(random.Random(1)) == second


def test_who_is_late_begins_the_next_round_where_all_began_it():
    """Round 2 was sealed without it, and round 3 counts from the version that seal 1 left."""
    manifest = world_of(0).manifest
    anchors = [np.full(manifest.layout(0).numel, 1.0 - 0.1 * n, np.float32) for n in range(4)]
    begun = []

    def learner(weights_N, lease, stream):
        del lease, stream
        begun.append(float(weights_N[0]))
        return Learned(np.zeros_like(weights_N), 0.0)

    trainer, fates = SimTrainer(manifest, learner), Fates()
    fates.hear(train(0))
    trainer.start(1, anchors[0], LEASE, fates, Flight(0))
    for sealed in (1, 2, 3):
        if trainer.waits_for() is not None:
            trainer.join(anchors[sealed - 1], sealed - 1, fates)
        trainer.contribute(random.Random(1))
        fates.hear(train(sealed))
        trainer.finish(sealed + 1, anchors[sealed], LEASE, fates, Flight(sealed))
        fates.taken_over(sealed + 1, sealed)
    trainer.contribute(random.Random(1))
    assert begun == [float(anchors[index][0]) for index in (0, 0, 1, 2)]


def test_residual_that_does_not_wait_for_the_round_before_is_found(seed):
    """A trainer that takes every contribution for lost (R6)."""

    def hasty(trainer, anchor_N, sealed, fates):
        trainer.feedback[0].abort()
        trainer._pending, trainer._newest_N = (), anchor_N

    with patch.object(SimTrainer, "join", hasty), pytest.raises(InvariantBroken, match="I5"):
        world_of(seed).finish()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_round_of_delay_keeps_all_promises_whatever_goes_wrong(seed):
    scenario = overridden(read_scenario("one-step-delay"), peers=6)
    assert run_trial(scenario, seed).violation is None
