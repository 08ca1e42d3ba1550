"""Learned deadlines."""

import pytest

from protocol.rounds.lapses import (
    GROWTH,
    GROWTH_STEPS_MAX,
    MARGIN,
    SAMPLES_KEPT,
    LearnedDeadline,
)


def learned(*durations_s: float, floor_s: float = 1.0, cap_s: float = 10.0) -> float:
    deadline = LearnedDeadline(floor_s=floor_s, cap_s=cap_s)
    for duration_s in durations_s:
        deadline.observe(duration_s)
        deadline.round_ended()
    return deadline.seconds()


@pytest.mark.parametrize(
    ("durations_s", "expected_s"),
    [
        ((), 1.0),
        ((0.1,), 1.0),
        ((2.0,), 4.0),
        ((6.0,), 10.0),
        # Of two the longer: a founder's first round takes no time.
        ((0.0, 3.0), 6.0),
        ((0.0, 0.0, 3.0), 1.0),
        # One of ten that is very late moves nothing; two of ten do.
        ((2.0,) * 9 + (5.0,), 4.0),
        ((2.0,) * 8 + (4.0, 4.0), 8.0),
    ],
)
def test_deadline_is_a_quantile_with_a_margin_between_floor_and_cap(durations_s, expected_s):
    assert learned(*durations_s) == expected_s
    assert learned(*reversed(durations_s)) == expected_s


def test_deadline_forgets_what_is_long_past():
    assert learned(*[4.0] * 10, *[1.0] * SAMPLES_KEPT) == MARGIN


def test_deadline_becomes_longer_at_once_and_shorter_with_the_next_round():
    """Else all that is due later in an attempt is due at once, and who owes it is named."""
    deadline = LearnedDeadline(floor_s=1.0, cap_s=10.0)
    deadline.observe(3.0)
    assert deadline.seconds() == 6.0
    deadline.observe(0.0)
    deadline.observe(0.0)
    assert deadline.seconds() == 6.0
    deadline.round_ended()
    assert deadline.seconds() == 1.0


def test_deadline_grows_per_time_out_beyond_the_cap_but_not_for_ever():
    deadline = LearnedDeadline(floor_s=1.0, cap_s=1.0)
    assert deadline.seconds(3) == pytest.approx(GROWTH**3)
    assert deadline.seconds(1000) == pytest.approx(GROWTH**GROWTH_STEPS_MAX)
