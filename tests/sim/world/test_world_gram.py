"""Worlds whose rule judges whole vectors: the bits of the rule, and no round that waits for ever.

Every node's state is compared with what the listed bytes give, by I2 of the watched worlds.
"""

import math
from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.messages import Kind
from sim.checks.invariants import InvariantBroken
from sim.trials.chaos import PHASES
from sim.world.world import SimNode, World, WorldSettings
from tests.node.builders import peers_named, toy_manifest
from tests.sim.world.test_world_faults import VICTIM_ROUND
from tests.sim.worlds import WatchedWorld
from training.aggregation import AGGREGATORS

STATS = [name for name in AGGREGATORS if AGGREGATORS[name]().uses_stats]


def world_of(
    aggregator: str, *, seed: int, trust: str = "friends", rounds: int = 4
) -> WatchedWorld:
    peers = peers_named(7)
    toy = toy_manifest(peers[0], rounds=rounds, cells=len(peers))  # So that everybody sums.
    outer = replace(toy.outer, aggregator=aggregator)
    seated = peers if trust == "open" else ()
    world = WatchedWorld(
        replace(toy, trust=trust, outer=outer),
        seed=seed,
        settings=WorldSettings(linger_s=math.inf, seated=seated),
    )
    for peer in peers:
        world.join(peer)
    return world


def said(world: WatchedWorld, kind: Kind) -> int:
    views = [view for node in world.living() for view in node.core.views()]
    return sum(m.slot.kind is kind for view in views for m in view.ballots.messages())


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", STATS)
def test_rule_over_whole_vectors_gives_its_bits_on_every_node(name, seed):
    world = world_of(name, seed=seed, trust="open" if name == "default" else "friends")
    world.finish()
    assert world.checks.reference.num_recomputed
    assert len({node.store.final.root for node in world.living()}) == 1
    assert said(world, Kind.GRAM)


def test_rule_that_needs_no_gram_matrix_sends_none(seed):
    world = world_of("median", seed=seed)
    world.finish()
    assert said(world, Kind.AGG)
    assert not said(world, Kind.GRAM)


@pytest.mark.extended
@pytest.mark.parametrize("trust", ["friends", "open"])
@pytest.mark.parametrize("phase", ["VOTE sent", "GRAM recorded", "GRAM sent"])
def test_death_of_a_reducer_before_or_behind_its_gram_matrix_costs_no_round(phase, trust, seed):
    world = world_of("krum", seed=seed, trust=trust, rounds=VICTIM_ROUND + 2)
    struck: list[bytes] = []

    def trigger(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        if struck:
            return
        views = [view for view in node.core.views() if view.index == VICTIM_ROUND]
        # Whoever sums: of four cells not all do.
        if any(PHASES[phase](v, action) and v.own_slices() for v in views):
            struck.append(node.peer)
            world.crash(node.peer)

    world.triggers.append(trigger)
    world.finish()
    assert len(struck) == 1
    assert all(c.value.commits for c in world.living()[0].core.chain[1:]), "a round was carried"


@pytest.mark.extended
@pytest.mark.parametrize("trust", ["friends", "open"])
def test_lie_about_a_gram_matrix_passes_among_friends_and_not_in_an_open_run(trust, seed):
    world = world_of("norm_clip", seed=seed, trust=trust, rounds=9)
    world.until_round(4)
    liar = world.nodes[peers_named(7)[2]]
    if trust == "open":
        liar.sums_wrongly = True  # Known to the checks, and lying in its Gram matrices too.
        others = [node for node in world.living() if node is not liar]
        world.run(lambda: all(n.core.machine.head.round >= 9 for n in others), max_s=200.0)
        assert others[0].core.machine.head.roster.banned == (liar.peer,)
        assert world.checks.reference.num_recomputed > 5
        assert all(c.value.commits for c in others[0].core.chain[1:]), "a round was carried"
    else:
        liar.lies_in_gram = True
        with pytest.raises(InvariantBroken, match="not what the listed bytes give"):
            world.until_round(9)
