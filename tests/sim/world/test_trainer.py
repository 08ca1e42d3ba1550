"""The trainer of a simulated node settles its residual as the shipped one does (R6)."""

import random
from dataclasses import replace

import numpy as np
import pytest

from protocol import events as ev
from protocol.grid import EMPTY_ROOT
from protocol.rounds.fates import Fates
from sim.world.trainer import Flight, SimTrainer, drift
from tests.node.builders import head_of, peers_named, toy_manifest
from training.compression import residual_root

PEERS = peers_named(1)
MANIFEST = toy_manifest(PEERS[0])
LEASE = ((0, 8),)
ANCHOR_N = np.zeros(MANIFEST.layout(0).fragment_numels[0], dtype=np.float32)


def train(
    sealed: int, *, listed: bool = False, resync: bool = False, basis: bytes = bytes(32)
) -> ev.Train:
    head = head_of(PEERS)
    value = replace(head.value, round=sealed, basis=basis)
    return ev.Train(replace(head, value=value), LEASE, listed, resync)


def root(trainer: SimTrainer) -> bytes:
    return residual_root(trainer.feedback[0].residual_N, MANIFEST.layout(0).cell_elements)


class Scene:
    """A trainer that has contributed to round 5, as to round 4 before, which was listed."""

    def __init__(self) -> None:
        self.trainer, self.fates = SimTrainer(MANIFEST, drift), Fates()
        self.stream = random.Random(1)
        self.hear(train(3))
        self.trainer.start(4, ANCHOR_N, LEASE, self.fates)
        self.trainer.contribute(self.stream)
        self.hear(train(4, listed=True))
        self.trainer.finish(5, ANCHOR_N, LEASE, self.fates)
        self.fates.taken_over(5)
        self.last = self.trainer.contribute(self.stream)
        assert self.last.residual_before != self.last.residual_after

    def hear(self, *actions: ev.Train) -> None:
        for action in actions:
            self.fates.hear(action)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_rounds_that_passed_leave_the_residual_as_it_was_sealed(listed, is_restarted):
    scene, trainer = Scene(), None
    if is_restarted:
        scene.fates = Fates()
    scene.hear(train(5, listed=listed), train(6))
    if is_restarted:
        trainer = scene.trainer.restarted()
        assert not trainer.start(7, ANCHOR_N, LEASE, scene.fates)
    else:
        trainer = scene.trainer
        trainer.finish(7, ANCHOR_N, LEASE, scene.fates)
    assert root(trainer) == (scene.last.residual_after if listed else scene.last.residual_before)


@pytest.mark.parametrize("sealed", [5, 9])
def test_resync_leaves_no_residual(sealed):
    scene = Scene()
    scene.hear(train(sealed, resync=True))
    scene.trainer.finish(sealed + 1, ANCHOR_N, LEASE, scene.fates)
    assert scene.trainer.feedback[0].residual_N is None
    again = Scene()
    again.fates = Fates()
    again.hear(train(4, listed=True), train(sealed, resync=True))
    trainer = again.trainer.restarted()
    assert not trainer.start(sealed + 1, ANCHOR_N, LEASE, again.fates)
    assert trainer.feedback[0].residual_N is None


@pytest.mark.parametrize(("name", "is_kept"), [(b"ours", True), (b"theirs", False)])
@pytest.mark.parametrize("later", [0, 2])
def test_restart_takes_up_no_residual_of_a_branch_that_was_left(name, is_kept, later):
    """R4, R5: a round of the same number is sealed, in which it was listed; and some behind it."""
    manifest = toy_manifest(PEERS[0])
    manifest = replace(manifest, outer=replace(manifest.outer, codec="int4", overlap=2))
    trainer, fates = SimTrainer(manifest, drift), Fates()
    fates.hear(train(3))
    trainer.start(4, ANCHOR_N, LEASE, fates, Flight(3, name, (name, b"next")))
    contributed = trainer.contribute(random.Random(1))
    assert contributed.residual_after != contributed.residual_before
    fresh, fates = trainer.restarted(), Fates()
    fates.hear(train(4, listed=True, basis=b"ours"))
    for sealed in range(5, 5 + later):
        fates.hear(train(sealed, basis=bytes([sealed])))
    sealed = 4 + later
    assert not fresh.start(sealed + 1, ANCHOR_N, LEASE, fates, Flight(sealed, b"5", (b"5", b"6")))
    kept = contributed.residual_after if is_kept else EMPTY_ROOT
    assert root(fresh) == kept
