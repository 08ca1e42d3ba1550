"""Backup workers: how many contributions of a round are worth waiting for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from sim.methods.backup import BackupWorkers

PEERS, RATE = 8, 0.1


def told(*, length2: float, spread: float, curvature: float, came_s: list[float]) -> BackupWorkers:
    """After rounds that all were so: of each the loss falls as far as such a curvature lets it."""
    chooser, loss = BackupWorkers(PEERS, learning_rate=RATE), 100.0
    for _ in range(30):
        chooser.arrived(came_s)
        mean2 = length2 + spread / PEERS
        chooser.stepped(mean2, spread, PEERS, loss)
        loss -= RATE * length2 - curvature * RATE**2 / 2 * mean2
    return chooser


def test_all_at_one_time_are_all_waited_for() -> None:
    chooser = told(length2=1.0, spread=4.0, curvature=5.0, came_s=[2.0] * PEERS)
    assert chooser.choose() == PEERS


def test_of_contributions_that_are_alike_the_first_is_enough() -> None:
    chooser = told(length2=1.0, spread=0.0, curvature=5.0, came_s=[float(k) for k in range(1, 9)])
    assert chooser.choose() == 1


def test_chosen_number_is_that_of_the_formula() -> None:
    came_s = [1.0, 1.2, 1.4, 1.7, 2.1, 2.8, 4.0, 9.0]
    length2, spread, curvature = 1.0, 6.0, 10.0
    chooser = told(length2=length2, spread=spread, curvature=curvature, came_s=came_s)
    gains = [
        RATE * length2 - curvature * RATE**2 / 2 * (length2 + spread / k)
        for k in range(1, PEERS + 1)
    ]
    assert [chooser.gain(k + 1) for k in range(PEERS)] == pytest.approx(
        [max(0.0, gain) for gain in gains], abs=1e-9
    )
    worth = [gain / at_s for gain, at_s in zip(gains, came_s, strict=True)]
    assert chooser.choose() == 1 + worth.index(max(worth))
    assert 1 < chooser.choose() < PEERS, "the case is one in which it matters"


def test_nearer_the_goal_more_are_waited_for() -> None:
    came_s = [1.0 + 0.2 * k for k in range(PEERS)]
    far, near = (
        told(length2=length2, spread=6.0, curvature=5.0, came_s=came_s) for length2 in (20.0, 0.5)
    )
    assert far.choose() < near.choose()


def test_without_any_gain_one_more_is_waited_for_than_before() -> None:
    chooser = told(length2=0.0, spread=6.0, curvature=5.0, came_s=[1.0] * PEERS)
    assert [chooser.gain(k) for k in range(1, PEERS + 1)] == [0.0] * PEERS
    chooser.stepped(1.0, 6.0, 3, 50.0)
    assert chooser.choose() == 4


def test_nothing_known_waits_for_half() -> None:
    chooser = BackupWorkers(PEERS, learning_rate=RATE)
    assert chooser.choose() == PEERS // 2
    chooser.arrived([1.0, 2.0])
    assert chooser.choose() == PEERS // 2
    assert BackupWorkers(1, learning_rate=RATE).choose() == 1
    with pytest.raises(ConfigError, match="0 members"):
        BackupWorkers(0, learning_rate=RATE)


@given(st.lists(st.lists(st.floats(0.0, 100.0), max_size=PEERS).map(sorted), max_size=20))
def test_times_never_fall_with_the_number(rounds: list[list[float]]) -> None:
    chooser = BackupWorkers(PEERS, learning_rate=RATE)
    for came_s in rounds:
        chooser.arrived(came_s)
    times = chooser.times()
    assert times == sorted(times)
    assert len(times) == max(map(len, rounds), default=0)
    assert 1 <= chooser.choose() <= PEERS
