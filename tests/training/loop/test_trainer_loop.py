"""The trainer's loop over a channel whose other end has said everything beforehand."""

import os
import time
from dataclasses import astuple, replace
from typing import cast

import numpy as np
import pytest
import torch

from protocol.errors import ConfigError, StateError, TrainerError
from protocol.grid import EMPTY_ROOT
from tests.training.disk_run import write_run
from tests.training.replicas import INNER
from training.channel.exchange import RunClock, RunStart, TrainerTimes
from training.channel.frames import (
    FROM_TRAINER,
    AnchorRead,
    Contributed,
    Deliver,
    FrameReader,
    FromTrainer,
    Progress,
    Ready,
    Start,
    Validation,
    pack_frame,
)
from training.channel.trainer_end import ChannelExchange, ChannelFile, ControlPipe, channel_spec
from training.data.corpus import open_corpus
from training.loop.idle_validation import VALIDATION_WINDOWS, anchor_loss
from training.loop.trainer_loop import TrainerOptions, _run_start, train
from training.models.building import build_model, read_fragment
from training.models.genesis import genesis_weights

STEPS, SAMPLES = INNER.inner_steps, INNER.inner_steps * INNER.batch


class Told:
    """Runs `train` in this thread; the frames to it already lie in the pipe."""

    def __init__(self, folder):
        self.run = write_run(folder)
        self.anchor = genesis_weights(self.run)[0]
        self.file = ChannelFile.create(folder / "a.channel", channel_spec(self.run, 0))
        self.frames: list[FromTrainer] = []
        self.options = TrainerOptions(device="cpu")

    def train(self, *frames):
        self.file.write_anchor(0, self.anchor)
        (read_fd, to_trainer), (from_trainer, write_fd) = os.pipe(), os.pipe()
        os.write(to_trainer, b"".join(map(pack_frame, frames)))
        os.close(to_trainer)  # Who waits for more is told that nobody is there.
        exchange = ChannelExchange(self.file, ControlPipe(read_fd, write_fd))
        try:
            train(self.run, exchange, self.options)
        finally:
            os.close(write_fd)
            reader = FrameReader(FROM_TRAINER)
            while data := os.read(from_trainer, 65536):
                self.frames += reader.feed(data)
            os.close(from_trainer)
            self.file.close()

    def of(self, kind):
        return [frame for frame in self.frames if isinstance(frame, kind)]


def clock(rounds):
    return RunClock(round=rounds, step=100 * rounds, tokens=0)


def start(lease=((0, SAMPLES),), *, rounds=0, listed=False, validate=False):
    sealed = (rounds - 1,) if listed else ()
    return Start(clock=clock(rounds), lease=lease, listed=sealed, validate=validate)


def deliver(sequence, lease, *, validate=False):
    return Deliver(
        sequence=sequence, listed=True, clock=clock(sequence + 1), lease=lease, validate=validate
    )


@pytest.fixture
def told(tmp_path) -> Told:
    return Told(tmp_path)


def test_the_loop_trains_each_lease_and_ends_with_the_empty_one(told):
    told.train(start(), deliver(0, ((50, 50 + SAMPLES),)), deliver(1, ()))

    assert told.frames[0] == Ready(
        threads=torch.get_num_threads(),
        parameters=len(told.anchor),
        device="cpu",
        precision="float32",
        micro_batch=INNER.batch,
    )
    assert [(c.sequence, c.steps, c.samples) for c in told.of(Contributed)] == [
        (0, STEPS, SAMPLES),
        (1, STEPS, SAMPLES),
    ]
    # Steps are counted from the sealed clock, not from what this node has done.
    assert [p.step for p in told.of(Progress)] == [*range(STEPS), *range(100, 100 + STEPS)]
    assert told.of(Validation) == []


def test_the_loop_begins_with_all_that_the_start_says():
    class Opened:
        anchors = ()

        def opening(self):
            return Start(clock=clock(3), lease=((0, 9),), since=2, listed=(2,), members=5)

    begun = _run_start(cast("ChannelExchange", Opened()))
    expected = RunStart(
        anchors=(), clock=clock(3), lease=((0, 9),), since=2, listed=(2,), members=5
    )
    assert begun == expected


def test_a_lease_in_pieces_is_the_same_as_one_of_the_same_samples(told, tmp_path):
    (tmp_path / "other").mkdir()
    other = Told(tmp_path / "other")
    told.train(start(), deliver(0, ()))
    other.train(start(((0, 7), (7, SAMPLES))), deliver(0, ()))

    assert [p.loss for p in told.of(Progress)] == [p.loss for p in other.of(Progress)]


def test_last_anchor_is_measured_over_all_windows_when_nothing_is_to_be_trained(told):
    """Without a share of the time no other is."""
    told.train(start(validate=True), deliver(0, ((0, SAMPLES),)), deliver(1, (), validate=True))

    held_out = open_corpus(told.run.corpus).held_out_windows(VALIDATION_WINDOWS, 8)
    loss = anchor_loss(build_model(told.run), told.run.shards[0], [told.anchor], held_out)
    count = len(held_out)
    assert told.of(Validation) == [
        Validation(round=2, loss=loss, windows=count, of_windows=count),
    ]
    assert type(told.frames[-1]) is Validation


