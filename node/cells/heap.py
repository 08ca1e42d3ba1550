"""How the C library keeps memory that Python gives back: for processes that move large vectors.

A cell is a mebibyte, and glibc gives such blocks back to the system as soon as they are free: the
next one is new pages, each a fault and a page of zeros. Averaging 20 million float32 spends two
fifths of its processor time in the system that way. Here freed blocks are kept for the next cell.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
MMAP_THRESHOLD_BYTES = 32 << 20
"""The most that glibc takes. Larger blocks, whole vectors, are the system's at once when freed."""

TRIM_THRESHOLD_BYTES = (1 << 31) - 1
"""The most that glibc takes. What a round has freed the next one needs: given back beyond 256 MiB,
five sixths of the cells of a model of 10^8 elements were new pages in every round."""

TOP_PAD_BYTES = 16 << 20


def keep_freed_memory() -> bool:
    """For this process, before it has threads; whether the C library is one that can do it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Not glibc; on Windows there is no such library.
        return False
    settings = (
        (_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        (_M_TOP_PAD, TOP_PAD_BYTES),
        # Threads with a heap each would keep what the others could use.
        (_M_ARENA_MAX, 1),
    )
    taken = [mallopt(name, value) == 1 for name, value in settings]
    return all(taken)
