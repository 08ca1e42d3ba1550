"""Memory of large vectors: what a round frees, the next one uses again.

The system gives a fresh vector as new pages, and clears each when it is first touched: as much work
as writing it twice. A round makes a new state, and one round later an old one is let go of
(`SpareVectors`).

What a cell is decoded, summed and stepped in is a mebibyte each time, and glibc gives such blocks
back to the system as soon as they are free: the next one is new pages, each a fault and a page of
zeros. Averaging 20 million float32 spent two fifths of its processor time in the system that way.
So freed blocks are kept for the next one (`keep_freed_memory`). What stays for a round, the cells
themselves, has memory of its own (`node.holdings.states.CellMemory`).

N elements
"""

import ctypes
import mmap
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


def untouched_zeros(numel: int) -> Vector:
    """Zeros that take no memory before somebody writes to them, unlike those of a heap that has
    free blocks."""
    if not numel or sys.platform == "win32":
        return np.zeros(numel, np.float32)
    pages = mmap.mmap(-1, 4 * numel, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype=np.float32)


class VectorSource(Protocol):
    """Where vectors of a state come from. From any thread."""

    def take(self) -> Vector:
        """A vector of any content. Its memory is another's once it and all views of it are gone."""
        ...

    def made(self, vector_N: Vector) -> bool:
        """Whether that vector came from here: then no array but views of it has its memory."""
        ...

    def trim(self) -> None:
        """Give memory back that no vector has."""
        ...


class SpareVectors:
    """Gives vectors, and takes their memory back by itself; from any thread."""

    def __init__(self, numel: int, *, most: int) -> None:
        """At most `most` of which nobody holds any stay."""
        self._numel = numel
        self._spare: deque[Vector] = deque(maxlen=most)
        self._made: set[int] = set()

    def take(self) -> Vector:
        """See VectorSource."""
        try:
            memory_N = self._spare.pop()
        except IndexError:
            memory_N = np.empty(self._numel, dtype=np.float32)
        # Views hold the array that they are of only if its own base is no array: a view of a view
        # would hold `memory_N` itself, and outlive what is watched here.
        vector_N: Vector = np.frombuffer(memory_N.data, dtype=np.float32)
        self._made.add(memory_N.ctypes.data)
        weakref.finalize(vector_N, self._take_back, memory_N).atexit = False
        return vector_N

    def _take_back(self, memory_N: Vector) -> None:
        self._made.discard(memory_N.ctypes.data)
        self._spare.append(memory_N)

    def made(self, vector_N: Vector) -> bool:
        """See VectorSource."""
        return vector_N.ctypes.data in self._made

    def trim(self) -> None:
        """See VectorSource."""
        self._spare.clear()


def _num_references(vectors: Sequence[Vector], place: int) -> int:
    return sys.getrefcount(vectors[place])


_ALONE = _num_references([np.empty(0, dtype=np.float32)], 0)


def is_held_elsewhere(vectors: Sequence[Vector], place: int) -> bool:
    """Whether anybody but this sequence holds a vector of a VectorSource, or a view of it.

    The caller has no name for it, and nobody can come by one meanwhile.
    """
    return _num_references(vectors, place) > _ALONE


# The C library's heap -----------------------------------------------------------------------------

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


def give_back_free_memory(kept_bytes: int = FREE_BYTES_KEPT) -> int:
    """Have the heap give its free pages back where they are more than so many bytes; how many were
    free.

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
    if free_bytes < kept_bytes:
        return 0
    trim(ctypes.c_size_t(0))
    return free_bytes
