"""What a process that plays worlds does without: log lines of nodes, and the garbage collector."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import node


def hush() -> None:
    """Drop the warnings of nodes in this process: many would speak at once, and nobody could tell
    who. What they did is in their records."""
    logging.getLogger(node.__name__).setLevel(logging.CRITICAL)
    logging.getLogger(__name__.partition(".")[0]).setLevel(logging.CRITICAL)


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is searched for cycles meanwhile.

    Worlds make many small tuples and few cycles. The collector goes through all that waits in a
    world's heap, again and again, and finds nothing but processes that were killed: a few hundred
    kilobytes each.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
