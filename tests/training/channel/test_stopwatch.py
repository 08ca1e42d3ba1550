"""Where the time of a trainer goes."""

from dataclasses import astuple

import pytest

from training.channel.exchange import Stopwatch, TrainerTimes


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


def test_each_moment_counts_for_one_phase_and_the_sum_is_what_passed() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.passes(5.0)
    with watch.within("encode"):
        clock.passes(1.0)
        with watch.within("save"):
            clock.passes(2.0)
        clock.passes(0.5)
    with watch.within("wait"):
        clock.passes(3.0)
        with watch.within("audit"):
            clock.passes(4.0)
        clock.passes(0.25)
    clock.passes(0.125)
    times = watch.take()
    assert times == TrainerTimes(train_s=5.125, encode_s=1.5, save_s=2.0, wait_s=3.25, audit_s=4.0)
    assert sum(astuple(times)) == clock() - 100.0
    assert watch.take() == TrainerTimes()


def test_taken_in_the_midst_of_a_phase_the_rest_of_it_is_of_the_next_round() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.within("encode"):
        clock.passes(1.0)
        assert watch.take().encode_s == 1.0
        clock.passes(2.0)
    assert watch.take() == TrainerTimes(encode_s=2.0)


def test_phase_that_fails_ends_too() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fails() -> None:
        with watch.within("save"):
            clock.passes(1.0)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fails()
    clock.passes(2.0)
    assert watch.take() == TrainerTimes(save_s=1.0, train_s=2.0)


def test_beginning_counts_as_what_it_is_said_to_be() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.passes(2.0)
    with watch.within("save"):
        clock.passes(1.0)
    watch.count_as("take")
    clock.passes(4.0)
    assert watch.take() == TrainerTimes(take_s=3.0, train_s=4.0)
