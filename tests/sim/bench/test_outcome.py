"""What records say about a fault: when all survivors had a seal, who was excluded, who is equal."""

from dataclasses import replace

import pytest

from sim.bench.exactness import (
    BenchFault,
    adopted_round,
    are_equal,
    false_exclusions,
    is_together,
    next_round_s,
    recovered_s,
)
from tests.sim.bench.scene import PEERS, Scene, manifest_at

A, B, C = PEERS


@pytest.fixture
def scene(tmp_path):
    return Scene(manifest_at(tmp_path))


def test_recovery_ends_with_the_last_survivors_first_seal(scene):
    scene.play()
    dealt = BenchFault(victim=C, at_s=1.5)
    scene.play((A, B, C), adopting=(A, B))
    scene.play((A, B), adopting=(A, B))
    assert recovered_s(scene.records, dealt, (A, B)) == pytest.approx(2.01 - 1.5)
    assert next_round_s(scene.records, dealt, (A, B)) == pytest.approx(3.01 - 1.5)


def test_survivor_without_a_seal_is_no_recovery(scene):
    scene.play()
    dealt = BenchFault(victim=C, at_s=1.5)
    scene.play((A, B), adopting=(A, C))
    assert recovered_s(scene.records, dealt, (A, B)) is None
    assert next_round_s(scene.records, dealt, (A, B)) is None


def test_seal_that_one_had_before_the_fault_counts_for_nobody(scene):
    scene.play(adopting=(A,))
    dealt = BenchFault(victim=C, at_s=1.05)
    scene.adopt(B, 1.2, scene.heads[-1])
    assert recovered_s(scene.records, dealt, (A, B)) is None
    scene.play((A, B), adopting=(A, B))
    assert recovered_s(scene.records, dealt, (A, B)) == pytest.approx(2.0 - 1.05)


def test_suspicion_of_a_live_member_in_a_sealed_commit_is_a_false_exclusion(scene):
    scene.play()
    scene.play(suspects=(C,))
    assert len(false_exclusions(scene.records, None)) == 3
    assert len(false_exclusions(scene.records, BenchFault(victim=C, at_s=1.6))) == 3
    assert false_exclusions(scene.records, BenchFault(victim=C, at_s=1.4)) == []


def test_member_that_a_seal_drops_is_a_false_exclusion(scene):
    scene.play()
    scene.play(members=(A, B))
    assert len(false_exclusions(scene.records, None)) == 1
    assert false_exclusions(scene.records, BenchFault(victim=C, at_s=1.4)) == []


def test_equal_means_one_seal_and_its_state(scene):
    assert not are_equal(scene.records), "nothing was adopted"
    value = scene.play(adopting=(A, B))
    assert are_equal(scene.records)
    scene.adopt(C, 2.0, value, bytes(32))
    assert not are_equal(scene.records)
    scene.records.pop()
    scene.adopt(C, 2.0, replace(value, root=bytes(32)))
    assert not are_equal(scene.records)


def test_swarm_is_together_when_all_are_listed_and_vote(scene):
    scene.play((A, B))
    assert is_together(scene.records, 3) == 0
    scene.play()
    assert is_together(scene.records, 3) == 2
    assert is_together(scene.records, 4) == 0
    assert adopted_round(scene.records) == dict.fromkeys(PEERS, 2)
