"""How the C library keeps memory that Python gives back: for processes that move large vectors.

What a cell is decoded, summed and stepped in is a mebibyte each time, and glibc gives such blocks
back to the system as soon as they are free: the next one is new pages, each a fault and a page of
zeros. Averaging 20 million float32 spent two fifths of its processor time in the system that way.
Here freed blocks are kept for the next one. What stays for a round, the cells themselves, has
memory of its own (`node.holdings.states.CellMemory`).
"""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
MMAP_THRESHOLD_BYTES = 32 << 20
"""The most that glibc takes. Larger blocks, whole vectors, are the system's at once when freed."""

TRIM_THRESHOLD_BYTES = (1 << 31) - 1
"""The most that glibc takes. What a round has freed the next one needs: given back beyond 256 MiB,
five sixths of the cells of a model of 10^8 elements were new pages in every round."""

TOP_PAD_BYTES = 16 << 20

FREE_BYTES_KEPT = 64 << 20
"""What a round frees and takes again beside cells is less."""


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


_USAGE_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "free", "keepcost"),
)


class _Usage(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _USAGE_FIELDS)


def give_back_free_memory() -> int:
    """Have the heap give its free pages back where they are many; how many bytes were free.

    A round makes cells of memory of their own, so what is free here was needed once: by a state
    that was made or fetched. 0 where the C library does not say.
    """
    try:
        libc = ctypes.CDLL(None)
        usage, trim = libc.mallinfo2, libc.malloc_trim
    except (AttributeError, OSError, TypeError):
        return 0
    usage.restype = _Usage
    free_bytes: int = usage().free
    if free_bytes < FREE_BYTES_KEPT:
        return 0
    trim(ctypes.c_size_t(0))
    return free_bytes
