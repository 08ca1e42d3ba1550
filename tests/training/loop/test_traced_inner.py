"""Rounds of real training, whose segments anybody of the class runs again to the bit (R10)."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import DecodeError
from protocol.grid import EMPTY_ROOT
from protocol.manifest import AuditSpec, RunManifest
from protocol.segments import (
    SegmentPlace,
    SegmentState,
    WorkKind,
    encoded_end,
    root_of,
    state_bytes,
    state_of,
    steps_of_segment,
    trained_end,
)
from tests.training.replicas import INNER, OUTER, small_manifest
from tests.training.solo import MOMENTS_TO_DIE, Solo
from training.audits.traces import NO_START, AuditTask, StoredCells, reopen, rerun, run_audit
from training.channel.exchange import Contribution, TraceRoots
from training.channel.frames import Audit, Reopen
from training.device.inner import make_optimizer
from training.loop.traced_inner import TorchSegments
from training.models.building import build_model
from training.models.genesis import shard_spec

ROUNDS, STEPS, SEGMENTS = 4, 5, 3
LONG = 7
"""Rounds of several fragments: each is synced twice and more."""
RATE = 0.1
"""So low that states between the first and the last are made again when they are asked for."""

NOTHING = (EMPTY_ROOT, EMPTY_ROOT)


def manifest_of(
    codec: str = "fp16", sam_radius: float = 0.0, fragments: int = 1, optimizer: str = "adamw"
) -> RunManifest:
    inner = replace(INNER, inner_steps=STEPS, learning_rate=0.02, sam_radius=sam_radius)
    inner = replace(inner, optimizer=optimizer)
    manifest = small_manifest(inner=inner, outer=replace(OUTER, codec=codec))
    audits = AuditSpec(rate=RATE, segments=SEGMENTS)
    shards = (shard_spec(manifest.model, fragments=fragments),)
    open_run = replace(manifest, trust="open", survive="quorum", audits=audits)
    return replace(open_run, shards=shards, rounds=ROUNDS if fragments == 1 else LONG)


class Trial:
    """A trainer's whole run, and the eyes of somebody who runs it again."""

    def __init__(self, folder, seed, *, unlisted=frozenset(), deaths=None, **method) -> None:
        manifest = manifest_of(**method)
        self.solo = Solo(manifest, folder, seed, unlisted, deaths or {})
        self.solo.train()
        self.num_reopened = 0
        self.rounds = range(manifest.rounds)
        self.listed = [index for index in self.rounds if index not in unlisted]

    @property
    def layout(self):
        return self.solo.manifest.layout(0)

    def sent(self, index: int) -> Contribution:
        return self.solo.sent[index][-1]

    def traced(self, index: int) -> TraceRoots:
        found = self.sent(index).traced
        assert found is not None
        return found

    def inherited(self, index: int):
        """As the seals tell it: what the last listed one left, or nothing."""
        last, fragment = self.since(index), self.layout.fragment_of(index)
        if last >= index or last not in self.listed:
            return (NOTHING,)
        residual = EMPTY_ROOT
        for one in self.listed:
            if one < index and self.traced(one).before == EMPTY_ROOT:
                residual = EMPTY_ROOT  # It began anew: of all fragments.
            if one < index and self.layout.fragment_of(one) == fragment:
                residual = self.sent(one).residual_after
        return ((self.traced(last).after, residual), NOTHING)

    def since(self, index: int) -> int:
        """The last listed round before that one."""
        return max((one for one in self.listed if one < index), default=0)

    def work(self, index: int, segment: int) -> bytes:
        """All that an auditor is sent."""
        sent, traces = self.sent(index), self.solo.traces
        root = self.traced(index).trace[min(segment, SEGMENTS)]
        held = traces.find(root)
        assert isinstance(held, StoredCells)
        if not held.is_kept:
            self.num_reopened += 1
            assert reopen(root, traces, self.runs) == root
        if segment < SEGMENTS:
            return b"".join(held)
        of_fragment = WorkKind("weights", self.layout.fragment_of(index))
        found = b"".join(held[cell] for cell in of_fragment.cells(self.layout))
        if sent.residual_before != EMPTY_ROOT:
            found += b"".join(traces.find(sent.residual_before))
        return found

    def ended(self, index: int) -> SegmentState:
        """The last state of a round."""
        found = self.solo.traces.last(index)
        assert found is not None
        return found

    def task(self, index: int, segment: int) -> AuditTask:
        place = SegmentPlace(
            round=index, step=index * STEPS, segment=segment, lease=self.solo.lease_of(index)
        )
        return AuditTask(
            place=place,
            before=self.traced(index).before,
            residual_before=self.sent(index).residual_before,
            inherited=self.inherited(index),
            since=self.since(index),
        )

    def end(self, index: int, segment: int) -> bytes:
        """What its COMMIT says."""
        sent, traced = self.sent(index), self.traced(index)
        if segment + 1 < SEGMENTS:
            return traced.trace[segment + 1]
        if segment + 1 == SEGMENTS:
            return trained_end(traced.trace[-1], traced.after)
        return encoded_end(root_of(sent.payloads), sent.residual_after)

    @property
    def runs(self) -> TorchSegments:
        manifest = self.solo.manifest

        def make():
            model = build_model(manifest)
            return model, make_optimizer(model, manifest.inner)

        return TorchSegments(manifest, make, self.solo.batch)

    def again(self, index: int, segment: int, *, work=None, **changes) -> bytes:
        manifest = self.solo.manifest
        work = self.work(index, segment) if work is None else work
        task = replace(self.task(index, segment), **changes)
        return rerun(manifest, task, work, self.solo.traces.anchor(index), self.runs)


