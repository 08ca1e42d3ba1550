"""Whole swarms in virtual time: the shipped decisions and bytes, a made-up network."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node import events as ev
from node.bulk import admission
from node.shard_store import Item
from protocol.errors import ProofError
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Kind
from sim.network import Link
from sim.world import SimNode, World, peer_named
from tests.node.builders import peers_named
from tests.sim.worlds import WatchedWorld, world_of

ROOT = Path(__file__).parent.parent.parent
SKELETON = """
from tests.sim.test_world import skeleton
print(skeleton(seed={seed}).trace_hash)
"""


# The skeleton -----------------------------------------------------------------------------------


def skeleton(seed: int) -> World:
    """Sixteen peers, twenty rounds."""
    world = world_of(16, seed=seed, rounds=20)
    world.finish()
    return world


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
    assert again.stdout.split() == [skeleton(seed).trace_hash] == [world.trace_hash]


def test_another_seed_gives_another_trace():
    traces = set()
    for seed in (1, 2):
        world = world_of(3, seed=seed, rounds=3)
        world.finish()
        traces.add(world.trace_hash)
    assert len(traces) == 2


# E7: one crash, in each phase --------------------------------------------------------------------

VICTIM_ROUND = 7
"""By then all five vote."""

Phase = Callable[[SimNode, ev.CoreAction | None], bool]


def said(kind: Kind) -> Phase:
    """All its messages of that kind, for any attempt and subject, have left."""

    def is_over(node: SimNode, action: ev.CoreAction | None) -> bool:
        messages = node.core.machine.view.ballots.messages()
        return action is None and any(
            message.sender == node.peer and message.slot.kind is kind for message in messages
        )

    return is_over


def recorded(kind: Kind) -> Phase:
    """The message is durable and was sent to nobody."""

    def is_over(node: SimNode, action: ev.CoreAction | None) -> bool:
        return isinstance(action, ev.Send) and said(kind)(node, None)

    return is_over


def before_parts(node: SimNode, action: ev.CoreAction | None) -> bool:
    return isinstance(action, ev.Push) and action.bulk is Bulk.PART


def after_parts(node: SimNode, action: ev.CoreAction | None) -> bool:
    return action is None and node.core.machine.view.pushed_among is not None


PHASES: dict[str, Phase] = {
    "COMMIT recorded, not sent": recorded(Kind.COMMIT),
    "COMMIT sent, no parts": before_parts,
    "parts sent": after_parts,
    "HAVE as reducer": said(Kind.HAVE),
    "LIST as closer, not sent": recorded(Kind.LIST),
    "LIST as closer": said(Kind.LIST),
    "VOTE": said(Kind.VOTE),
    "AGG": said(Kind.AGG),
    "SEAL recorded, not sent": recorded(Kind.SEAL),
    "SEAL": said(Kind.SEAL),
}


def strike(world: WatchedWorld, phase: Phase, blow: Callable[[PeerId], None]) -> list[PeerId]:
    """Deal a blow to the closer of the round, once, in that phase of VICTIM_ROUND."""
    struck: list[PeerId] = []

    def trigger(_: WatchedWorld, node: SimNode, action: ev.CoreAction | None) -> None:
        view = node.core.machine.view
        is_due = not struck and view.index == VICTIM_ROUND and view.closer(0) == node.peer
        if is_due and phase(node, action):
            struck.append(node.peer)
            blow(node.peer)

    world.triggers.append(trigger)
    return struck


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES.keys())
def test_survivors_of_a_crash_in_any_phase_seal_every_round_to_the_bit(phase, seed):
    world = world_of(5, seed=seed, rounds=20)
    struck = strike(world, phase, world.crash)
    world.finish()
    (dead,) = struck
    chain = world.living()[0].core.chain
    assert len(chain) == 21
    assert all(certificate.value.commits for certificate in chain[1:]), "a round was carried"
    survivors = {node.peer for node in world.living()}
    assert set(world.listed[VICTIM_ROUND]) >= survivors
    assert set(world.listed[VICTIM_ROUND + 1]) == survivors
    assert dead not in chain[-1].value.roster.members
    assert all(node.anchors == world.living()[0].anchors for node in world.living())


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES.keys())
def test_frozen_peer_is_passed_over_and_on_waking_says_nothing_wrong(phase, seed):
    world = world_of(5, seed=seed, rounds=16)
    struck = strike(world, phase, world.freeze)
    world.until_round(VICTIM_ROUND + 2)
    (sleeper,) = struck
    world.thaw(sleeper)
    world.finish()
    assert world.nodes[sleeper].core.machine.head.round == 16
    assert sleeper in world.living()[0].core.chain[-1].value.roster.members
    assert sleeper in world.listed[16]


def test_substitute_sums_the_slice_of_a_reducer_that_died(seed):
    world = world_of(5, seed=seed, rounds=9)
    struck = strike(world, said(Kind.VOTE), world.crash)
    summed: dict[int, set[PeerId]] = {}

    def trigger(_: WatchedWorld, node: SimNode, action: ev.CoreAction | None) -> None:
        view = node.core.machine.view
        if isinstance(action, ev.Reduce) and view.index == VICTIM_ROUND and struck:
            summed.setdefault(action.first, set()).add(node.peer)

    world.triggers.append(trigger)
    world.finish()
    view = world.living()[0]
    assert view.core.machine.head.round == 9
    assert any(len(peers) > 0 for peers in summed.values())


def test_two_of_three_frozen_together_wake_and_go_on(seed):
    world = world_of(3, seed=seed, rounds=10)
    world.until_round(5)
    sleepers = peers_named(3)[1:]
    for peer in sleepers:
        world.freeze(peer)
    with pytest.raises(TimeoutError):
        world.run(lambda: world.living()[0].core.machine.head.round >= 10, max_s=30.0)
    for peer in sleepers:
        world.thaw(peer)
    world.finish()


def test_majority_that_is_gone_seals_nothing_more(seed):
    world = world_of(5, seed=seed, rounds=20)
    world.until_round(7)
    for peer in peers_named(5)[:3]:
        world.crash(peer)
    sealed = max(node.core.machine.head.round for node in world.living())
    with pytest.raises(TimeoutError):
        world.run(
            lambda: any(n.core.machine.head.round > sealed + 1 for n in world.living()), max_s=120.0
        )


# Loss -------------------------------------------------------------------------------------------


def test_swarm_that_loses_and_repeats_one_in_twenty_seals_every_round(seed):
    world = world_of(5, seed=seed, rounds=20, link=Link(loss=0.05, duplication=0.05))
    world.finish()
    assert all(node.core.machine.head.round == 20 for node in world.living())


@pytest.mark.slow
@pytest.mark.parametrize("case", range(40))
def test_swarm_under_loss_and_a_crash_seals_every_round_in_many_worlds(case, seed):
    link = Link(loss=0.05, duplication=0.05, latency_s=(0.005, 0.3))
    world = world_of(3 + case % 4, seed=seed + case, rounds=20, link=link)
    phases = list(PHASES.values())
    strike(world, phases[case % len(phases)], world.crash)
    world.finish()


@pytest.mark.slow
@pytest.mark.parametrize("case", range(40))
def test_swarm_with_sleepers_and_cut_links_comes_to_its_end_in_many_worlds(case, seed):
    world = world_of(5, seed=seed + case, rounds=20, link=Link(latency_s=(0.005, 0.3)))
    peers = peers_named(5)
    world.until_round(6)
    sleeper, lonely = peers[case % 5], peers[(case + 1) % 5]
    world.freeze(sleeper)
    for other in peers:
        if other not in (lonely, sleeper):
            world.cut(lonely, other)
    world.until_round_of_most(9)
    world.thaw(sleeper)
    for other in peers:
        if other not in (lonely, sleeper):
            world.heal(lonely, other)
    world.finish()


def test_peer_that_was_cut_off_catches_up_and_contributes_again(seed):
    world = world_of(5, seed=seed, rounds=16)
    world.until_round(6)
    lonely, *others = peers_named(5)
    for other in others:
        world.cut(lonely, other)
    world.until_round_of_most(10)
    assert world.nodes[lonely].core.machine.head.round <= 7
    for other in others:
        world.heal(lonely, other)
    world.finish()
    assert lonely in world.listed[16]


def test_two_peers_that_cannot_reach_each_other_still_agree(seed):
    world = world_of(5, seed=seed, rounds=10)
    world.until_round(5)
    one, other = peers_named(5)[1:3]
    world.cut(one, other)
    world.finish()


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


class ZeroedOuter(WatchedWorld):
    """The latecomer forgets the outer slots of the state that it has fetched."""

    def _tell(self, node: SimNode, event: ev.CoreEvent) -> None:
        if node.peer == peer_named("latecomer") and isinstance(event, ev.StateReady):
            state = node.store.state
            slots = {name: 0 * slot_N for name, slot_N in state.slots.items()}
            node.store.state = node.store.make_state(state.anchor_N, slots)
            super(WatchedWorld, self)._tell(node, event)
            return
        super()._tell(node, event)

    def _carry_out(self, node: SimNode, actions: list[ev.CoreAction]) -> None:
        if node.peer == peer_named("latecomer"):
            World._carry_out(self, node, actions)
        else:
            super()._carry_out(node, actions)


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


# Switches that show that the checks can fail ----------------------------------------------------


class OwnUpdate(WatchedWorld):
    """Some nodes take their outer step on their own update instead of the aggregate."""

    liars: frozenset[PeerId] = frozenset()

    def _compute(self, node: SimNode, action: ev.CoreAction) -> None:
        view = node.core.machine.view
        if node.peer in self.liars and isinstance(action, ev.Apply) and view.index >= 6:
            mine = view.ballots.commits.get(node.peer)
            if mine is not None:
                items = node.store.parts(mine[1].root, range(node.store.num_cells))
                node.store._results[action.list_digest] = {i.index: i.payload for i in items}
        super()._compute(node, action)


def test_node_that_applies_its_own_update_seals_alone_and_has_to_resync(seed):
    world = world_of(5, seed=seed, rounds=10, kind=OwnUpdate)
    assert isinstance(world, OwnUpdate)
    liar = peers_named(5)[2]
    world.liars = frozenset({liar})
    resyncs: list[PeerId] = []
    world.triggers.append(
        lambda _, node, action: resyncs.append(node.peer) if isinstance(action, ev.Resync) else None
    )
    world.until_round_of_most(10)
    assert set(resyncs) == {liar}


def test_swarm_in_which_everybody_applies_its_own_update_seals_nothing(seed):
    world = world_of(5, seed=seed, rounds=10, kind=OwnUpdate)
    assert isinstance(world, OwnUpdate)
    world.liars = frozenset(peers_named(5))
    with pytest.raises(TimeoutError):
        world.until_round(6, max_s=120.0)
    assert all(node.core.machine.head.round == 5 for node in world.living())


class FlippedByte(WatchedWorld):
    """One byte of one part is wrong on its way, once."""

    flipped: int = 0

    def _bulk_arrived(self, node, source, header, items, tries):
        if header.bulk is Bulk.PART and not self.flipped and node.core.machine.view.index == 6:
            self.flipped = 1
            first = items[0]
            payload = bytes([first.payload[0] ^ 1]) + first.payload[1:]
            items = [Item(first.index, payload, first.proof), *items[1:]]
            with pytest.raises(ProofError):
                admission(node.core, node.store, header, items[0])()
        super()._bulk_arrived(node, source, header, items, tries)


def test_part_with_a_flipped_byte_is_refused_and_pulled_again_and_the_round_is_exact(seed):
    world = world_of(5, seed=seed, rounds=8, kind=FlippedByte)
    assert isinstance(world, FlippedByte)
    world.until_round(8)
    assert world.flipped
    assert len(world.faults) == 1
    # Everybody is listed: the part came again, and WatchedWorld has checked the sum.
    assert len(world.listed[6]) == 5


# R6 ---------------------------------------------------------------------------------------------


def test_late_contribution_is_not_listed_and_its_samples_and_residual_go_back(seed):
    world = world_of(4, seed=seed, rounds=10)
    slow = peers_named(4)[3]
    world.until_round(6)
    world.freeze(slow)
    world.until_round(7)
    world.thaw(slow)
    world.finish()
    # WatchedWorld has compared the residual with what the COMMIT says, listed or not.
    assert any(slow not in peers for index, peers in world.listed.items() if index > 6)
    value = world.living()[0].core.chain[-1].value
    unused = sum(gap.stop - gap.first for gap in value.clock.unused)
    assert value.clock.tokens + unused == value.clock.cursor
