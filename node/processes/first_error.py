"""The first error of a group of tasks, raised as itself: what follows from it is not the story."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from protocol.errors import StateError, first_of


@asynccontextmanager
async def first_error_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery of tasks that may raise StateError: the first one is raised, and no group."""
    found: list[BaseException] = []
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except* StateError as group:
        found.append(first_of(group))
    if found:
        # Out here: Pythons before 3.11.4 wrap what is raised inside of `except*`.
        raise found[0] from None
