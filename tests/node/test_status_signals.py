"""Signals on the status board: whoever lies in length shows in an open run, and stays a member."""

import io
from dataclasses import replace

from rich.console import Console

from node.status.records import SUSPICION_USE, PeerTable, from_plain
from node.status.snapshot import snapshot
from node.status.tables import draw_peers, draw_status
from node.text.shown import to_plain
from protocol.identity import peer_id_text
from sim.trials.faults import member_names
from sim.trials.scenario import overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import build_world, seat_members
from tests.node.status_scene import sources_of

PEERS, ROUNDS = 5, 6


def test_liar_in_length_is_suspected_by_a_score_and_banned_by_nobody(seed):
    calm = overridden(read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, attack="scale:0.25")
    scenario = settled(replace(calm, cells=2, aggregator="norm_clip"), seed)
    world = build_world(scenario, seed)
    names = {name: world.peer(name) for name in member_names(PEERS)}
    seat_members(world, scenario, seed, names)
    (liar,) = world.settings.liars
    node = world.nodes[next(peer for peer in names.values() if peer != liar)]
    sources = sources_of(node.core)
    # At each new seal, as the board does twice a second.
    while (head := node.core.machine.head).round < ROUNDS - 1:
        before = head.round
        world.run(lambda before=before: node.core.machine.head.round > before, 200.0)  # type: ignore[misc]
        shot = snapshot(sources, world.now_s)
    body = to_plain(shot.peers)
    records = {record.peer: record for record in from_plain(PeerTable, body).peers}
    found = {name: record.suspicion for name, record in records.items() if record.suspicion}
    assert {one.use for one in found.values()} == {SUSPICION_USE}
    assert {name for name, one in found.items() if one.score} == {peer_id_text(liar)}
    assert len(found) == PEERS - 1
    assert records[peer_id_text(liar)].is_member
    assert not records[peer_id_text(liar)].is_convicted
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw_peers(shot.peers))
    assert SUSPICION_USE in console.export_text()


def test_whose_training_nobody_can_run_again_is_shown_as_unaudited(seed):
    calm = overridden(read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, audits=0.5)
    scenario = settled(replace(calm, cells=2), seed)
    world = build_world(scenario, seed)
    names = {name: world.peer(name) for name in member_names(PEERS)}
    seat_members(world, scenario, seed, names)
    node, other = (world.nodes[peer] for peer in list(names.values())[:2])
    other.core.audits.device = "alone 77"  # As a trainer says that has another device.
    world.run(lambda: node.core.machine.head.round >= ROUNDS - 1, 300.0)
    shot = snapshot(sources_of(node.core), world.now_s)
    found = {record.peer: record for record in from_plain(PeerTable, to_plain(shot.peers)).peers}
    assert {name for name, one in found.items() if one.is_audited is False} == {
        peer_id_text(other.peer)
    }
    assert [one.is_audited for one in found.values()].count(True) == PEERS - 2
    assert found[peer_id_text(other.peer)].device_class == "alone 77"
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw_peers(shot.peers))
    text = console.export_text()
    assert "alone 77" in text
    assert "together they weigh at most 25% of a round" in text
    assert (shot.status.is_audited, shot.status.unaudited_share) == (True, 0.25)
    console.print(draw_status(shot.status))
    assert "others run its training again" in console.export_text()
    console.print(draw_status(snapshot(sources_of(other.core), world.now_s).status))
    assert "unaudited, for too few others compute its bits" in console.export_text()
