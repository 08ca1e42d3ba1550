"""Gossip of many: entries spread through loss, splits heal, the dead are found, no living are."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from protocol.gossiping.settings import GossipSettings
from sim.crowds.gossiping import Gossiping, GossipingSettings, GossipNetwork, app, calm, swarm

SMALL = GossipingSettings(nodes=40, seconds=60.0, loss=0.2, struck=3, lagging=3, hold_share=0.95)
"""99 % of forty would be all of them; whom every push misses waits for its next exchange. Half of
the time is for finding the dead, which takes up to 20 s where helpers are lost and late."""


@pytest.mark.extended
def test_entries_reach_everybody_in_five_seconds_at_a_loss_of_a_fifth(seed):
    outcome = Gossiping(SMALL, seed).spread()
    assert outcome.is_kept, outcome
    assert outcome.entries >= 10
    assert 0.0 < outcome.lag_p50_s <= outcome.lag_max_s <= 5.0
    assert outcome.known_max <= 40


@pytest.mark.extended
def test_same_seed_gives_the_same_gossip(seed):
    short = replace(SMALL, nodes=15, seconds=20.0, struck=1, lagging=1)
    one, other = Gossiping(short, seed).spread(), Gossiping(short, seed).spread()
    assert one.trace_hash == other.trace_hash
    assert Gossiping(short, seed + 1).spread().trace_hash != one.trace_hash


@pytest.mark.extended
@pytest.mark.parametrize("ways", [2, 3])
def test_split_swarm_is_equal_within_three_exchanges(ways, seed):
    outcome = Gossiping(replace(SMALL, nodes=24, struck=0, lagging=0), seed).heal(ways, entries=60)
    assert outcome.is_kept, outcome
    assert outcome.apart >= ways


@pytest.mark.extended
def test_node_without_comparing_is_found_out(seed, monkeypatch):
    monkeypatch.setattr("protocol.gossiping.anti_entropy.AntiEntropy.compare", lambda *_: None)
    outcome = Gossiping(replace(SMALL, nodes=12, struck=0, lagging=0), seed).heal(2, entries=20)
    assert not outcome.is_kept


@pytest.mark.extended
def test_push_alone_loses_entries(seed, monkeypatch):
    monkeypatch.setattr(
        "protocol.gossiping.spreading.Spreading._offer_again",
        lambda spreading, *_: spreading._fresh.clear(),
    )
    monkeypatch.setattr("protocol.gossiping.machine.Gossip._partner", lambda _: None)
    outcome = Gossiping(replace(SMALL, loss=0.5, seconds=30.0), seed).spread()
    assert outcome.unspread
    assert not outcome.is_kept


def test_frames_arrive_as_bytes_just_as_well(seed):
    world, peers = swarm(GossipNetwork(is_encoding=True, loss=0.1), 12, seed)
    entry_id = world.write(peers[0], b"through the wire")
    world.timeline.run_until(world.timeline.now_s + 10.0)
    assert len(world.holding[entry_id]) == 12
    assert world.faults == []


def test_leaver_is_nobodys_neighbour_a_moment_later(seed):
    world, peers = swarm(GossipNetwork(), 20, seed)
    world.nodes[peers[3]].leave()
    world.timeline.run_until(world.timeline.now_s + 1.0)
    assert not [
        n for n in world.nodes.values() if peers[3] in n.gossip.views.neighbours and n.is_alive
    ]
    world.timeline.run_until(world.timeline.now_s + 30.0)
    assert world.gone == []


@pytest.mark.extended
def test_views_mix_and_stay_small(seed):
    config = GossipSettings(passive_max=20, introducer_share=4, lost_max=4)
    world, peers = swarm(GossipNetwork(gossip=config), 80, seed)
    world.timeline.run_until(120.0)
    held = [set(node.gossip.views.acquaintances) for node in world.nodes.values()]
    assert max(map(len, held)) <= 20
    # Everybody is known by somebody, and nobody by all.
    known_by = [sum(peer in view for view in held) for peer in peers]
    assert min(known_by) >= 1
    assert max(known_by) < 60


@pytest.mark.extended
def test_bytes_of_a_node_do_not_grow_with_the_swarm(seed):
    small, large = (Gossiping(calm(n, loss=0.0, seconds=20.0), seed).spread() for n in (60, 180))
    assert large.bytes_per_node_s < 1.25 * small.bytes_per_node_s


@pytest.mark.slow
def test_thousand_nodes_for_a_minute(seed):
    outcome = Gossiping(GossipingSettings(), seed).spread()
    assert outcome.is_kept, outcome
    assert outcome.known_max <= 256


def test_command_refuses_parts_without_nodes():
    done = CliRunner().invoke(app, ["--nodes", "4", "--split", "8"])
    assert done.exit_code == 2
    assert "4 nodes are no 8 parts" in done.output


@pytest.mark.parametrize("words", [("--seconds", "inf"), ("--seconds", "nan"), ("--loss", "nan")])
def test_numbers_that_would_never_end_are_refused(words):
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 2
    assert words[0] in found.output