METHODS = (
    {"codec": "none"},
    {"codec": "fp16"},
    {"sam_radius": 0.05},
    {"fragments": 3},
    {"fragments": 2, "codec": "none", "optimizer": "sgd"},
)


@pytest.mark.quick(1)
@pytest.mark.parametrize("method", METHODS)
def test_every_segment_of_every_round_comes_to_the_same_end_again(tmp_path, seed, method):
    trial = Trial(tmp_path, seed, unlisted=frozenset({1}), **method)
    ends = set()
    for index in trial.rounds:
        for segment in range(SEGMENTS + 1):
            assert trial.again(index, segment) == trial.end(index, segment), (index, segment)
            ends.add(trial.end(index, segment))
    assert len(ends) == len(trial.rounds) * (SEGMENTS + 1)
    # Two of four states of a round are made again, and are there from then on.
    assert trial.num_reopened == len(trial.rounds) * 2


def test_frames_of_the_network_process_are_answered_as_what_they_ask_for(tmp_path, seed):
    trial = Trial(tmp_path / "run", seed)
    manifest, traces = trial.solo.manifest, trial.solo.traces
    for segment in (1, SEGMENTS):
        task = trial.task(2, segment)
        frame = Audit(
            number=1,
            path=str(tmp_path / "work"),
            round=2,
            step=task.place.step,
            segment=segment,
            lease=task.place.lease,
            before=task.before,
            residual_before=task.residual_before,
            inherited=task.inherited,
            since=task.since,
        )
        (tmp_path / "work").write_bytes(trial.work(2, segment))
        assert run_audit(manifest, frame, traces, trial.runs) == trial.end(2, segment)
        (tmp_path / "work").unlink()
        assert run_audit(manifest, frame, traces, trial.runs) == b"", "its file is gone"
    for root in (trial.traced(3).trace[1], NO_START):
        expected = root if root != NO_START else b""
        assert run_audit(manifest, Reopen(number=2, root=root), traces, trial.runs) == expected


def test_segments_are_all_steps_once_and_moments_count_them(tmp_path, seed):
    trial = Trial(tmp_path, seed)
    manifest = trial.solo.manifest
    steps = [step for segment in range(SEGMENTS) for step in steps_of_segment(manifest, segment)]
    assert steps == list(range(STEPS))
    for index in range(ROUNDS):
        counts = [
            state_of(trial.layout, trial.work(index, segment)[: state_bytes(trial.layout)]).steps
            for segment in range(SEGMENTS)
        ] + [trial.ended(index).steps]
        assert counts == [index * STEPS + step for step in (0, 1, 3, 5)]


