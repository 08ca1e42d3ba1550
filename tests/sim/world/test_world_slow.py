"""Slow lines: every part and result goes over them about once, and nobody is left out for it."""

from dataclasses import replace

import pytest

from node.holdings.states import round_config
from sim.world.links import Direction, Link
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(4)
LINE_BYTES_PER_S = 500e3 / 8
CELLS = 96
"""Of a contribution, 192 KiB: parts and results of a round take a line of 500 kbit/s five seconds.
"""

ROUNDS, FOUNDING = 12, 3
"""In the first rounds the founder alone is a quorum, and does not wait for who has not committed.
"""


@pytest.fixture
def carried(monkeypatch) -> list[int]:
    """The sizes of all transfers that were begun."""
    sizes: list[int] = []
    bulk_times = Direction.bulk_times

    def counted(direction, num_bytes, now_s):
        sizes.append(num_bytes)
        return bulk_times(direction, num_bytes, now_s)

    monkeypatch.setattr(Direction, "bulk_times", counted)
    return sizes


def slow_world(seed: int, *, floor_s: float) -> World:
    """Four whose lines each are shared by the ways to the three others."""
    manifest = toy_manifest(PEERS[0], rounds=ROUNDS, cells=CELLS)
    timing = replace(manifest.timing, deadline_floor_s=floor_s, deadline_cap_s=20.0, suspect_s=4.0)
    manifest = replace(manifest, timing=timing)
    link = Link(latency_s=(0.04, 0.05), bytes_per_s=LINE_BYTES_PER_S / 3)
    world = World(manifest, seed=seed, link=link, settings=WorldSettings(linger_s=60.0))
    config = replace(round_config(manifest), wait_seats=3)
    world.join(PEERS[0], config=config)
    for peer in PEERS[1:]:
        world.join(peer)
    return world


@pytest.mark.quick(1)
@pytest.mark.parametrize("floor_s", [1.0, 3.0])
def test_every_part_and_result_is_sent_about_once_and_all_are_listed(seed, carried, floor_s):
    world = slow_world(seed, floor_s=floor_s)
    nodes = world.nodes.values()
    world.run(lambda: all(node.round == FOUNDING for node in nodes), 100.0)
    carried.clear()
    world.run(lambda: all(node.round == ROUNDS for node in nodes), 300.0)
    store = world.nodes[PEERS[0]].store
    once = sum(store.part_bytes(cell) + store.result_bytes(cell) for cell in range(CELLS))
    needed = (ROUNDS - FOUNDING) * (len(PEERS) - 1) * once
    assert needed * 0.95 < sum(carried) < needed * 1.2
    chain = world.nodes[PEERS[0]].core.chain
    assert [len(link.value.commits) for link in chain[FOUNDING + 1 :]] == [4] * (ROUNDS - FOUNDING)
    assert world.faults == []
