"""R4 in worlds: who is left goes on provisionally, branches meet, and become final or give way."""

import pytest

from node.reporting.tracing import Advanced, Began, Confirmed, FellBack, Record
from sim.world.nodes import peer_named
from tests.node.builders import peers_named
from tests.sim.mixed import Mixed
from tests.sim.worlds import world_of


def heads_of(world, peers) -> list[bytes]:
    return [world.nodes[peer].core.machine.standing.head.value.digest for peer in peers]


def branch_of(world, peer) -> int:
    return len(world.nodes[peer].core.machine.standing.branch)


def told(world) -> list[Record]:
    records: list[Record] = []
    world.tracers.append(records.append)
    return records


@pytest.mark.extended
def test_last_one_goes_on_and_its_rounds_become_final_when_the_others_are_back(seed):
    world = world_of(5, seed=seed, rounds=40)
    records = told(world)
    world.until_round(6)
    last, *others = peers_named(5)
    for peer in others:
        world.crash(peer)
    world.run(lambda: branch_of(world, last) >= 5, max_s=60.0)
    lone = {r.certificate.value.digest for r in records if isinstance(r, Advanced)}
    for peer in others:
        world.bounce(peer)
    world.finish()
    confirmed = {r.certificate.value.digest for r in records if isinstance(r, Confirmed)}
    assert len(confirmed & lone) >= 5
    assert not any(isinstance(record, FellBack) for record in records)
    assert set(world.listed[40]) == {last, *others}


@pytest.mark.extended
def test_restarted_node_stands_on_its_branch_again(seed):
    world = world_of(3, seed=seed, rounds=30)
    world.until_round(5)
    last, *others = peers_named(3)
    for peer in others:
        world.crash(peer)
    world.run(lambda: branch_of(world, last) >= 3, max_s=60.0)
    before = heads_of(world, [last])
    records = told(world)
    world.bounce(last)
    world.run(lambda: branch_of(world, last) >= 3, max_s=1.0)
    assert any(isinstance(record, Began) for record in records)
    stands = [r.certificate.value.digest for r in records if isinstance(r, Advanced)]
    assert stands[-1:] == before
    world.run(lambda: branch_of(world, last) >= 6, max_s=60.0)
    for peer in others:
        world.bounce(peer)
    world.finish()


@pytest.mark.extended
def test_two_sides_without_a_quorum_stand_on_one_branch_when_they_meet(seed):
    """Four of nine are parted into two and two, five are gone: no quorum before or after."""
    world = world_of(9, seed=seed, rounds=60)
    world.until_round(6)
    names = peers_named(9)
    left, right, gone = names[:2], names[2:4], names[4:]
    records = told(world)
    for peer in gone:
        world.crash(peer)
    world.partition([left, right])
    world.run(lambda: min(branch_of(world, p) for p in (*left, *right)) >= 3, max_s=60.0)
    assert len(set(heads_of(world, (*left, *right)))) >= 2
    world.repair()
    longest = max(branch_of(world, peer) for peer in (*left, *right))
    world.run(
        lambda: (
            len(set(heads_of(world, (*left, *right)))) == 1 and branch_of(world, left[0]) > longest
        ),
        max_s=90.0,
    )
    assert any(isinstance(record, FellBack) for record in records)
    for peer in gone:
        world.bounce(peer)
    world.finish(max_s=400.0)


@pytest.mark.extended
def test_newcomer_is_seated_on_a_branch(seed):
    world = world_of(3, seed=seed, rounds=60)
    world.until_round(5)
    last, *others = peers_named(3)
    for peer in others:
        world.crash(peer)
    world.run(lambda: branch_of(world, last) >= 2, max_s=60.0)
    late = peer_named("latecomer")
    world.join(late)
    world.run(
        lambda: late in world.nodes[last].core.machine.standing.head.value.roster.members,
        max_s=60.0,
    )
    for peer in others:
        world.bounce(peer)
    world.finish(max_s=400.0)


def test_one_lost_disk_and_one_restart_after_a_lost_branch_leave_a_run_able_to_seal():
    # Kept: of four voters, one without memory and one silent for what it had said on its branch.
    Mixed(213, rounds=14).run()