@pytest.mark.quick(3)
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("fragments", [1, 3])
def test_chain_has_no_gap_wherever_a_trainer_dies(tmp_path, seed, moment, listed, fragments):
    unlisted = frozenset() if listed and moment != "forgotten" else frozenset({1})
    deaths = {1: moment, 2: moment}
    trial = Trial(tmp_path, seed, unlisted=unlisted, deaths=deaths, fragments=fragments)
    if moment == "forgotten":
        trial.listed.remove(2)
    assert trial.solo.starts == 3
    for index in trial.solo.sent:
        pair = (trial.traced(index).before, trial.sent(index).residual_before)
        # From the disk nothing is lost, so nobody has to begin anew.
        assert pair == trial.inherited(index)[0], index
        assert trial.again(index, 0) == trial.end(index, 0)
        assert trial.again(index, SEGMENTS) == trial.end(index, SEGMENTS)


@pytest.mark.parametrize("fragments", [1, 3])
def test_chain_has_no_gap_where_the_disk_has_lost_traces_or_states(tmp_path, seed, fragments):
    generator, manifest = random.Random(seed), manifest_of(fragments=fragments)
    for number in range(4):
        folder, rounds = tmp_path / str(number), range(1, manifest.rounds)
        unlisted = frozenset({generator.choice(rounds)})
        deaths = {index: generator.choice(("saving", "sealed", "training")) for index in rounds}
        solo = Solo(manifest, folder, seed, unlisted, deaths)
        trial = Trial.__new__(Trial)
        trial.solo, trial.num_reopened = solo, 0
        trial.listed = [index for index in range(manifest.rounds) if index not in unlisted]
        live = solo.live

        def with_loss(live=live, folder=folder):
            lost = generator.choice(("traces", "states", "nothing"))
            where = {"traces": folder / "traces", "states": folder}.get(lost)
            for path in [] if where is None else sorted(filter(Path.is_file, where.glob("*"))):
                path.unlink()
            return live()

        solo.live = with_loss  # type: ignore[method-assign]
        solo.train()
        for index in solo.sent:
            pair = (trial.traced(index).before, trial.sent(index).residual_before)
            assert pair in trial.inherited(index), (deaths, unlisted, index)
            if has_beginning(solo, index):
                assert trial.again(index, 0) == trial.end(index, 0), (deaths, unlisted, index)


def has_beginning(solo: Solo, index: int) -> bool:
    """Whether what that round began with was not lost."""
    return solo.traces.first(index) is not None and solo.traces.anchor(index) is not None


def test_weights_of_fragments_that_a_round_does_not_sync_are_bound_to_what_was_left(tmp_path, seed):
    trial = Trial(tmp_path, seed, unlisted=frozenset({4}), fragments=3)
    layout, index = trial.layout, 5
    work, anchor_N = trial.work(index, 0), trial.solo.traces.anchor(index)
    assert anchor_N is not None
    state = state_of(layout, work)
    equal = [
        bool(np.array_equal(state.weights_N[span], anchor_N[span]))
        for span in map(layout.fragment_span, range(3))
    ]
    # Rounds 3 and 4 were about fragments 0 and 1; the third goes on as round 3 left it.
    assert equal == [True, True, False]

    def begun_with(fragment: int, weights_N) -> bytes:
        bent_N = state.weights_N.copy()
        bent_N[layout.fragment_span(fragment)] = weights_N
        bent = replace(state, weights_N=bent_N)
        return trial.again(index, 0, work=b"".join(bent.cells(layout)))

    for fragment in range(3):
        span = layout.fragment_span(fragment)
        assert begun_with(fragment, state.weights_N[span] + np.float32(1e-3)) == NO_START
    assert begun_with(2, anchor_N[layout.fragment_span(2)]) not in (NO_START, b"")
    # What was left is none of one's own choice, and no excuse for an anchor that was passed over.
    left = (*state.left[:2], bytes(32))
    other = replace(state, left=left)
    assert trial.again(index, 0, work=b"".join(other.cells(layout))) == NO_START
    assert begun_with(0, trial.ended(3).weights_N[layout.fragment_span(0)]) == NO_START


