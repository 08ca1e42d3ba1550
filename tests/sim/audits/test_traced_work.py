"""Training in segments: whoever runs one again comes to the same end, and to another one where
anything of it is made up."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol import events as ev
from protocol.auditing.audits_machine import end_of
from protocol.grid import EMPTY_ROOT
from protocol.identity import PeerId
from protocol.leases import part_of_lease
from protocol.manifest import AuditSpec, TimingSpec
from protocol.messages import Commit, Work, decode_body
from protocol.segments import SegmentPlace, cells_of, root_of
from sim.world.toy_run import toy_run
from sim.world.trainer import TextModel, Traced, TracedWork
from tests.protocol.entry_vectors import WORK
from training.audits.traces import NO_START
from training.compression import ErrorFeedback, make_codec

OWNER = PeerId(bytes([7]) * 32)
LEASE = ((40, 200), (300, 460))
TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=9.0, heartbeat_s=0.5, suspect_s=2.0)
PLAIN = toy_run(OWNER, rounds=4, cells=2, timing=TIMING, trust="open")
MANIFEST = replace(PLAIN, audits=AuditSpec(rate=0.5), outer=replace(PLAIN.outer, codec="int8"))
LAYOUT = MANIFEST.layout(0)
LAST = 8


class Scene:
    """A peer's second round of training, its COMMIT, and what an auditor fetches of it."""

    def __init__(self, seed: int) -> None:
        self.traced = TracedWork(MANIFEST, TextModel(MANIFEST, seed))
        zeros_N = np.zeros(LAYOUT.numel, dtype=np.float32)
        place = SegmentPlace(round=1, step=0, segment=0, lease=LEASE)
        before = self.traced.train(self.traced.begun(zeros_N), place)
        feedback = ErrorFeedback(make_codec(MANIFEST.outer), 1.0, cell_elements=1024)
        first = feedback.encode(zeros_N - before.ends.weights_N)
        feedback.commit()
        self.anchor_N = before.ends.weights_N
        self.residual_N = feedback.residual_N
        self.done: Traced = self.traced.train(before.ends, replace(place, round=2))
        encoded = feedback.encode(self.anchor_N - self.done.ends.weights_N)
        self.inherited = ((before.done.after, first.residual_after), (EMPTY_ROOT, EMPTY_ROOT))
        example = decode_body(WORK)
        assert isinstance(example, Commit)
        work = Work(
            onion=bytes(32),
            device="cpu",
            trace=self.done.done.trace,
            before=self.done.done.before,
            after=self.done.done.after,
        )
        self.commit = replace(
            example,
            root=root_of(encoded.payloads),
            residual_before=encoded.residual_before,
            residual_after=encoded.residual_after,
            work=(work,),
        )

    def rerun(self, segment: int, **changes: Any) -> bytes:
        """The end that an auditor finds."""
        task = ev.Rerun(
            commit_digest=bytes(32),
            sender=OWNER,
            commit=self.commit,
            round=2,
            segment=segment,
            lease=LEASE,
            inherited=self.inherited,
        )
        task = replace(task, **changes)
        cells = self.done.states[self.done.done.trace[segment]]
        if segment == LAST:
            assert self.residual_N is not None
            cells = (*cells[: LAYOUT.num_cells(0)], *cells_of(LAYOUT, (self.residual_N,)))
        return self.traced.again(task, b"".join(cells), self.anchor_N)


@pytest.fixture
def scene(seed: int) -> Scene:
    return Scene(seed)


def test_every_segment_run_again_comes_to_the_end_that_was_committed(scene):
    ends = [scene.rerun(segment) for segment in range(LAST + 1)]
    assert ends == [end_of(scene.commit, segment) for segment in range(LAST + 1)]
    assert len(set(ends)) == LAST + 1


@pytest.mark.parametrize(
    "changes",
    [
        {"sender": PeerId(bytes([8]) * 32)},
        {"round": 3},
        {"lease": part_of_lease(LEASE, 0, 160)},
    ],
)
def test_other_data_or_other_luck_comes_to_another_end(scene, changes):
    # The text model draws nothing: for peer and round it is the lease that differs in a run.
    is_same = "lease" not in changes
    assert (scene.rerun(3, **changes) == end_of(scene.commit, 3)) is is_same


def test_contribution_that_is_not_what_was_trained_is_another_end(scene):
    scene.commit = replace(scene.commit, root=bytes(32))
    assert scene.rerun(LAST) != end_of(scene.commit, LAST)


@pytest.mark.parametrize("segment", [0, LAST])
def test_inner_state_that_nobody_can_have_inherited_is_no_start(scene, segment):
    nothing = ((EMPTY_ROOT, EMPTY_ROOT),)
    assert scene.rerun(segment, inherited=nothing) == NO_START
    assert scene.rerun(segment, inherited=()) == b""


@pytest.mark.parametrize("number", [np.nan, np.inf, np.finfo(np.float32).max])
def test_numbers_that_no_trainer_goes_on_with_are_an_end_and_no_error(scene, number):
    for segment in (3, LAST):
        weights_N = scene.done.ends.weights_N.copy()
        weights_N[5] = number
        root = scene.done.done.trace[segment]
        scene.done.states[root] = replace(scene.done.ends, weights_N=weights_N).cells(LAYOUT)
        scene.residual_N = np.full_like(weights_N, -number)
        assert scene.rerun(segment) != end_of(scene.commit, segment)


def test_training_from_other_weights_than_the_sealed_ones_is_no_start(scene):
    scene.anchor_N = scene.anchor_N + np.float32(1.0)
    assert scene.rerun(0) == NO_START
