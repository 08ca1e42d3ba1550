"""Worlds where everybody sums: the bits are those of the other topology, and no result travels.

Every node's state is compared with what the listed bytes give, by I2 of the watched worlds.
"""

import math
from collections import Counter
from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.frames import Bulk
from protocol.messages import Kind, SealValue
from sim.trials.chaos import PHASES
from sim.trials.scenario_file import shipped_scenarios
from sim.trials.trial import run_trial
from sim.world.world import SimNode, World, WorldSettings
from tests.node.builders import peers_named, toy_manifest
from tests.sim.world.test_world_faults import VICTIM_ROUND
from tests.sim.worlds import WatchedWorld
from training.aggregation import AGGREGATORS

SCENARIOS = {scenario.name: scenario for scenario in shipped_scenarios()}
GATHER = {"topology": "gather"}
STATS = [
    pytest.param(name, marks=() if name in ("krum", "default") else pytest.mark.slow)
    for name in AGGREGATORS
    if AGGREGATORS[name]().uses_stats
]
ROUNDS, SEATED = 8, 4


def world_of(
    topology: str = "gather",
    *,
    seed: int,
    num_peers: int = 5,
    aggregator: str = "mean",
    trust: str = "friends",
    rounds: int = ROUNDS,
) -> tuple[WatchedWorld, Counter[Bulk]]:
    """A world under watch, and the cells of each kind that its nodes are asked to send."""
    peers = peers_named(num_peers)
    toy = toy_manifest(peers[0], rounds=rounds, cells=num_peers)
    outer = replace(toy.outer, topology=topology, aggregator=aggregator)
    seated = peers if trust == "open" else ()
    settings = WorldSettings(linger_s=math.inf, seated=seated)
    world = WatchedWorld(replace(toy, outer=outer, trust=trust), seed=seed, settings=settings)
    sent: Counter[Bulk] = Counter()

    def count(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        if isinstance(action, ev.Push):
            sent[action.bulk] += len(action.cells)

    world.triggers.append(count)
    for peer in peers:
        world.join(peer)
    return world, sent


@pytest.mark.quick(1)
@pytest.mark.parametrize("trust", ["friends", "open"])
def test_all_contributions_travel_and_no_result_does(trust: str, seed: int) -> None:
    world, sent = world_of(seed=seed, trust=trust)
    # Who has no seat yet takes results; it sits by now.
    world.until_round(SEATED)
    sent.clear()
    world.finish()
    assert sent[Bulk.RESULT] == 0
    rounds = ROUNDS - SEATED
    assert all(len(world.listed[index]) == 5 for index in range(SEATED + 1, ROUNDS + 1))
    # Five cells of each to each other one, and hardly one of them twice.
    assert rounds * 5 * 5 * 4 <= sent[Bulk.PART] + 5 * 5 * 4 <= 1.2 * (rounds + 1) * 5 * 5 * 4
    assert world.checks.reference.num_recomputed


def test_sum_is_to_the_bit_that_of_the_other_topology(seed: int) -> None:
    """The very contributions of a round, summed by the rules of either."""
    world, _ = world_of(seed=seed, num_peers=4)
    roots: list[tuple[bytes, bytes]] = []

    def compare(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        view = node.core.machine.previous
        if not isinstance(action, ev.Adopt) or view is None or not view.is_member:
            return
        value, store = action.certificate.value, node.store
        found = store.result_of(value.list_digest)
        if value.commits:
            assert found is not None
            again = _summed_by_slices(node, value)
            roots.append((found.root(0, store.layout.num_cells(0)), again))

    world.triggers.append(compare)
    world.finish()
    assert len(roots) > ROUNDS
    assert all(gathered == sliced for gathered, sliced in roots)


def _summed_by_slices(node: SimNode, value: SealValue) -> bytes:
    """The root of the result, each cell of it summed in a slice of its own."""
    view = node.core.machine.standing.about(value.list_digest) or node.core.machine.previous
    assert view is not None
    store, body = node.store, view.ballots.list_of(value.list_digest)
    assert body is not None
    listed = view.listed(body)
    assert listed is not None
    entries = [
        (ev.ListEntry(sender, digest, commit.tokens), commit.root)
        for sender, digest, commit in sorted(listed)
    ]
    name, cells = b"by slices" + value.list_digest, store.layout.num_cells(0)
    for cell in range(cells):
        store.reduce(name, entries, first=cell, stop=cell + 1)
    result = store._results.pop(name)
    return result.root(0, cells)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", STATS)
def test_rule_over_whole_vectors_needs_no_word_of_others(name: str, seed: int) -> None:
    trust = "open" if name == "default" else "friends"
    world, _ = world_of(seed=seed, num_peers=7, aggregator=name, trust=trust, rounds=4)
    world.finish()
    assert world.checks.reference.num_recomputed
    views = [view for node in world.living() for view in node.core.views()]
    said = Counter(m.slot.kind for view in views for m in view.ballots.messages())
    assert said[Kind.AGG]
    assert not said[Kind.GRAM]


@pytest.mark.quick(1)
@pytest.mark.parametrize("phase", ["COMMIT sent", "HAVE sent", "VOTE sent", "AGG sent"])
def test_death_in_any_phase_costs_no_round(phase: str, seed: int) -> None:
    world, _ = world_of(seed=seed, num_peers=4, rounds=VICTIM_ROUND + 2)
    struck: list[bytes] = []

    def trigger(_: World, node: SimNode, action: ev.CoreAction | None) -> None:
        views = [view for view in node.core.views() if view.index == VICTIM_ROUND]
        if not struck and any(PHASES[phase](view, action) for view in views):
            struck.append(node.peer)
            world.crash(node.peer)

    world.triggers.append(trigger)
    world.finish()
    assert len(struck) == 1
    assert all(c.value.commits for c in world.living()[0].core.chain[1:]), "a round was carried"


def test_who_lost_all_parts_with_its_memory_serves_the_result_instead(seed: int) -> None:
    """R2: of three voters two seal, then one is gone for good and the other was down. So of the
    listed parts nobody has all, and the third one, without whom no round is final, needs the
    result."""
    world, sent = world_of(seed=seed, num_peers=3, rounds=9)
    gone, locked, behind = peers_named(3)
    world.until_round(SEATED)
    sent.clear()
    world.until_round(5)
    assert sent[Bulk.RESULT] == 0
    world.block(gone, behind)
    world.block(locked, behind)
    world.until_round_of_most(6)
    assert world.nodes[behind].core.machine.head.round == 5
    assert behind in world.listed[6]
    world.crash(gone)
    world.bounce(locked)
    world.unblock(gone, behind)
    world.unblock(locked, behind)
    world.finish()
    assert sent[Bulk.RESULT]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gather", {"peers": (6, 9)}),
        ("open-gather", {"peers": (6, 8)}),
        pytest.param("kill-each-phase", {"peers": (5, 7), **GATHER}, marks=pytest.mark.slow),
        pytest.param("partition-half", {"peers": (6, 8), **GATHER}, marks=pytest.mark.slow),
        ("open-calm", {"peers": (8, 8), **GATHER, "attack": "lying_reducer:0.25"}),
        pytest.param("open-wrong-sum", {"peers": (7, 8), **GATHER}, marks=pytest.mark.slow),
        pytest.param("late-joiner", {"peers": (5, 8), **GATHER}, marks=pytest.mark.slow),
        pytest.param("lost-disk", {"peers": (5, 8), **GATHER}, marks=pytest.mark.slow),
        pytest.param("fragments", {"peers": (5, 8), **GATHER}, marks=pytest.mark.slow),
        pytest.param("mass-restart", {"peers": (5, 8), **GATHER}, marks=pytest.mark.slow),
        pytest.param("majority-lost", {"peers": (5, 8), **GATHER}, marks=pytest.mark.slow),
    ],
)
def test_faults_and_liars_change_no_bit(name: str, changes: dict[str, object], seed: int) -> None:
    scenario = replace(SCENARIOS[name], **changes)  # type: ignore[arg-type]
    outcome = run_trial(scenario, seed)
    assert outcome.violation is None, outcome.violation
    assert outcome.honest_digests_equal
    assert outcome.rounds_sealed
