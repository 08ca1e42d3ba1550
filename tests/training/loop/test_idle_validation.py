"""Anchors are measured while a trainer has nothing to do, for a share of its time."""

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.channel.test_stopwatch import Clock
from training.channel.exchange import Stopwatch
from training.channel.frames import Validation
from training.device.device import open_device
from training.device.inner import MicroBatch
from training.loop.idle_validation import (
    WINDOWS_LEAST,
    HeldOut,
    IdleValidator,
    anchor_loss,
    spread_order,
)
from training.models.building import read_fragment

if TYPE_CHECKING:
    from training.channel.trainer_end import ChannelExchange

WINDOW_S = 0.5
COUNT = 128


class Slow(nn.Module):
    """Predicts the next byte by its weights alone; each window that it sees takes half a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.seen, self.window_s = clock, 0, WINDOW_S
        self.logits = nn.Parameter(torch.zeros(256))

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        self.clock.passes(self.window_s * len(windows))
        self.seen += len(windows)
        return self.logits.expand(*windows.shape, 256)


class Scene:
    """A validator of a model of one tensor; what it tells, and what its exchange asks."""

    def __init__(
        self, share: float, *, is_ahead: bool = False, goes_on: tuple[int, ...] = (0,)
    ) -> None:
        self.is_ahead = is_ahead
        self.clock = Clock()
        self.model = Slow(self.clock)
        self.asked: int | None = None
        self.told: list[Validation] = []
        self.anchors = (np.linspace(-1.0, 1.0, 256, dtype=np.float32),)
        shard = cast("Any", _Shard())
        windows_BW = np.arange(COUNT, dtype=np.uint8)[:, None].repeat(3, axis=1)
        self.held_out = HeldOut(self.model, shard, MicroBatch(open_device("cpu"), 64), windows_BW)
        self.watch = Stopwatch(self.clock)
        exchange = cast("ChannelExchange", self)
        self.validator = IdleValidator(
            exchange,
            self.held_out,
            self.watch,
            share=share,
            goes_on=lambda: goes_on,
            now_s=self.clock,
        )

    def take_validation(self) -> int | None:
        asked, self.asked = self.asked, None
        return asked

    def send(self, frame: Validation) -> None:
        self.told.append(frame)

    def round(
        self, number: int, train_s: float, pieces: int = 10_000, *, alone: bool = False
    ) -> bool:
        """Train, hand over, and wait for so many pieces; whether anything was measured."""
        self.clock.passes(train_s)
        self.asked = number
        if not self.validator.is_due():
            return False
        self.validator.begin()
        while pieces and self.validator.go_on():
            pieces -= 1
        self.validator.end(is_alone=alone, is_ahead=self.is_ahead)
        return True


class _Tensor:
    name, numel, shape = "logits", 256, (256,)


class _Shard:
    tensors, fragments = (_Tensor(),), ((0,),)


def spent_s(scene: Scene) -> float:
    return scene.model.seen * WINDOW_S


def test_validation_takes_its_share_of_the_time_in_the_long_run() -> None:
    scene = Scene(0.01)
    for number in range(400):
        scene.round(number, 100.0)
    assert 0.005 * 400 * 100.0 < spent_s(scene) <= 0.01 * scene.clock.now_s
    assert len(scene.told) > 10
    assert all(one.windows >= WINDOWS_LEAST for one in scene.told)
    assert all(one.of_windows == COUNT for one in scene.told)


def test_time_for_more_than_a_whole_measurement_is_not_saved() -> None:
    scene = Scene(0.01)
    for number in range(2):
        scene.round(number, 1e6)
    before = scene.model.seen
    assert scene.told[-1].windows == COUNT
    scene.clock.passes(1e6)
    scene.validator.is_due()
    for number in range(10):
        scene.round(number, 0.5)
    assert scene.model.seen - before == COUNT


def test_it_is_given_up_when_the_next_round_is_there_and_says_over_how_many_windows() -> None:
    scene = Scene(1.0)
    assert scene.round(7, 1000.0, pieces=20)
    (told,) = scene.told
    assert (told.round, told.of_windows) == (7, COUNT)
    # A piece is a single window here, for a window takes longer than a piece may.
    assert told.windows == 20 == scene.model.seen
    first = scene.held_out.windows_BW[spread_order(COUNT)[:20]]
    expected = anchor_loss(scene.model, scene.held_out.shard, scene.anchors, first)
    assert told.loss == pytest.approx(expected, rel=1e-6)


def test_loss_over_too_few_windows_is_not_told() -> None:
    scene = Scene(1.0)
    assert scene.round(7, 1000.0, pieces=WINDOWS_LEAST - 1)
    assert scene.told == []
    assert scene.round(8, 1000.0, pieces=WINDOWS_LEAST)
    assert [(one.round, one.windows) for one in scene.told] == [(8, WINDOWS_LEAST)]


def test_windows_that_take_longer_than_the_last_ones_are_completed_and_paid_for_later() -> None:
    scene = Scene(0.01)
    assert scene.round(1, 1000.0)
    scene.model.window_s = 1.5 * WINDOW_S
    assert scene.round(2, 1.01 * WINDOWS_LEAST * WINDOW_S * 100.0)
    assert [one.windows for one in scene.told] == [20, WINDOWS_LEAST]
    # Half as much as it earned is owed, and comes on top of what the next one needs.
    assert not scene.round(3, 1.9 * WINDOWS_LEAST * WINDOW_S * 100.0)
    assert scene.round(4, 0.2 * WINDOWS_LEAST * WINDOW_S * 100.0)


def test_first_measurement_is_completed_whatever_it_takes_and_paid_for_later() -> None:
    scene = Scene(0.01)
    assert scene.round(1, 100.0)
    assert [one.windows for one in scene.told] == [WINDOWS_LEAST]
    assert not scene.round(2, 1400.0)
    assert scene.round(3, 200.0)


def test_first_measurement_makes_no_round_wait_for_more_than_was_earned() -> None:
    scene = Scene(0.01, is_ahead=True)
    assert scene.round(1, 100.0, pieces=0)
    assert spent_s(scene) == 1.0
    assert scene.told == []


def test_whoever_is_alone_goes_on_within_what_was_saved() -> None:
    scene = Scene(0.1)
    assert scene.round(1, 100.0, pieces=0, alone=True)
    assert scene.told[0].windows == 20
    other = Scene(0.1)
    assert other.round(1, 100.0, pieces=0)
    assert other.told == []


def test_with_two_rounds_in_flight_a_few_windows_are_measured_though_nobody_waits() -> None:
    scene = Scene(0.1, is_ahead=True)
    assert scene.round(4, 1000.0, pieces=0)
    assert [one.windows for one in scene.told] == [WINDOWS_LEAST]
    assert spent_s(scene) == WINDOWS_LEAST * WINDOW_S


def test_working_weights_are_what_they_were_to_the_bit_and_the_anchors_were_measured() -> None:
    scene = Scene(1.0)
    with torch.no_grad():
        scene.model.logits.normal_(generator=torch.Generator().manual_seed(3))
    scene.model.logits.grad = torch.ones(256)
    before = read_fragment(scene.model, scene.held_out.shard, 0)
    assert scene.round(1, 1000.0)
    assert read_fragment(scene.model, scene.held_out.shard, 0).tobytes() == before.tobytes()
    assert scene.model.training
    whole = anchor_loss(scene.model, scene.held_out.shard, scene.anchors, scene.held_out.windows_BW)
    assert scene.told[0].windows == COUNT
    assert scene.told[0].loss == pytest.approx(whole, rel=1e-6)


def test_of_weights_that_the_outcome_replaces_no_copy_is_kept() -> None:
    scene = Scene(1.0, goes_on=())
    with torch.no_grad():
        scene.model.logits.fill_(5.0)
    assert scene.round(1, 1000.0)
    left_N = read_fragment(scene.model, scene.held_out.shard, 0)
    assert left_N.tobytes() == scene.anchors[0].tobytes()
    assert scene.told[0].windows == COUNT


def test_nothing_is_measured_that_was_not_asked_for_or_without_a_share() -> None:
    scene = Scene(1.0)
    scene.clock.passes(10.0)
    assert not scene.validator.is_due()
    nothing = Scene(0.0)
    assert not nothing.round(1, 1e6)
    nothing.asked = 9
    nothing.validator.measure_last()
    assert [(one.round, one.windows) for one in nothing.told] == [(9, COUNT)]


def test_what_it_takes_counts_as_validation() -> None:
    scene = Scene(1.0)
    with scene.watch.within("wait"):
        scene.round(1, 10.0)
    times = scene.watch.take()
    assert times.validate_s == spent_s(scene)
    assert times.wait_s == 10.0


@pytest.mark.parametrize("count", [1, 2, 5, 100, 128])
def test_first_windows_are_spread_over_all_of_the_text(count: int) -> None:
    order = spread_order(count)
    assert sorted(order) == list(range(count))
    if count >= 16:
        gaps = np.diff(sorted([*order[: count // 8], count]))
        assert gaps.max() <= 16


def test_what_is_given_up_is_not_told() -> None:
    scene = Scene(1.0)
    scene.clock.passes(100.0)
    scene.asked = 0
    assert scene.validator.is_due()
    scene.validator.begin()
    for _ in range(WINDOWS_LEAST):
        scene.validator.go_on()
    scene.validator.give_up()
    assert scene.told == []
