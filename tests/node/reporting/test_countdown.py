"""Waiting in front of a person: why, for how long, and how to end it."""

import io

import pytest
import trio

from node.reporting.people import PAUSE_FIRST_S, PAUSE_MAX_S, Countdown
from node.status.board import EventLog, Field
from node.text.terminal import PeopleConsole


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Field]]] = []

    def emit(self, event: str, **fields: Field) -> None:
        self.told.append((event, fields))


async def said_in(num: int, *, is_terminal: bool) -> tuple[str, float, Events]:
    """What is printed in so many pauses for one reason, and how long they take."""
    out, events = io.StringIO(), Events()
    console = PeopleConsole(
        file=out,
        width=80,
        force_terminal=is_terminal,
        soft_wrap=True,
    )
    countdown = Countdown(console, EventLog(None, 0.0, also=(events,)))
    started_s = trio.current_time()
    for _ in range(num):
        await countdown.pause("no peer answered: [/ip4/203.0.113.1]")
    return out.getvalue(), trio.current_time() - started_s, events


async def test_pauses_grow_to_half_a_minute_and_the_reason_is_said_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    said, took_s, events = await said_in(5, is_terminal=False)
    pauses = [PAUSE_FIRST_S, 10, 20, PAUSE_MAX_S, PAUSE_MAX_S]
    assert took_s == pytest.approx(sum(pauses))
    assert said.splitlines() == [
        "no peer answered: [/ip4/203.0.113.1]",
        *(f"tries again in {pause_s} s; Ctrl+C ends" for pause_s in pauses),
    ]
    assert [fields["again_s"] for _, fields in events.told] == pauses
    assert {name for name, _ in events.told} == {"waiting"}


async def test_a_terminal_sees_the_seconds_go_by_in_one_line(
    autojump_clock: trio.abc.Clock,
) -> None:
    said, took_s, _ = await said_in(1, is_terminal=True)
    assert took_s == pytest.approx(PAUSE_FIRST_S)
    counted = [f"tries again in {left_s} s; Ctrl+C ends" for left_s in range(PAUSE_FIRST_S, 0, -1)]
    lines = said.split("\n")[1].split("\r")
    assert [line.strip() for line in lines if line.strip()] == counted
