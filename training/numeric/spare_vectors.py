"""Vectors of one length whose memory is used again once nobody holds them.

The system gives a fresh vector as new pages, and clears each when it is first touched: as much work
as writing it twice. A round makes a new state, and one round later an old one is let go of.

N elements
"""

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
