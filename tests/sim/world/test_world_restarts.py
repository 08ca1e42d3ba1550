"""R12: nodes are killed at any moment and come back from what their disks have."""

import random
from functools import partial

import pytest

from protocol import events as ev
from protocol.identity import PeerId
from sim.world.world import SimNode, World
from tests.sim.world.test_world_faults import PHASES, VICTIM_ROUND, strike
from tests.sim.worlds import WatchedWorld, world_of


def kill_now_and_then(
    world: WatchedWorld, rng: random.Random, *, share: float, until_round: int
) -> list[PeerId]:
    """Kill whoever acts, with that chance, in the middle of what it does; it is back soon."""
    killed: list[PeerId] = []

    def trigger(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        del action
        is_over = node.core.machine.head.round >= until_round
        if node.is_alive and not is_over and rng.random() < share:
            killed.append(node.peer)
            world.crash(node.peer)
            world.later(rng.choice((0.0, 0.3, 3.0)), lambda: world.bounce(node.peer))

    world.triggers.append(trigger)
    return killed


def finish(world: WatchedWorld) -> None:
    """All nodes come to the end of the run, those too that are down at the moment."""
    last = world.manifest.rounds
    world.run(
        lambda: all(n.core.machine.head.round >= last for n in world.nodes.values()), max_s=3000.0
    )
    world.finish()


@pytest.mark.quick(1)
@pytest.mark.parametrize("back_s", [0.0, 8.0])
@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_node_killed_in_any_phase_comes_back_and_takes_part(phase, back_s, seed):
    # Time enough to be dropped, to catch up and to be seated again.
    world = world_of(3, seed=seed, rounds=14 if back_s == 0.0 else 30)

    def blow(peer: PeerId) -> None:
        world.crash(peer)
        world.later(back_s, lambda: world.bounce(peer))

    struck = strike(world, phase, blow)
    finish(world)
    (victim,) = struck
    assert victim in world.listed[world.manifest.rounds]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["parts sent", "HAVE sent", "VOTE sent", "AGG sent", "SEAL sent"])
def test_node_that_trains_alone_is_killed_in_any_phase_and_its_round_counts(name, seed):
    phase = PHASES[name]
    world = world_of(1, seed=seed, rounds=VICTIM_ROUND + 2)
    struck = strike(world, phase, world.bounce)
    finish(world)
    (victim,) = struck
    assert world.listed[VICTIM_ROUND] == (victim,)


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4])
def test_kills_at_any_moment_make_no_node_contradict_itself_or_the_others(num_nodes, seed):
    world = world_of(num_nodes, seed=seed, rounds=16)
    killed = kill_now_and_then(
        world, random.Random(f"{seed}/kills"), share=0.04 / num_nodes, until_round=14
    )
    finish(world)
    assert len(killed) >= 3


@pytest.mark.extended
def test_trainer_that_is_killed_behind_a_branch_that_was_left_takes_over_nothing_of_it():
    # At this seed it contributed on the branch, too late for the seal that ended it (R4, R6).
    world = world_of(4, seed=29, rounds=16)
    kill_now_and_then(world, random.Random("29/kills"), share=0.01, until_round=14)
    finish(world)


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_nodes_killed_all_together_go_on_together(num_nodes, seed):
    world = world_of(num_nodes, seed=seed, rounds=14)
    rng = random.Random(f"{seed}/kills")

    def kill_all() -> None:
        for peer in sorted(world.nodes):
            world.crash(peer)
        for peer in sorted(world.nodes):
            world.later(rng.uniform(0.1, 2.0), partial(world.bounce, peer))

    for _ in range(6):
        world.later(rng.uniform(5.0, 40.0), kill_all)
    finish(world)


@pytest.mark.extended
@pytest.mark.parametrize("back_s", [0.0, 5.0])
@pytest.mark.parametrize("name", ["COMMIT sent", "VOTE sent", "SEAL sent"])
def test_node_whose_disk_is_lost_asks_keeps_silent_and_takes_part_again(name, back_s, seed):
    world = world_of(3, seed=seed, rounds=30)

    def blow(peer: PeerId) -> None:
        world.crash(peer)
        world.lose_disk(peer)
        world.later(back_s, partial(world.bounce, peer))

    struck = strike(world, PHASES[name], blow)
    finish(world)
    (victim,) = struck
    assert victim in world.listed[world.manifest.rounds]
    assert not world.nodes[victim].core.machine.has_forgotten


@pytest.mark.slow
@pytest.mark.parametrize("case", range(100))
def test_kills_at_any_moment_in_many_worlds(case, seed):
    rng = random.Random(f"{seed}/{case}")
    world = world_of(rng.choice((1, 2, 2, 3, 4)), seed=f"{seed}/{case}", rounds=16)
    kill_now_and_then(world, rng, share=rng.choice((0.001, 0.01, 0.03)), until_round=14)
    finish(world)
