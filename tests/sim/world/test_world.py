"""Whole swarms in virtual time: the shipped decisions and bytes, a made-up network."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from node.holdings.shard_store import State
from protocol import events as ev
from protocol.core.node_core import CHAIN_KEPT
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Kind, SealCertificate
from protocol.rounds import roster as rosters
from sim.checks.invariants import ALL
from sim.world.edge import Edge
from sim.world.world import World, peer_named
from tests.node.builders import peers_named
from tests.sim.worlds import WatchedNode, WatchedWorld, world_of

ROOT = Path(__file__).parents[3]
SAMPLES = 320
"""What one peer uses per round: twenty steps of sixteen."""

SKELETON = """
from tests.sim.world.test_world import skeleton
print(skeleton(seed={seed}).trace_hash)
"""


# The skeleton -----------------------------------------------------------------------------------


def skeleton(seed: int) -> World:
    """Sixteen peers, twenty rounds."""
    world = world_of(16, seed=seed, rounds=20)
    world.finish()
    return world


@pytest.mark.extended
def test_sixteen_peers_seal_twenty_rounds_with_equal_anchors_and_one_trace(seed):
    world = skeleton(seed)
    nodes = list(world.nodes.values())
    for node in nodes:
        assert sorted(node.sealed) == list(range(1, 21))
        assert node.anchors == nodes[0].anchors
        assert node.sealed == nodes[0].sealed
    assert len(set(nodes[0].anchors.values())) == 20, "a round that changes nothing shows nothing"
    counts = [len(certificate.value.commits) for certificate in nodes[0].core.chain]
    assert counts == [0, 1] + [16] * 19
    again = subprocess.run(
        [sys.executable, "-c", SKELETON.format(seed=seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.split() == [world.trace_hash]


def test_another_seed_gives_another_trace():
    traces = set()
    for seed in (1, 2):
        world = world_of(3, seed=seed, rounds=3)
        world.finish()
        traces.add(world.trace_hash)
    assert len(traces) == 2


def test_contributions_are_kept_until_their_round_is_final_and_then_let_go_of(seed):
    world, most = world_of(4, seed=seed, rounds=8), 0

    def is_over() -> bool:
        nonlocal most
        for node in world.nodes.values():
            views = node.core.machine.standing.views
            commits = [(view, *found) for view in views for found in view.commits()]
            assert {commit.root for *_, commit in commits} >= set(node.store._parts)
            for view, _, digest, commit in commits:
                kept = {item.index for item in node.store.parts(commit.root, range(99))}
                assert kept >= set(view.cells.parts.get(digest, ()))
                most = max(most, len(node.store._parts))
        return all(node.round >= 8 for node in world.nodes.values())

    world.run(is_over, 400.0)
    assert most == 4


# R11: latecomers ---------------------------------------------------------------------------------


def test_latecomer_syncs_is_seated_contributes_next_round_and_votes_after_its_first_seal(seed):
    world = world_of(4, seed=seed, rounds=14)
    world.until_round(6)
    late = peer_named("latecomer")
    world.join(late)
    world.finish()
    chain = world.living()[0].core.chain
    rosters = [certificate.value.roster for certificate in chain]
    seated = next(i for i, roster in enumerate(rosters) if late in roster.members)
    assert seated >= 7
    assert late in world.listed[seated + 1]
    votes_from = next(seat.voter_since for seat in rosters[-1].seats if seat.peer == late)
    # Its SEAL of round seated + 1 is in its COMMIT of the round after.
    assert votes_from == seated + 2
    assert world.nodes[late].anchors[14] == world.living()[0].anchors[14]
    assert min(world.nodes[late].anchors) >= 6, "it synced a state instead of replaying rounds"


class ZeroedNode(WatchedNode):
    """The latecomer forgets the outer slots of the state that it has fetched."""

    def state_came(self, certificate: SealCertificate, state: State) -> None:
        if self.peer == peer_named("latecomer"):
            slots = {name: 0 * slot_N for name, slot_N in state.slots.items()}
            state = self.store.make_state(state.anchor_N, slots)
        super().state_came(certificate, state)


class ZeroedOuter(WatchedWorld):
    makes_node = ZeroedNode
    checked = ALL - {"I2"}
    """It sees at once that the latecomer has another state."""


@pytest.mark.extended
def test_latecomer_without_the_outer_state_is_not_seated(seed):
    world = world_of(4, seed=seed, rounds=12, kind=ZeroedOuter)
    world.until_round(6)
    late = peer_named("latecomer")
    world.join(late)
    world.until_round_of_most(12)
    asked = [
        message
        for node in world.living()
        for view in node.core.views()
        for message in view.ballots.messages()
        if message.slot.kind is Kind.SEAT and message.sender == late
    ]
    assert asked, "it never asked"
    for certificate in world.nodes[peers_named(4)[0]].core.chain:
        assert late not in certificate.value.roster.members


def test_leaver_is_dropped_by_the_next_seals_and_may_come_back_to_stay(seed):
    world = world_of(4, seed=seed, rounds=16)
    leaver = peers_named(4)[3]
    world.until_round(6)
    world.tell(leaver, ev.Leaving())
    world.until_round(9)
    world.tell(leaver, ev.TrainerReady())
    world.finish()
    chain = world.nodes[peers_named(4)[0]].core.chain
    seats = [leaver in certificate.value.roster.members for certificate in chain]
    assert seats[6]
    assert not any(seats[8:10])
    assert all(seats[11:])
    assert leaver in world.listed[16]


# R6 ---------------------------------------------------------------------------------------------


class LosingNode(WatchedNode):
    """Parts of one sender for one round reach nobody; its messages do."""

    world: "LostParts"

    def act(self, action: ev.CoreAction) -> None:
        view, world = self.core.machine.view, self.world
        is_own = (
            isinstance(action, ev.Push)
            and action.bulk is Bulk.PART
            and action.subject == view.own.commit
        )
        if not (is_own and self.peer == world.loser and view.index == world.lost_round):
            super().act(action)


class LostParts(WatchedWorld):
    makes_node = LosingNode
    loser: PeerId | None = None
    lost_round: int = 7


def test_contribution_that_nobody_got_is_not_listed_and_residual_and_samples_go_back(seed):
    world = world_of(4, seed=seed, rounds=10, kind=LostParts)
    assert isinstance(world, LostParts)
    loser = peers_named(4)[3]
    world.loser = loser
    world.until_round(6)
    before = rosters.leases(world.living()[0].core.machine.head, SAMPLES)[0]
    world.until_round(7)
    value = world.living()[0].core.chain[7].value
    assert loser not in world.listed[7]
    # WatchedWorld has compared the loser's residual with the one before its COMMIT (R6).
    assert tuple((gap.first, gap.stop) for gap in value.clock.unused) == before[loser]
    world.finish()
    assert loser in world.listed[8]
    assert loser in world.listed[10]
    last = world.living()[0].core.chain[-1].value.clock
    assert (last.tokens, last.unused) == (last.cursor, ())


def test_samples_of_the_whole_run_are_used_or_unused_and_none_is_in_doubt(seed):
    world = world_of(4, seed=seed, rounds=10)
    slow = peers_named(4)[3]
    world.until_round(6)
    world.freeze(slow)
    world.until_round(7)
    world.thaw(slow)
    world.finish()
    clock = world.living()[0].core.chain[-1].value.clock
    assert clock.tokens + sum(gap.stop - gap.first for gap in clock.unused) == clock.cursor


@pytest.mark.extended
def test_latecomer_gets_from_the_journal_what_of_the_chain_is_no_longer_in_memory(seed):
    world = world_of(1, seed=seed, rounds=CHAIN_KEPT + 40)
    world.until_round(CHAIN_KEPT + 20, max_s=1000.0)
    (founder,) = world.nodes.values()
    assert len(founder.core.chain) == CHAIN_KEPT
    (late,) = (peer for peer in peers_named(2) if peer != founder.peer)
    world.join(late)
    world.finish(max_s=1000.0)
    assert late in world.listed[world.manifest.rounds]


def test_world_that_is_over_is_gone_without_the_collector(seed):
    world = world_of(4, seed=seed, rounds=3)
    world.finish()
    nodes = [node for node in world.nodes.values() if isinstance(node, Edge)]
    world.bounce(nodes[0].peer)
    nodes += [node for node in world.nodes.values() if isinstance(node, Edge)]
    parts = [weakref.ref(part) for node in nodes for part in (node.core, node.transfers)]
    assert len({part() for part in parts}) == 2 * 5, "one of them has had two processes"
    nodes.clear()
    gc.collect()
    gc.disable()
    try:
        world.end()
        assert [part() for part in parts if part() is not None] == []
    finally:
        gc.enable()
