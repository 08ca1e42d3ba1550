"""R8 in a world: what is measured on the lines decides who sums how much."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
from unittest.mock import patch

import pytest

from node.holdings.states import round_config
from protocol.identity import PeerId
from protocol.rounds.reducers import slices
from protocol.rounds.roster import CommitReports
from sim.world.links import Link
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(6)
SLOW = PEERS[-2:]
"""Two, for of six one alone is so few that rounds do not wait for what it takes longer."""
CELLS, ROUNDS, SETTLED = 192, 12, 6
LINE = Link(latency_s=(0.01, 0.03), bytes_per_s=300e3)


def paced(seed: int, *, slow: Link = LINE, rounds: int = ROUNDS) -> tuple[World, float]:
    """A run in which two uplinks differ; and how long a round takes once rates are known."""
    manifest = toy_manifest(PEERS[0], rounds=rounds, cells=CELLS)
    timing = replace(manifest.timing, deadline_floor_s=3.0, deadline_cap_s=60.0, suspect_s=4.0)
    manifest = replace(manifest, timing=timing)
    world = World(manifest, seed=seed, link=LINE, settings=WorldSettings(linger_s=60.0))
    world.join(PEERS[0], config=replace(round_config(manifest), wait_seats=5))
    for peer in PEERS[1:]:
        world.join(peer)
    for source in SLOW:
        for peer in PEERS:
            if peer != source:
                world.set_link(source, peer, slow)
    times = []
    for index in range(SETTLED, rounds + 1):
        world.run(partial(_has_sealed, world, index), 200.0)
        times.append(world.now_s)
    return world, median(later - earlier for earlier, later in pairwise(times))


def _has_sealed(world: World, index: int) -> bool:
    return 2 * sum(node.round >= index for node in world.nodes.values()) > len(PEERS)


def _shares(world: World, index: int) -> dict[PeerId, int]:
    value = world.nodes[PEERS[0]].core.chain[index].value
    found = dict.fromkeys(value.roster.members, 0)
    for piece in slices(value.roster, value.digest, CELLS, trust="friends"):
        found[piece.reducers[0]] += piece.stop - piece.first
    return found


@pytest.mark.extended
def test_uplinks_ten_times_slower_sum_a_tenth_and_rounds_are_faster_for_it(seed):
    slow = replace(LINE, bytes_per_s=LINE.bytes_per_s / 10)
    world, by_rate_s = paced(seed, slow=slow)
    for index in range(SETTLED, ROUNDS):
        shares = _shares(world, index)
        assert all(2 <= shares[peer] <= 6 for peer in SLOW)
        assert len({shares[peer] for peer in PEERS if peer not in SLOW}) <= 2
    # Nor are they set back for how long their sums take: then they would sum nothing.
    with (
        patch("protocol.rounds.roster.measured", lambda seats, members, reports: dict(seats)),
        patch.object(CommitReports, "with_set_back", lambda self, seat: seat),
    ):
        equal, equal_s = paced(seed, slow=slow)
    assert all(_shares(equal, ROUNDS - 1)[peer] == 32 for peer in SLOW)
    assert by_rate_s < 0.85 * equal_s
    assert all(
        len(link.value.commits) == 6 for link in world.nodes[PEERS[0]].core.chain[SETTLED:-1]
    )


@pytest.mark.parametrize("rounds", [SETTLED + 2, pytest.param(ROUNDS, marks=pytest.mark.extended)])
def test_equal_lines_are_measured_and_share_equally_in_every_round(seed, rounds):
    world, _ = paced(seed, rounds=rounds)
    chain = world.nodes[PEERS[0]].core.chain
    assert all(seat.rate for seat in chain[SETTLED].value.roster.seats)
    for index in range(2, rounds):
        assert set(_shares(world, index).values()) == {CELLS // 6}
