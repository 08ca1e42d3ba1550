"""A founder that waits for the peers to start with: what it says, and Enter in a terminal."""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from node.daemon.founding import SAY_EVERY_S, Enter, wait_for_peers
from node.status.board import EventLog, Field
from protocol import events as ev
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind
from protocol.rounds.round_machine import RoundMachine
from sim.world.world import peer_named
from tests.node.builders import CONFIG, contributed, head_of, signed

if TYPE_CHECKING:
    from node.daemon.driver import Driver

ME = peer_named("founder")


def founder(wait_seats: int, wait_seats_s: float = 1e9) -> RoundMachine:
    start = head_of([ME])
    start = replace(start, value=replace(start.value, round=0))
    config = replace(CONFIG, wait_seats=wait_seats, wait_seats_s=wait_seats_s)
    return RoundMachine(config, KeyedHashSigner(ME), start, now_s=0.0)


def proved(machine: RoundMachine, number: int) -> ev.SeatChecked:
    return ev.SeatChecked(peer_named(f"joiner {number}"), machine.view.basis, True)


@pytest.mark.quick(1)
def test_commit_that_is_held_leaves_when_the_last_seat_is_proved_or_the_user_says_so() -> None:
    for last in (proved(founder(2), 1), ev.StartNow()):
        machine = founder(2)
        assert not signed(machine.handle(contributed(1), 0.0), Kind.COMMIT)
        assert not signed(machine.handle(proved(machine, 0), 0.0), Kind.COMMIT)
        assert machine.seats_awaited(0.0) == 1
        assert len(signed(machine.handle(last, 0.0), Kind.COMMIT)) == 1
        assert machine.seats_awaited(0.0) == 0


def test_nobody_is_awaited_in_a_run_that_has_begun_nor_past_the_time() -> None:
    assert founder(2, 20.0).seats_awaited(19.0) == 2
    assert founder(2, 20.0).seats_awaited(20.0) == 0
    begun = RoundMachine(replace(CONFIG, wait_seats=2), KeyedHashSigner(ME), head_of([ME]), now_s=0)
    assert begun.seats_awaited(0.0) == 0


class FakeDriver:
    """The part of a driver that a waiting founder needs."""

    def __init__(self, machine: RoundMachine) -> None:
        self.core = self
        self.machine = machine
        self._changed = trio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    async def tell(self, event: ev.RoundEvent) -> None:
        self.machine.handle(event, trio.current_time())
        self._changed.set()
        self._changed = trio.Event()


class Said:
    def __init__(self) -> None:
        self.events: list[tuple[str, Field]] = []

    def emit(self, event: str, **fields: Field) -> None:
        self.events.append((event, fields["peers"]))


async def waiting(machine: RoundMachine, enter: Enter | None, for_s: float) -> Said:
    driver, said = FakeDriver(machine), Said()
    log = EventLog(None, trio.current_time(), (said,))
    with trio.move_on_after(for_s):
        await wait_for_peers(cast("Driver", driver), log, enter)
    return said


async def test_without_a_terminal_it_is_said_each_minute(autojump_clock: object) -> None:
    said = await waiting(founder(1), None, 3.5 * SAY_EVERY_S)
    assert said.events == [("waiting_for_peers", 1)] * 4


async def test_in_a_terminal_it_is_said_once_and_enter_starts(autojump_clock: object) -> None:
    machine = founder(3)

    async def enter() -> None:
        await trio.sleep(10 * SAY_EVERY_S)

    said = await waiting(machine, enter, 100 * SAY_EVERY_S)
    assert said.events == [("waiting_for_peers", 3), ("starts_without", 3)]
    assert machine.seats_awaited(trio.current_time()) == 0
    assert trio.current_time() < 20 * SAY_EVERY_S


async def test_founder_that_starts_alone_says_nothing(autojump_clock: object) -> None:
    assert (await waiting(founder(0), None, 1.0)).events == []


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
async def test_line_of_a_terminal_is_read_only_in_the_foreground_and_its_end_is_no_enter() -> None:
    import pty
    import tty

    from node.daemon.founding import _line_seen

    master, slave = pty.openpty()
    try:
        tty.setcbreak(slave)
        os.write(master, b"\n")
        # The terminal is not that of this process's session: nobody may take its input.
        with trio.move_on_after(0.2) as scope:
            await _line_seen(slave)
        assert scope.cancelled_caught
        assert os.read(slave, 10) == b"\n"
    finally:
        os.close(master)
        os.close(slave)
