"""Vectors of one length whose memory is used again once nobody holds them.

The system gives a fresh vector as new pages, and clears each when it is first touched: as much work
as writing it twice. A round makes a new state, and one round later an old one is let go of.

N elements
"""

import weakref
from collections import deque

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class SpareVectors:
    """Gives vectors, and takes their memory back by itself; from any thread."""

    def __init__(self, numel: int, *, most: int) -> None:
        """At most `most` of which nobody holds any stay."""
        self._numel = numel
        self._spare: deque[Vector] = deque(maxlen=most)

    def take(self) -> Vector:
        """A vector of any content. Its memory is another's once it and all views of it are gone."""
        try:
            memory_N = self._spare.pop()
        except IndexError:
            memory_N = np.empty(self._numel, dtype=np.float32)
        # Views hold the array that they are of only if its own base is no array: a view of a view
        # would hold `memory_N` itself, and outlive what is watched here.
        vector_N: Vector = np.frombuffer(memory_N.data, dtype=np.float32)
        weakref.finalize(vector_N, self._spare.append, memory_N).atexit = False
        return vector_N
