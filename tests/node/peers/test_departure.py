"""Leaving: the first signal is a wish, the second one and the clock are orders."""

import os
import signal
import threading

import pytest
import trio
import trio.testing

from node.peers import departure as departures
from node.peers.departure import Departure
from node.processes.interrupts import end_signals, handling

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="sends SIGINT and SIGTERM to itself, as POSIX does"
)


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses with which the process would have ended at once."""
    ended: list[int] = []

    def end_at_once(number: int, frame: object = None) -> None:
        ended.append(128 + number)
        raise Ended

    monkeypatch.setattr(departures, "end_at_once", end_at_once)
    return ended


def send(number: int = signal.SIGINT) -> None:
    """The signal, in Python's hands when this returns."""
    signal.raise_signal(number)


def test_signal_before_the_node_runs_ends_the_process_at_once(ends: list[int]) -> None:
    departure = Departure()
    with departure.handling_signals(), pytest.raises(Ended):
        send(signal.SIGTERM)
    assert ends == [143]


async def test_first_signal_asks_and_gives_the_status(ends: list[int]) -> None:
    departure = Departure()
    with departure.handling_signals():
        departure.begin()
        assert (departure.asked.is_set(), departure.status) == (False, 0)
        send()
        with trio.fail_after(5.0):
            await departure.asked.wait()
        assert (departure.asked.is_set(), departure.status) == (True, 130)
        assert (departure.signal_name, ends) == ("SIGINT", [])
        departure.done()


async def test_second_signal_ends_the_process_at_once(ends: list[int]) -> None:
    departure = Departure()
    with departure.handling_signals():
        departure.begin()
        send()
        with pytest.raises(Ended):
            send(signal.SIGTERM)
        departure.done()
    assert ends == [143]


async def test_leaving_that_takes_too_long_ends_the_process() -> None:
    expired = threading.Event()
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        expired.set()

    departure = Departure(leave_s_max=0.0, end=end)
    with departure.handling_signals():
        departure.begin()
        send(signal.SIGTERM)
        assert expired.wait(5.0)
    assert statuses == [143]


async def test_leaving_in_time_stops_the_clock() -> None:
    departure = Departure(end=lambda _: pytest.fail("it was in time"))
    departure.ask()
    with trio.fail_after(5.0):
        await departure.asked.wait()
    assert departure.status == 0
    departure.done()
    assert departure._watchdog is not None
    departure._watchdog.join(5.0)
    assert not departure._watchdog.is_alive()


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(one) for one in end_signals()]
    with Departure().handling_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(one) for one in end_signals()] == before


def test_interrupts_may_be_left_to_a_parent() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Departure().handling_signals(but_interrupts=True):
        assert signal.getsignal(signal.SIGINT) is before
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_closed_terminal_ends_a_node_but_not_one_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may be under nohup, too.
    try:
        assert signal.SIGHUP in end_signals()
        with handling(signal.SIG_IGN):  # type: ignore[arg-type]  # not a function, and allowed
            assert signal.SIGHUP not in end_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_clock_stands_still_while_the_node_stays_and_runs_anew_when_it_goes() -> None:
    ended = threading.Event()
    departure = Departure(leave_s_max=0.02, end=lambda _: ended.set())
    departure.ask()
    departure.stay()
    assert not departure.going.is_set()
    assert not ended.wait(0.1)
    departure.go()
    with trio.fail_after(5.0):
        await departure.going.wait()
    assert ended.wait(5.0)


async def test_second_signal_ends_a_node_that_stays(ends: list[int]) -> None:
    departure = Departure()
    with departure.handling_signals():
        departure.begin()
        send()
        departure.stay()
        with pytest.raises(Ended):
            send()
        departure.done()
    assert ends == [130]