def test_whatever_is_made_up_comes_to_another_end(tmp_path, seed):
    trial = Trial(tmp_path, seed)
    work, size = trial.work(2, 1), state_bytes(trial.layout)
    bent = bytearray(work)
    bent[0] ^= 1  # The lowest bit of one weight.
    assert trial.again(2, 1, work=bytes(bent)) not in (trial.end(2, 1), NO_START, b"")
    counted = work[: size - 8] + (7).to_bytes(8, "little")
    assert trial.again(2, 1, work=counted) != trial.end(2, 1)
    place = replace(trial.task(2, 1).place, lease=((3, 4),))
    assert trial.again(2, 1, place=place) != trial.end(2, 1), "other samples"
    last = bytearray(trial.work(2, SEGMENTS))
    last[5] ^= 1
    assert trial.again(2, SEGMENTS, work=bytes(last)) != trial.end(2, SEGMENTS)


@pytest.mark.parametrize("error", [AssertionError, IndexError, ZeroDivisionError, RuntimeError])
def test_state_that_the_model_refuses_ends_no_auditor(tmp_path, seed, error):
    """A run's own model may check what passes through it, and a liar chooses what does."""

    class Refusing:
        def run(self, state, place):
            raise error("a loss that is none")

    trial = Trial(tmp_path, seed)
    manifest, traces = trial.solo.manifest, trial.solo.traces
    task, work = trial.task(2, 1), trial.work(2, 1)
    assert rerun(manifest, task, work, traces.anchor(2), Refusing()) == b""


def test_end_that_no_decoder_takes_is_one_that_nobody_can_have_sent(tmp_path, seed, monkeypatch):
    class Refusing:
        def restore(self, residual_N):
            pass

        def encode(self, x_N):
            raise DecodeError("a scale that nobody sends")

    trial = Trial(tmp_path, seed)
    monkeypatch.setattr("training.audits.traces.make_feedback", lambda _: Refusing())
    assert trial.again(2, SEGMENTS) == NO_START


def test_who_begins_with_what_it_cannot_have_had_is_found_out(tmp_path, seed):
    trial = Trial(tmp_path, seed)
    work, size = trial.work(2, 0), state_bytes(trial.layout)
    state = state_of(trial.layout, work)
    anchor = replace(state, weights_N=state.weights_N + np.float32(1e-3))
    assert trial.again(2, 0, work=b"".join(anchor.cells(trial.layout))) == NO_START
    moments = replace(state, moments=(state.moments[0] * 2, state.moments[1]))
    assert trial.again(2, 0, work=b"".join(moments.cells(trial.layout))) == NO_START
    # Both roots fit each other, and not what its last listed COMMIT left.
    other = moments.inner_root(trial.layout)
    assert trial.again(2, 0, work=b"".join(moments.cells(trial.layout)), before=other) == NO_START
    assert trial.again(2, SEGMENTS, before=other) == NO_START
    for segment in (0, SEGMENTS):
        assert trial.again(2, segment, inherited=()) == b"", "nobody here knows"
    nan = np.full_like(state.weights_N, np.nan)
    for broken in (replace(state, weights_N=nan), replace(state, moments=(nan, nan))):
        assert trial.again(2, 1, work=b"".join(broken.cells(trial.layout))) == NO_START
    for garbage in (b"", work[:-1], work + b"x", work[: size - 8] + b"\xff" * 8):
        assert trial.again(2, 1, work=garbage) == NO_START


def test_auditor_that_lacks_the_anchor_says_nothing_of_what_needs_it(tmp_path, seed):
    trial = Trial(tmp_path, seed)
    first, second, size = trial.work(2, 0), trial.work(2, 1), state_bytes(trial.layout)
    (tmp_path / "traces" / "round-000002.trace").unlink()
    trial.work = lambda index, segment: b""  # type: ignore[method-assign]
    assert trial.again(2, 0, work=first[:size]) == b""
    assert trial.again(2, 1, work=second) == trial.end(2, 1)
