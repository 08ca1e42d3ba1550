"""R4 with two rounds in flight (R5) in worlds: branches of such rounds, on several fragments and on
one."""

from dataclasses import replace

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Advanced, Confirmed, FellBack, Record, Synced
from protocol.messages import Kind
from sim.world.nodes import peer_named
from sim.world.toy_run import toy_run
from tests.node.builders import peers_named, toy_manifest
from tests.sim.worlds import WatchedWorld

FRAGMENTS = pytest.mark.parametrize("cells", [(2, 1, 3), (3,)], ids=["three", "one"])


def world_of(num_peers: int, cells: tuple[int, ...], *, seed: int, rounds: int) -> WatchedWorld:
    peers = peers_named(num_peers)
    timing = toy_manifest(peers[0]).timing
    manifest = toy_run(peers[0], rounds=rounds, cells=cells, timing=timing)
    outer = replace(manifest.outer, codec="int4", overlap=2)
    world = WatchedWorld(replace(manifest, outer=outer), seed=seed)
    config = round_config(world.manifest)
    assert config.may_branch
    for number, peer in enumerate(peers):
        waiting = replace(config, wait_seats=num_peers - 1) if number == 0 else config
        world.join(peer, config=waiting)
    return world


def branch_of(world, peer) -> int:
    return len(world.nodes[peer].core.machine.standing.branch)


def told(world) -> list[Record]:
    records: list[Record] = []
    world.tracers.append(records.append)
    return records


@pytest.mark.quick(1)
@FRAGMENTS
def test_last_one_goes_on_and_its_rounds_become_final_when_the_others_are_back(seed, cells):
    world = world_of(5, cells, seed=seed, rounds=40)
    records = told(world)
    world.until_round(8)
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
    # Who is late for one round of a few seconds is in the next one.
    assert {last, *others} in [set(world.listed[index]) for index in range(31, 41)]


@pytest.mark.slow
@FRAGMENTS
def test_restarted_node_stands_on_its_branch_again(seed, cells):
    world = world_of(3, cells, seed=seed, rounds=30)
    world.until_round(8)
    last, *others = peers_named(3)
    for peer in others:
        world.crash(peer)
    world.run(lambda: branch_of(world, last) >= 3, max_s=60.0)
    before = world.nodes[last].core.machine.standing.head.value.digest
    records = told(world)
    world.bounce(last)
    world.run(lambda: branch_of(world, last) >= 3, max_s=1.0)
    stands = [r.certificate.value.digest for r in records if isinstance(r, Advanced)]
    assert stands[-1:] == [before]
    world.run(lambda: branch_of(world, last) >= 6, max_s=60.0)
    for peer in others:
        world.bounce(peer)
    world.finish()


@pytest.mark.slow
@FRAGMENTS
def test_two_sides_without_a_quorum_stand_on_one_branch_when_they_meet(seed, cells):
    """Four of nine are parted into two and two, five are gone: no quorum before or after."""
    world = world_of(9, cells, seed=seed, rounds=60)
    world.until_round(8)
    names = peers_named(9)
    left, right, gone = names[:2], names[2:4], names[4:]
    parted = (*left, *right)
    records = told(world)
    for peer in gone:
        world.crash(peer)
    world.partition([left, right])
    world.run(lambda: min(branch_of(world, p) for p in parted) >= 3, max_s=60.0)

    def heads() -> set[bytes]:
        return {world.nodes[peer].core.machine.standing.head.value.digest for peer in parted}

    assert len(heads()) >= 2
    world.repair()
    longest = max(branch_of(world, peer) for peer in parted)
    world.run(lambda: len(heads()) == 1 and branch_of(world, left[0]) > longest, max_s=90.0)
    assert any(isinstance(record, FellBack) for record in records)
    for peer in gone:
        world.bounce(peer)
    world.finish(max_s=400.0)


@pytest.mark.slow
@FRAGMENTS
def test_branch_that_is_lost_to_a_quorum_gives_way_and_its_node_trains_on(seed, cells):
    """Three of four go on finally; the fourth one's branch is on a seal that is not theirs."""
    world = world_of(4, cells, seed=seed, rounds=40)
    world.until_round(8)
    *others, lone = peers_named(4)
    records = told(world)
    world.partition([others, [lone]])
    world.run(lambda: branch_of(world, lone) >= 3, max_s=60.0)
    world.repair()
    world.finish()
    assert any(isinstance(r, FellBack | Synced) and r.peer == lone for r in records)
    assert any(lone in world.listed[index] for index in range(31, 41))


@pytest.mark.slow
@FRAGMENTS
def test_newcomer_is_seated_on_a_branch(seed, cells):
    world = world_of(3, cells, seed=seed, rounds=60)
    world.until_round(8)
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


@pytest.mark.slow
@FRAGMENTS
def test_second_round_of_two_branches_is_one_round(seed, cells):
    """Its COMMITs are the same ones on both sides; PSEALs are not."""
    world = world_of(4, cells, seed=seed, rounds=40)
    world.until_round(8)
    names = peers_named(4)
    left, right = names[:2], names[2:]
    records = told(world)
    world.partition([left[:1], left[1:], right])
    world.run(lambda: max(branch_of(world, peer) for peer in right) >= 3, max_s=60.0)
    world.repair()
    world.finish()
    signed = [r.message for r in records if hasattr(r, "message")]
    commits = [(m.sender, m.slot.round, m.slot.basis) for m in signed if m.slot.kind is Kind.COMMIT]
    assert len({m.digest for m in signed if m.slot.kind is Kind.COMMIT}) == len(set(commits))
