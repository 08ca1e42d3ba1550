"""Worlds without the cyclic garbage collector: they make many small tuples and few cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is searched for cycles meanwhile.

    The collector goes through all that waits in a world's heap, again and again, and finds nothing
    but processes that were killed: a few hundred kilobytes each.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
