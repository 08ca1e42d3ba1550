"""A founder that waits for the peers to start with: what it says, and how its user starts it."""

import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

import trio

from node.daemon.driver import Driver
from node.status.board import EventLog
from protocol import events as ev

SAY_EVERY_S = 60.0
"""Seconds between two lines in a log, which nobody may look at yet."""

LOOK_EVERY_S = 1.0
"""Seconds between two looks at a terminal whose input belongs to another job at present."""

LINE_BYTES_MAX = 4096

Enter = Callable[[], Awaitable[None]]
"""Returns once the user has pressed Enter."""


async def wait_for_peers(driver: Driver, log: EventLog, enter: Enter | None) -> None:
    """Say for how many peers the founder waits, until its first round begins or Enter starts it.

    `enter` is None where there is no terminal: then it is said again each minute.
    """
    if not _num_awaited(driver):
        return
    async with trio.open_nursery() as nursery:
        if enter is not None:
            nursery.start_soon(_start_at, enter, driver, log)
        said, again_s = 0, inf
        while awaited := _num_awaited(driver):
            if awaited != said or trio.current_time() >= again_s:
                said = awaited
                again_s = inf if enter is not None else trio.current_time() + SAY_EVERY_S
                log.emit("waiting_for_peers", peers=awaited, has_terminal=enter is not None)
            with trio.move_on_at(again_s):
                await driver.changed()
        nursery.cancel_scope.cancel()


def _num_awaited(driver: Driver) -> int:
    return driver.core.machine.seats_awaited(trio.current_time())


async def _start_at(enter: Enter, driver: Driver, log: EventLog) -> None:
    await enter()
    log.emit("starts_without", peers=_num_awaited(driver))
    await driver.tell(ev.StartNow())


# Enter --------------------------------------------------------------------------------------------


def enter_key() -> Enter | None:
    """How to wait for Enter on standard input; None if that is no terminal."""
    # There is no standard input at all where it was closed before the process began.
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return _line_read if sys.platform == "win32" else partial(_line_seen, sys.stdin.fileno())


async def _line_seen(descriptor: int) -> None:
    """As the system tells it. A read that waits would stop the process once it is put into the
    background, where the terminal's input is somebody else's."""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            is_ours = os.tcgetpgrp(descriptor) == os.getpgrp()
            line = os.read(descriptor, LINE_BYTES_MAX) if is_ours else b" "
        except OSError:
            line = b""
        if not line:
            await trio.sleep_forever()  # The terminal is gone, or somebody typed the end of input.
        if b"\n" in line:
            return
        if not is_ours:
            await trio.sleep(LOOK_EVERY_S)


async def _line_read() -> None:
    # The stubs that libp2p's dependencies bring predate this argument's name.
    line = await trio.to_thread.run_sync(
        partial(sys.stdin.readline, LINE_BYTES_MAX),
        abandon_on_cancel=True,  # type: ignore[call-arg]
    )
    if not line:
        await trio.sleep_forever()
