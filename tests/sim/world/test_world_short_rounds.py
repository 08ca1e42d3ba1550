"""R11 where a round takes less than the way to the founder: COMMITs are held for joiners."""

from dataclasses import replace

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Synced
from sim.world.links import Link
from sim.world.nodes import Device
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(4)
FOUNDER, JOINER = PEERS[0], PEERS[3]
FAST = Device(train_s=(0.04, 0.06), compute_s=(0.001, 0.003))
"""A model of one layer, on a machine that does nothing else."""

JOINS_AT = 60


class Swarm:
    """Members who seal ten rounds and more in a second, and one who joins them."""

    def __init__(self, seed: int, *, members: int, latency_s: float, rate: float = 0.0) -> None:
        manifest = toy_manifest(FOUNDER, rounds=100_000, cells=8)
        settings = WorldSettings(linger_s=1e9, state_bytes_per_s=rate)
        link = Link(latency_s=(0.8 * latency_s, 1.2 * latency_s))
        self.world = World(manifest, seed=seed, link=link, device=FAST, settings=settings)
        config = replace(round_config(manifest), wait_seats=members - 1)
        self.founder = self.world.join(FOUNDER, config=config)
        for peer in PEERS[1:members]:
            self.world.join(peer)
        self.world.run(lambda: self.founder.round >= JOINS_AT, 120.0)
        self.synced: list[int] = []
        self.world.tracers.append(self._saw)

    def _saw(self, record: object) -> None:
        if isinstance(record, Synced) and record.peer == JOINER:
            self.synced.append(record.certificate.value.round)

    @property
    def is_seated(self) -> bool:
        return JOINER in self.founder.core.machine.head.roster.members

    def rate(self, seconds: float) -> float:
        """Rounds that the founder seals per second, in so many."""
        first, until_s = self.founder.round, self.world.now_s + seconds
        self.world.run(lambda: self.world.now_s >= until_s, 2 * seconds)
        return (self.founder.round - first) / seconds


@pytest.mark.quick(1)
@pytest.mark.parametrize("latency_s", [0.01, 0.05, 0.1])
def test_joiner_is_seated_by_a_founder_whose_rounds_are_shorter_than_its_way(seed, latency_s):
    swarm = Swarm(seed, members=1, latency_s=latency_s)
    assert swarm.rate(2.0) > 10.0
    swarm.world.join(JOINER)
    # It waits for three seconds until it believes the one peer that there is to tell the history,
    # and what that peer tells is a hundred rounds old by the time it is there.
    swarm.world.run(lambda: swarm.is_seated, 12.0)
    first = swarm.founder.round
    swarm.world.run(lambda: swarm.world.nodes[JOINER].round >= first + 5, 20.0)
    assert swarm.world.faults == []


@pytest.mark.extended
def test_joiner_whose_state_takes_a_hundred_such_rounds_fetches_it_once(seed):
    swarm = Swarm(seed, members=1, latency_s=0.02, rate=4000.0)
    swarm.world.join(JOINER)
    began_s = swarm.world.now_s
    swarm.world.run(lambda: swarm.is_seated, 20.0)
    assert swarm.world.now_s - began_s > 6.0, "it took so long"
    assert swarm.synced[0] <= JOINS_AT + 4
    assert swarm.synced[-1] - swarm.synced[0] <= 24, "and few rounds were sealed meanwhile"


@pytest.mark.extended
def test_member_that_holds_its_commit_is_listed_by_the_others(seed):
    swarm = Swarm(seed, members=3, latency_s=0.02)
    swarm.world.join(JOINER)
    swarm.world.run(lambda: swarm.is_seated, 5.0)
    seats = swarm.founder.core.machine.head.roster.seats
    assert {record.peer for record in seats} == set(PEERS)
    assert all(record.absent == 0 for record in seats)
