"""A crowd through few links: who runs hears of every seal, and who was struck is suspected."""

from dataclasses import replace

import pytest

from sim.crowds.crowd import Crowd, CrowdSettings

SMALL = CrowdSettings(nodes=40, seconds=40.0, members=6, links=3, dead=3, frozen=3)


def test_every_living_node_of_a_crowd_hears_of_every_seal(seed):
    outcome = Crowd(SMALL, seed).run()
    assert outcome.is_kept, outcome
    assert outcome.rounds_sealed >= 2
    assert 0.0 < outcome.lag_p50_s <= outcome.lag_max_s < SMALL.heard_within_s


@pytest.mark.extended
def test_same_seed_gives_the_same_crowd(seed):
    short = replace(SMALL, seconds=12.0)
    one, other = Crowd(short, seed).run(), Crowd(short, seed).run()
    assert one.trace_hash == other.trace_hash
    assert Crowd(short, seed + 1).run().trace_hash != one.trace_hash


def test_nobody_beyond_the_neighbours_is_linked(seed):
    crowd = Crowd(replace(SMALL, seconds=5.0, dead=0, frozen=0), seed)
    crowd.run()
    for peer, node in crowd.world.nodes.items():
        drawn = crowd.neighbours[peer]
        meant = drawn | {other for other in crowd.peers if peer in crowd.neighbours[other]}
        assert set(node.wires) == meant
        assert len(meant) < len(crowd.peers) - 1


@pytest.mark.extended
def test_deaf_relay_is_found_out(seed, monkeypatch):
    monkeypatch.setattr("protocol.core.relay.Relay.forward", lambda *_: [])
    monkeypatch.setattr("protocol.core.relay.Relay.fill", lambda *_: ())
    monkeypatch.setattr("protocol.catching_up.catchup.CatchUp.consider", lambda *_, **__: [])
    outcome = Crowd(SMALL, seed).run()
    assert outcome.unheard
    assert not outcome.is_kept


@pytest.mark.extended
def test_liveness_that_suspects_nobody_is_found_out(seed, monkeypatch):
    monkeypatch.setattr("protocol.core.liveness.Liveness._is_silent", lambda *_: False)
    outcome = Crowd(SMALL, seed).run()
    assert outcome.unsuspected
    assert not outcome.is_kept


@pytest.mark.slow
def test_thousand_nodes_for_a_minute(seed):
    outcome = Crowd(CrowdSettings(), seed).run()
    assert outcome.is_kept, outcome
    assert outcome.rounds_sealed >= 4