def test_no_round_is_measured_before_its_contribution_and_training_has_the_same_bits(
    told, tmp_path
):
    """An anchor is measured in the wait behind the hand-over."""
    (tmp_path / "other").mkdir()
    other = Told(tmp_path / "other")
    told.options = replace(told.options, validation_share=1.0)
    frames = (
        start(validate=True),
        deliver(0, ((50, 50 + SAMPLES),), validate=True),
        deliver(1, (), validate=True),
    )
    told.train(*frames)
    other.train(*frames)

    kinds = [type(frame) for frame in told.frames if not isinstance(frame, Progress)]
    assert kinds[:3] == [Ready, Contributed, AnchorRead]
    assert kinds.index(Validation) > kinds.index(AnchorRead)
    last = told.of(Validation)[-1]
    assert (last.round, last.windows) == (2, last.of_windows)
    assert told.of(Contributed)[-1].times.validate_s > 0.0
    assert [p.loss for p in told.of(Progress)] == [p.loss for p in other.of(Progress)]
    assert payloads_of(told, told.of(Contributed)[-1]) == payloads_of(
        other, other.of(Contributed)[-1]
    )


def test_contribution_says_where_its_time_went_and_nothing_is_left_out(told, tmp_path):
    told.options = replace(told.options, inner_folder=tmp_path / "inner")
    began_s = time.monotonic()
    told.train(start(), deliver(0, ((50, 50 + SAMPLES),)), deliver(1, ()))
    took_s = time.monotonic() - began_s

    first, second = (c.times for c in told.of(Contributed))
    for times in (first, second):
        assert min(times.train_s, times.encode_s, times.save_s, times.take_s) > 0.0
    assert second.wait_s > 0.0
    assert sum(astuple(first)) + sum(astuple(second)) <= took_s


def test_measuring_an_anchor_leaves_the_working_weights(told):
    model = build_model(told.run)
    before = read_fragment(model, told.run.shards[0], 0)
    held_out = open_corpus(told.run.corpus).held_out_windows(4, 8)
    anchor_loss(model, told.run.shards[0], [told.anchor * 0], held_out)

    assert np.array_equal(read_fragment(model, told.run.shards[0], 0), before)


def test_a_lease_that_is_too_short_is_refused(told):
    told.run = replace(told.run, inner=replace(told.run.inner, equal_steps=True))
    with pytest.raises(TrainerError, match=f"{SAMPLES} are needed"):
        told.train(start(((0, SAMPLES - 1),)))


def test_weights_that_are_no_longer_finite_end_the_loop(told):
    told.anchor = told.anchor * np.float32(np.nan)

    with pytest.raises(StateError, match="diverged"):
        told.train(start())


def test_a_device_that_is_not_there_is_said_before_anything_else(told):
    told.options = TrainerOptions(device="cuda:999")

    with pytest.raises(ConfigError, match="--device cuda:999"):
        told.train(start())
    assert told.frames == []


@pytest.fixture
def lives(tmp_path):
    """Makes one trainer after the other, with one folder for what they keep."""

    def life():
        number = sum(1 for _ in tmp_path.iterdir())
        folder = tmp_path / f"life-{number}"
        folder.mkdir()
        told = Told(folder)
        told.options = TrainerOptions(device="cpu", inner_folder=tmp_path / "life-0-inner")
        return told

    return life


def died_waiting(told, *frames):
    with pytest.raises(TrainerError, match="gone"):
        told.train(*frames)
    contributed = told.of(Contributed)[-1]
    return untimed(contributed), payloads_of(told, contributed)


def untimed(contributed):
    """What is the same however long it took."""
    return replace(contributed, times=TrainerTimes())


def payloads_of(told, contributed):
    with ChannelFile.open(told.file.path, told.file.spec) as file:
        return file.read_payloads(contributed.sequence, contributed.lengths)


def test_a_trainer_that_starts_anew_in_its_round_sends_the_same_without_training(lives):
    before = died_waiting(lives(), start())
    again = lives()
    again.train(start(), deliver(0, ()))

    assert [type(frame) for frame in again.frames] == [Ready, Contributed]
    (contributed,) = again.of(Contributed)
    assert (untimed(contributed), payloads_of(again, contributed)) == before


def test_a_trainer_that_was_resumed_goes_on_training(lives):
    died_waiting(lives(), start())
    again = lives()
    again.train(start(), deliver(0, ((50, 50 + SAMPLES),)), deliver(1, ()))

    first, second = again.of(Contributed)
    assert [p.step for p in again.of(Progress)] == [*range(100, 100 + STEPS)]
    assert second.residual_before == first.residual_after
    assert (second.sequence, second.steps, second.samples) == (1, STEPS, SAMPLES)


@pytest.mark.parametrize("listed", [True, False])
def test_a_trainer_that_starts_anew_in_the_next_round_is_told_which_residual_is_right(
    lives, listed
):
    (before, _) = died_waiting(lives(), start())
    again = lives()
    again.train(start(rounds=1, listed=listed), deliver(0, ()))

    (contributed,) = again.of(Contributed)
    assert before.residual_after != before.residual_before == EMPTY_ROOT
    expected = before.residual_after if listed else before.residual_before
    assert contributed.residual_before == expected
    assert contributed.steps == STEPS


def test_a_trainer_without_a_folder_keeps_nothing(told, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    told.train(start(), deliver(0, ()))

    assert sorted(tmp_path.rglob("*")) == before


def test_payloads_are_encoded_to_where_the_network_process_reads_them(told, monkeypatch) -> None:
    copied = []

    def write(channel, place, payloads):
        start = channel.payload_memory(place).ctypes.data
        for payload in payloads:
            found = np.frombuffer(payload, np.uint8).ctypes.data
            copied.append(found != start)
            start += len(payload)
        return whole(channel, place, payloads)

    whole = ChannelFile.write_payloads
    monkeypatch.setattr(ChannelFile, "write_payloads", write)
    told.train(start(), deliver(0, ((50, 50 + SAMPLES),)), deliver(1, ()))
    assert copied
    assert not any(copied)
