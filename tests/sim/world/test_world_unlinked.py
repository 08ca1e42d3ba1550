"""Members whom no path joins do not suspect each other while others hear them."""

from protocol.identity import PeerId
from protocol.manifest import TimingSpec
from sim.world.nodes import Device, SimNode, peer_named
from sim.world.toy_run import toy_run
from sim.world.world import World

TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.5)
SLOW = Device(train_s=(30.0, 31.0))
"""Longer than three suspicion times: between rounds nobody signs anything."""

PEERS = tuple(peer_named(name) for name in ("a", "b", "c", "d"))


def quiet_world(seed: int) -> tuple[World, dict[PeerId, set[PeerId]]]:
    """Four members in rounds of half a minute; and whom each has suspected since then."""
    world = World(toy_run(PEERS[0], rounds=50, cells=2, timing=TIMING), seed=seed, device=SLOW)
    for peer in PEERS:
        world.join(peer)

    def all_seated() -> bool:
        return all(len(node.core.machine.view.members) == 4 for node in world.nodes.values())

    world.run(all_seated, 300.0)
    assert all_seated()
    suspected: dict[PeerId, set[PeerId]] = {peer: set() for peer in PEERS}

    def look(node: SimNode) -> None:
        own_s = node.clock.own_s(world.now_s)
        suspected[node.peer] |= node.core.liveness.suspects(node.core.machine.view.members, own_s)

    world.looks.append(look)
    return world, suspected


def test_two_members_without_a_path_never_suspect_each_other_in_long_rounds(seed):
    world, suspected = quiet_world(seed)
    world.cut(PEERS[2], PEERS[3])
    end_s = world.now_s + 100.0
    world.run(lambda: world.now_s >= end_s, 200.0)
    assert suspected == {peer: set() for peer in PEERS}


def test_member_that_dies_is_suspected_by_whom_it_was_not_linked_to(seed):
    world, suspected = quiet_world(seed)
    world.cut(PEERS[2], PEERS[3])
    end_s = world.now_s + 10.0
    world.run(lambda: world.now_s >= end_s, 200.0)
    world.freeze(PEERS[3])
    end_s = world.now_s + 3.0 * TIMING.suspect_s
    world.run(lambda: world.now_s >= end_s, 200.0)
    assert suspected[PEERS[2]] == suspected[PEERS[0]] == {PEERS[3]}
