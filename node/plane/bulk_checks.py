"""Checks of cells, several in one trip to a worker thread.

A trip costs the loop three steps, two wake-ups and the interpreter's lock twice, about as much as
it takes to hash a cell. While one is under way cells of other streams come, and go together next.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.errors import BarnraiseError

TOGETHER_MAX = 8
"""In one trip, each of a cell or of some that came together. Sums and steps wait that long for the
worker: some milliseconds."""


class Compute(Protocol):
    """Runs work in a worker thread; not to be left before it is through once it began."""

    def __call__(self, work: Callable[[], None], /) -> Awaitable[None]:
        """Until it is through."""
        ...


@dataclass(slots=True, eq=False)
class _Due:
    work: Callable[[], None]
    is_done: bool = False
    error: BarnraiseError | None = None


class Checks:
    """Those of one node, first come, first served."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._due: deque[_Due] = deque()
        self._turn = trio.Lock()

    async def run(self, check: Callable[[], None]) -> None:
        """Until this check is done; raises its BarnraiseError. Cancelled before, it is not done.

        Any other error is a bug, and comes out of whichever of the checks took it along.
        """
        due = _Due(check)
        self._due.append(due)
        try:
            # Whoever has the turn goes for all that are due by the time when the worker is free.
            await self._take_turn()
            try:
                if not due.is_done:
                    await self._compute(self._work_off)
            finally:
                self._turn.release()
        finally:
            if not due.is_done:
                with suppress(ValueError):  # It is being done.
                    self._due.remove(due)
        if due.error is not None:
            raise due.error

    async def _take_turn(self) -> None:
        """As a rule it is nobody's, and then it takes no step of the loop."""
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            await self._turn.acquire()

    def _work_off(self) -> None:
        for _ in range(TOGETHER_MAX):
            try:
                due = self._due.popleft()
            except IndexError:  # Cancelled meanwhile, in the loop.
                return
            try:
                due.work()
            except BarnraiseError as error:
                due.error = error  # Whoever waits for it raises it.
            due.is_done = True
