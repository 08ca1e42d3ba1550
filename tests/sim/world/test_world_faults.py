"""E7, R3: crashes in every phase, sleepers, cut links, loss."""

from collections.abc import Callable

import pytest

from protocol import events as ev
from protocol.identity import PeerId
from protocol.rounds.reducers import slices
from sim.trials import chaos as phases
from sim.trials.chaos import Phase
from sim.world.links import Link
from sim.world.world import SimNode, World, peer_named
from tests.node.builders import peers_named
from tests.sim.worlds import WatchedWorld, world_of

VICTIM_ROUND = 7
"""By then all five vote."""

# The closer of attempt 0 is struck, which reports to nobody.
PHASES = {name: phases.PHASES[name] for name in phases.IN_EVERY_RUN if name != "NEWATTEMPT sent"}


def strike(
    world: WatchedWorld, phase: Phase, blow: Callable[[PeerId], object], *, closer_of: int = 0
) -> list[PeerId]:
    """Deal a blow, once, in that phase of VICTIM_ROUND, to the closer of an attempt of it."""
    struck: list[PeerId] = []

    def trigger(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        if struck:
            return
        # The last to seal goes on to the next round at once.
        for view in node.core.views():
            is_due = view.index == VICTIM_ROUND and view.closer(closer_of) == node.peer
            if is_due and phase(view, action):
                struck.append(node.peer)
                blow(node.peer)

    world.triggers.append(trigger)
    return struck


@pytest.mark.quick(1)
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


@pytest.mark.extended
@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES.keys())
def test_frozen_peer_is_not_waited_for_and_on_waking_says_nothing_wrong(phase, seed):
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
    struck = strike(world, PHASES["parts sent"], world.crash, closer_of=1)
    summed: dict[int, set[PeerId]] = {}

    def trigger(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        if isinstance(action, ev.Reduce) and node.core.machine.view.index == VICTIM_ROUND:
            summed.setdefault(action.first, set()).add(node.peer)

    world.triggers.append(trigger)
    world.finish()
    previous = world.living()[0].core.chain[VICTIM_ROUND - 1].value
    pieces = slices(previous.roster, previous.digest, 6, trust="friends")
    (orphan,) = [piece for piece in pieces if piece.reducers[0] == struck[0]]
    assert struck[0] not in summed[orphan.first]
    assert summed[orphan.first] & set(orphan.reducers[1:3])
    assert struck[0] not in world.listed[VICTIM_ROUND]


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


@pytest.mark.extended
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


@pytest.mark.slow
@pytest.mark.parametrize("case", range(20))
def test_latecomer_and_cut_off_peer_catch_up_although_one_frame_in_twenty_is_lost(case, seed):
    link = Link(loss=0.05, duplication=0.05, latency_s=(0.005, 0.2))
    world = world_of(5, seed=seed + case, rounds=24, link=link)
    lonely = peers_named(5)[case % 5]
    others = [peer for peer in peers_named(5) if peer != lonely]
    world.until_round(6)
    for other in others:
        world.cut(lonely, other)
    world.until_round_of_most(10)
    for other in others:
        world.heal(lonely, other)
    world.join(peer_named("latecomer"))
    world.finish()
    lately = {peer for index in range(20, 25) for peer in world.listed[index]}
    assert {lonely, peer_named("latecomer")} <= lately


@pytest.mark.extended
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


@pytest.mark.extended
def test_two_peers_that_cannot_reach_each_other_still_agree(seed):
    world = world_of(5, seed=seed, rounds=10)
    world.until_round(5)
    one, other = peers_named(5)[1:3]
    world.cut(one, other)
    world.finish()
