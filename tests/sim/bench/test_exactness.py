"""The director's own sums: they are the shipped ones to the bit, and see what is not."""

from dataclasses import replace

import numpy as np
import pytest

from node.reporting.tracing import Adopted
from sim.bench.exactness import Exactness
from sim.bench.trainer import Numbers, base, scale
from tests.sim.bench.scene import NAMES, PEERS, Scene, manifest_at

A, B, C = PEERS


def faults(scene: Scene) -> list[str]:
    return list(Exactness(scene.manifest, NAMES).faults(scene.records))


@pytest.mark.parametrize("codec", ["none", "fp16"])
def test_sealed_states_are_those_that_the_listed_contributions_give(tmp_path, codec):
    scene = Scene(manifest_at(tmp_path, codec))
    scene.play()
    scene.play((A, C))
    scene.play()
    exactness = Exactness(scene.manifest, NAMES)
    told: list[int] = []
    assert list(exactness.faults(scene.records, told.append)) == []
    assert told == [1, 2, 3]
    assert exactness.num_rounds == 3
    bound = 1e-7 if codec == "none" else 1e-3
    assert 0.0 < exactness.max_error < bound


def test_one_bit_of_a_state_is_seen(tmp_path):
    scene = Scene(manifest_at(tmp_path))
    state = scene.store.make_state
    value = scene.play(adopting=(A, B))
    bent_N = scene.store.state.anchor_N.copy()
    bent_N[7] = np.nextafter(bent_N[7], np.float32(9.0))
    root = state(bent_N, {}).root
    scene.adopt(C, 1.1, value, root)
    assert [text for text in faults(scene) if "goes on from another state" in text]
    scene.records = [r for r in scene.records if not (isinstance(r, Adopted) and r.peer == C)]
    assert faults(scene) == []
    wrong = replace(value, root=root)
    scene.records = [r for r in scene.records if not isinstance(r, Adopted)]
    scene.adopt(A, 1.1, wrong)
    assert [text for text in faults(scene) if "sealed another state" in text]


def test_contribution_of_another_round_or_peer_is_seen(tmp_path):
    scene = Scene(manifest_at(tmp_path))
    scene.numbers[B] = scene.numbers[A]
    scene.play()
    (text, *_) = faults(scene)
    assert "lists other bytes than" in text


def test_two_seals_of_a_round_and_a_gap_are_seen(tmp_path):
    scene = Scene(manifest_at(tmp_path))
    value = scene.play()
    scene.adopt(C, 2.0, replace(value, commits=value.commits[:1]))
    assert faults(scene) == ["2 different seals of round 1"]
    scene = Scene(manifest_at(tmp_path))
    scene.play(adopting=())
    scene.play()
    assert faults(scene) == ["nobody told of round 1"]


def test_commit_that_nobody_signed_is_seen(tmp_path):
    scene = Scene(manifest_at(tmp_path))
    scene.play()
    scene.records = [record for record in scene.records if isinstance(record, Adopted)]
    assert faults(scene) == ["round 1 lists a COMMIT that nobody signed"]


def test_numbers_are_the_same_again_and_differ_by_peer_and_round():
    one, again, other = Numbers("1/A", 4096), Numbers("1/A", 4096), Numbers("1/B", 4096)
    assert np.array_equal(one.contribution(3), again.contribution(3))
    assert not np.array_equal(one.contribution(3), one.contribution(4))
    assert not np.array_equal(one.contribution(3), other.contribution(3))
    drawn_N = base("1/A", 4096)
    assert drawn_N.dtype == np.float32
    assert -0.5 <= drawn_N.min() < -0.49 < 0.49 < drawn_N.max() < 0.5
    assert all(0.5 <= scale("1/A", index) < 1.5 for index in range(50))
