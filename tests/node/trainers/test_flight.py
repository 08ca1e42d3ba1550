"""How long contributions are in flight, and how much of that is stepped."""

import pytest

from node.trainers.choosing import TrainerWatch


def test_whoever_waits_for_each_outcome_hides_nothing() -> None:
    flight = TrainerWatch()
    for began_s in (0.0, 10.0, 20.0):
        flight.goes_on(began_s)
        flight.handed(began_s + 6.0)
        assert flight.landed(began_s + 9.0) == pytest.approx(3.0)
    assert flight.take() == pytest.approx((9.0, 0.0))
    assert flight.take() is None


def test_steps_while_two_are_in_flight_count_for_both() -> None:
    flight = TrainerWatch()
    flight.goes_on(0.0)
    flight.handed(10.0)
    flight.goes_on(11.0)
    flight.handed(15.0)
    flight.landed(20.0)  # Of ten seconds it stepped four, and then waited.
    assert flight.take() == pytest.approx((10.0, 4.0))
    flight.goes_on(21.0)
    flight.landed(24.0)  # In the midst of its steps.
    assert flight.take() == pytest.approx((9.0, 3.0))
    flight.handed(30.0)
    flight.goes_on(30.0)
    flight.landed(31.0)
    assert flight.take() == pytest.approx((1.0, 1.0))


def test_what_never_stepped_hides_nothing() -> None:
    flight = TrainerWatch()
    flight.handed(5.0)
    flight.landed(7.0)
    assert flight.take() == pytest.approx((2.0, 0.0))
