"""Threads of which one runs at a time, in the order that a conductor gives: virtual time.

A thread that waits hands the baton back; so whatever the machine does, a run has one history.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from protocol.errors import StateError

T = TypeVar("T")


class Baton(Generic[T]):
    """A thread for each of so many works, which is given its number; the conductor is the caller.

    A context manager: behind it every thread has ended.
    """

    def __init__(self, works: int, work: Callable[[int], T]) -> None:
        self._work = work
        self._go = [threading.Semaphore(0) for _ in range(works)]
        self._back = threading.Semaphore(0)
        self._has_ended = [False] * works
        self._is_over = False
        self._pool = ThreadPoolExecutor(max(1, works))
        self._futures = [self._pool.submit(self._run, number) for number in range(works)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        for go in self._go:
            go.release()
        self._pool.shutdown()

    def run(self, number: int) -> bool:
        """Let a work go on until it waits again: whether it does. Raises what it raised."""
        if self._has_ended[number]:
            return False
        self._go[number].release()
        self._back.acquire()
        if self._has_ended[number]:
            self._futures[number].result()
            return False
        return True

    def wait(self, number: int) -> None:
        """Called in the thread of that number: until the conductor lets it go on.

        Raises StateError where the conductor has left.
        """
        self._back.release()
        self._await(number)

    def _await(self, number: int) -> None:
        self._go[number].acquire()
        if self._is_over:
            raise StateError("the run is over")

    def _run(self, number: int) -> T:
        try:
            self._await(number)
            return self._work(number)
        finally:
            self._has_ended[number] = True
            self._back.release()
