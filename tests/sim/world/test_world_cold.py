"""R12 of a whole swarm: all are killed at once, states are lost, and it goes on from the rest."""

import random
from dataclasses import replace
from functools import partial

import pytest

from node.holdings.states import round_config
from protocol import limits
from sim.trials.watching import Checks, watch
from sim.world.disk import CHECKPOINTS_FOLDER
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

OLD, YOUNG = limits.RESULT_ROUNDS_KEPT + 10, limits.RESULT_ROUNDS_KEPT - 8
"""At which round it goes dark: what was sealed since genesis can be stepped through again, or not.
"""


CHECKED = frozenset({"I2", "I3", "I5", "I6", "I7"})


def dark_world(seed: int, *, peers: int, at: int) -> tuple[World, Checks]:
    """A swarm that is to be killed somewhere in the round behind `at`; watched from its start."""
    names = peers_named(peers)
    manifest = toy_manifest(names[0], rounds=at + 12, cells=6)
    world = World(manifest, seed=seed, settings=WorldSettings(linger_s=1e9))
    checks = watch(world, CHECKED)
    waiting = replace(round_config(manifest), wait_seats=peers - 1)
    world.join(names[0], config=waiting)
    for peer in names[1:]:
        world.join(peer)
    world.run(lambda: 2 * sum(n.round >= at for n in world.nodes.values()) > peers, 400.0)
    end_s = world.now_s + random.Random(f"{seed}/dark").uniform(0.0, 1.6)
    world.later(end_s - world.now_s, lambda: None)
    world.run(lambda: world.now_s >= end_s, 10.0)
    return world, checks


def lose_checkpoints(world: World, peer, count: int) -> None:
    files = world.nodes[peer].disk._files
    names = [name for name in files.names(CHECKPOINTS_FOLDER) if name.startswith("round-")]
    for name in sorted(names, reverse=True)[:count]:
        files.unlink(CHECKPOINTS_FOLDER / name)


@pytest.mark.quick(1)
@pytest.mark.parametrize("at", [YOUNG, OLD])
@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("peers", [2, 3, 5])
def test_swarm_goes_on_from_the_state_of_a_single_node(peers, lost, at, seed):
    goes_on_from_one(seed, peers=peers, lost=lost, at=at)


def test_result_that_one_has_sealed_outlives_its_state():
    """Who sealed has no state but the result; a contribution to it is nowhere any more (R12)."""
    goes_on_from_one(288952501, peers=3, lost=3, at=OLD)


def goes_on_from_one(seed: int, *, peers: int, lost: int, at: int) -> None:
    world, checks = dark_world(seed, peers=peers, at=at)
    luck = random.Random(f"{seed}/lost")
    everybody = sorted(world.nodes)
    newest = max(node.round for node in world.nodes.values())
    keeper = luck.choice([p for p in everybody if world.nodes[p].round == newest])
    for peer in everybody:
        world.crash(peer)
        if peer != keeper:
            lose_checkpoints(world, peer, lost)
    for peer in everybody:
        world.later(luck.uniform(0.1, 2.0), partial(world.bounce, peer))
    world.run(lambda: all(n.round >= newest + 2 for n in world.nodes.values()), 60.0)
    checks.finish()
    # Nothing that was final is gone: the next round follows upon the last.
    for node in world.nodes.values():
        assert max(node.sealed) >= newest + 1


def test_swarm_without_a_state_steps_there_again_where_all_results_are_left(seed):
    world, checks = dark_world(seed, peers=3, at=YOUNG)
    newest = max(node.round for node in world.nodes.values())
    for peer in sorted(world.nodes):
        world.crash(peer)
        lose_checkpoints(world, peer, 3)
        world.bounce(peer)
    assert all(node.round >= newest - 1 for node in world.nodes.values())
    world.run(lambda: all(n.round >= newest + 2 for n in world.nodes.values()), 60.0)
    checks.finish()
