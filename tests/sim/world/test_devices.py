"""Machines of a world: clocks of their own, naps, speed."""

from dataclasses import replace

import pytest

from protocol.manifest import StopSpec
from sim.world.nodes import Clock, Device
from sim.world.toy_run import CREATED_UNIX_S
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest
from tests.sim.worlds import WatchedWorld, world_of

A, B, C = peers_named(3)


def test_clock_shows_its_own_time_and_knows_when_the_world_will_see_it():
    clock = Clock(500.0, 1.25)
    assert clock.own_s(8.0) == 510.0
    assert clock.world_s(clock.own_s(3.7)) == pytest.approx(3.7)


@pytest.mark.parametrize(
    "wrong", [{"train_s": (2.0, 1.0)}, {"clock_rate": 0.0}, {"nap": 2.0}, {"nap_s": (-1.0, 1.0)}]
)
def test_device_of_impossible_numbers_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Device(**wrong)


def test_core_sees_only_its_own_clock(seed):
    world = world_of(2, seed=seed, rounds=4)
    fast = world.nodes[A]
    world.finish()
    seen_s = fast.core.machine.view.times.started_s
    assert seen_s > 1000.0, "a machine's clock does not begin with the world"
    assert fast.clock.world_s(seen_s) <= world.now_s


@pytest.mark.quick(1)
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_swarm_agrees_although_a_clock_runs_at_another_rate(rate, seed):
    world = world_of(3, seed=seed, rounds=10, devices={B: Device(clock_rate=rate)})
    world.finish()
    assert all(B in world.listed[index] for index in range(3, 11))


def test_slow_trainer_is_waited_for_and_a_much_slower_one_is_not(seed):
    slow, hopeless = Device(train_s=(1.6, 1.6)), Device(train_s=(60.0, 60.0))
    world = world_of(3, seed=seed, rounds=8, devices={B: slow, C: hopeless})
    world.until_round_of_most(8)
    assert B in world.listed[8]
    assert not any(C in listed for listed in world.listed.values())


def test_napping_machines_are_not_waited_for_and_come_back(seed):
    sleepy = Device(nap=0.5, nap_s=(2.0, 4.0))
    world = world_of(4, seed=seed, rounds=16, devices={B: sleepy})
    naps = []
    world.triggers.append(
        lambda world, node, action: naps.append(world.now_s) if world.nodes[B].is_frozen else None
    )
    world.run(
        lambda: all(node.round == 16 for node in world.nodes.values()),
        max_s=1000.0,
    )
    world.finish()
    assert naps
    assert any(B in world.listed[index] for index in range(4, 17))


@pytest.mark.quick(1)
@pytest.mark.parametrize("behind_s", [0.0, 3600.0])
def test_run_ends_by_the_date_that_most_wall_clocks_show(behind_s, seed):
    manifest = replace(toy_manifest(A, rounds=500), stop=StopSpec(unix_s=CREATED_UNIX_S + 20))
    world = WatchedWorld(manifest, seed=seed, settings=WorldSettings())
    for peer in (A, B, C):
        # The clock of one is an hour behind: two are most.
        world.join(peer, device=Device(wall_offset_s=-behind_s if peer == C else 0.0))
    ends_run = lambda: all(node.is_over for node in world.nodes.values())  # noqa: E731
    world.run(ends_run, max_s=200.0)
    last = world.nodes[A].core.machine.head
    assert last.clock.ends_run
    assert 5 < last.round < 60
    assert world.now_s > 20.0


def test_faster_machine_makes_the_same_rounds_in_less_time(seed):
    ends = []
    for train_s in (0.5, 2.0):
        manifest = toy_manifest(A, rounds=6)
        world = World(manifest, seed=seed, device=Device(train_s=(train_s, train_s)))
        world.join(A)
        ends.append(_end_s(world))
    assert 6 * 0.5 < ends[0] < 6 * 2.0 < ends[1]


def _end_s(world: World) -> float:
    world.run(lambda: world.nodes[A].round == 6, max_s=60.0)
    return world.now_s
