"""Where the time of a round went, from what both processes of a node saw of it."""

import pytest

from node.status.records import PHASES, PhaseTimes
from node.trainers.choosing import PhaseTimer
from training.channel.exchange import TrainerTimes


def total_s(times: PhaseTimes) -> float:
    seconds: list[float] = [getattr(times, f"{phase}_s") for phase in PHASES]
    return sum(seconds)


def timer_behind(handed_s: float) -> PhaseTimer:
    """One that has heard of a contribution."""
    timer = PhaseTimer()
    timer.begun(handed_s - 7.0)
    timer.handed(handed_s, 10, TrainerTimes(train_s=7.0))
    return timer


def test_a_round_is_parted_by_what_the_trainer_did_and_what_it_waited_for() -> None:
    timer = timer_behind(100.0)
    timer.committed(101.0)
    timer.results_here(112.0)
    timer.told(115.0, others_s=104.0, num_members=3)
    told = TrainerTimes(train_s=80.0, encode_s=3.0, save_s=2.0, take_s=1.0, wait_s=15.0)
    times = timer.handed(201.0, 40, told)
    assert times == PhaseTimes(
        steps=40,
        round_s=101.0,
        train_s=80.0,
        encode_s=3.0 + 1.0,
        save_s=2.0,
        wait_s=3.0,
        exchange_s=8.0,
        seal_s=1.0 + 3.0,
    )
    assert total_s(times) == times.round_s
    assert times.step_s == 2.0
    assert times.share("train") == pytest.approx(80.0 / 101.0)


def test_while_it_validates_it_waits_for_nobody() -> None:
    """It validates first: what is left of the wait is its end."""
    timer = timer_behind(100.0)
    timer.committed(101.0)
    timer.results_here(112.0)
    timer.told(115.0, others_s=104.0, num_members=3)
    told = TrainerTimes(train_s=80.0, validate_s=10.0, wait_s=5.0)
    times = timer.handed(195.0, 40, told)
    assert times is not None
    assert (times.validate_s, times.encode_s, times.wait_s) == (10.0, 0.0, 0.0)
    assert (times.exchange_s, times.seal_s) == (2.0, 3.0)
    assert total_s(times) == times.round_s


def test_marks_of_another_round_or_none_take_nothing_that_was_not_waited() -> None:
    timer = timer_behind(100.0)
    timer.told(110.0, others_s=None, num_members=1)
    alone = timer.handed(190.0, 40, TrainerTimes(train_s=80.0, wait_s=10.0))
    assert alone is not None
    assert (alone.wait_s, alone.exchange_s, alone.seal_s) == (0.0, 10.0, 0.0)
    timer.committed(191.0)
    timer.results_here(50.0)
    timer.told(195.0, others_s=300.0, num_members=3)
    odd = timer.handed(275.0, 40, TrainerTimes(train_s=80.0, wait_s=5.0))
    assert odd is not None
    assert (odd.encode_s, odd.wait_s, odd.exchange_s, odd.seal_s) == (1.0, 4.0, 0.0, 0.0)
    assert total_s(odd) == odd.round_s


def test_what_nobody_measured_is_missing_in_the_sum_and_not_in_the_round() -> None:
    timer = timer_behind(100.0)
    timer.told(100.0, others_s=None, num_members=1)
    times = timer.handed(150.0, 10, TrainerTimes(train_s=20.0))
    assert times is not None
    assert (times.round_s, total_s(times)) == (50.0, 20.0)


def test_first_round_counts_from_the_beginning_and_none_without_one() -> None:
    timer = PhaseTimer()
    assert timer.handed(9.0, 1, TrainerTimes(train_s=9.0)) is None
    timer = PhaseTimer()
    timer.begun(2.0)
    times = timer.handed(9.0, 5, TrainerTimes(train_s=7.0))
    assert times == PhaseTimes(steps=5, round_s=7.0, train_s=7.0)


def test_rounds_add_up() -> None:
    one = PhaseTimes(steps=10, round_s=10.0, train_s=8.0, wait_s=2.0)
    both = one + PhaseTimes(steps=5, round_s=5.0, train_s=4.0, seal_s=1.0)
    assert both == PhaseTimes(steps=15, round_s=15.0, train_s=12.0, wait_s=2.0, seal_s=1.0)
    assert PhaseTimes().step_s is None
    assert PhaseTimes().share("train") == 0.0


def test_where_no_other_member_came_there_was_no_exchange_but_a_wait() -> None:
    timer = timer_behind(100.0)
    timer.results_here(108.0)
    timer.told(110.0, others_s=None, num_members=2)
    times = timer.handed(190.0, 40, TrainerTimes(train_s=80.0, wait_s=10.0))
    assert times is not None
    assert (times.wait_s, times.exchange_s, times.seal_s) == (8.0, 0.0, 2.0)
