"""R11 where rounds are short and a joiner's line is slow: nobody runs away with the run."""

from dataclasses import replace

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Adopted
from protocol.frames import WantChain
from protocol.rounds.giving import Giving
from sim.world.links import Link
from sim.world.nodes import Device
from sim.world.traffic import send_frame
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(5)
FOUNDER, JOINER = PEERS[0], PEERS[4]
ROUNDS, JOINS_AT, CELLS = 8, 2, 24
CAP_S = 60.0
FAST = Device(train_s=(0.4, 0.6), compute_s=(0.001, 0.003))
SLOW = 16_000.0
"""Bytes per second of a joiner's line: the result of a round takes it some six seconds."""


class Swarm:
    """Some members of a short run, and somebody who joins it over a slow line."""

    def __init__(self, seed: int, members: int) -> None:
        manifest = toy_manifest(FOUNDER, rounds=ROUNDS, cells=CELLS)
        manifest = replace(manifest, timing=replace(manifest.timing, deadline_cap_s=CAP_S))
        settings = WorldSettings(linger_s=15.0)
        link = Link(latency_s=(0.01, 0.03))
        self.world = World(manifest, seed=seed, link=link, device=FAST, settings=settings)
        config = replace(round_config(manifest), wait_seats=members - 1)
        self.founder = self.world.join(FOUNDER, config=config)
        for peer in PEERS[1:members]:
            self.world.join(peer)
        self.listed: list[int] = []
        self.world.tracers.append(self._saw)
        self.world.run(lambda: self.founder.round >= JOINS_AT, 100.0)
        for peer in PEERS[:members]:
            self.world.set_link(peer, JOINER, replace(link, bytes_per_s=SLOW / members))
        self.joins_s = self.world.now_s

    def _saw(self, record: object) -> None:
        if isinstance(record, Adopted) and record.peer == JOINER and record.was_listed:
            self.listed.append(record.certificate.value.round)

    def run_to_the_end(self) -> float:
        """Seconds from the joiner's start until the founder has ended."""
        self.world.run(lambda: not self.founder.is_alive, 400.0)
        return self.world.now_s - self.joins_s


@pytest.mark.quick(1)
@pytest.mark.parametrize("members", [1, 3])
def test_run_of_eight_rounds_ends_with_a_slow_joiner_listed(seed, members):
    swarm = Swarm(seed, members)
    joiner = swarm.world.join(JOINER)
    swarm.run_to_the_end()
    assert joiner.round == ROUNDS
    assert swarm.listed
    assert swarm.world.faults == []


def test_run_that_waits_for_nobody_ends_without_the_joiner(seed, monkeypatch):
    monkeypatch.setattr(Giving, "holds", lambda *_, **__: False)
    swarm = Swarm(seed, 1)
    swarm.world.join(JOINER)
    swarm.run_to_the_end()
    assert not swarm.listed


def test_who_asks_for_ever_and_takes_nothing_costs_the_run_no_more_than_a_cap(seed):
    swarm = Swarm(seed, 3)
    joiner = swarm.world.join(JOINER)
    # It asks everybody for the chain again and again, and does nothing with what comes.
    joiner.core.catchup.is_torn = True

    def ask() -> None:
        send_frame(swarm.world, joiner, tuple(joiner.wires), WantChain(first=1))
        swarm.world.later(1.0, ask)

    ask()
    calm_s = (ROUNDS - JOINS_AT) * 3.0
    assert CAP_S - 5.0 < swarm.run_to_the_end() < CAP_S + calm_s + swarm.world.settings.linger_s
    assert not swarm.listed
