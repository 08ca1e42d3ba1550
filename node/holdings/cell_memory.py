"""Memory for cells that come: each begins at a page, and is used again once nobody holds it.

On the heap cells and small things lie in turn, so that a cell that was let go of leaves a hole into
which a small thing goes and no cell fits any more: a node's heap grew to a third more than it held.
"""

import mmap
import sys
import weakref
from collections import defaultdict, deque

import numpy as np

from protocol import limits

LARGE_BYTES = 64 * limits.KIB
"""Smaller cells are the heap's: their number is that of small models."""

FREE_BYTES_MAX = 2048 * limits.MIB
"""That are kept for the next round; more goes back to the system."""

_PAGE_BYTES = mmap.PAGESIZE

_PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
"""Places that lie side by side are one mapping then, of which Linux gives a process 65 530: each by
itself, two rounds of eight contributions of 4096 cells are more. Its pages come faster, too."""


class CellMemory:
    """Of one node. A place is taken from any thread, and given back by whichever lets go of it."""

    def __init__(self) -> None:
        self._free: defaultdict[int, deque[mmap.mmap]] = defaultdict(deque)
        self.free_bytes = 0
        """About: several threads count."""

    def take(self, size: int) -> memoryview:
        """Memory of `size` bytes, `LARGE_BYTES` at least, of which any may stand there."""
        whole = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        try:
            pages = self._free[whole].pop()
            self.free_bytes -= whole
        except IndexError:
            try:
                pages = mmap.mmap(-1, whole, **_PRIVATE)
            except OSError:  # Of mappings, too, there are only so many.
                return np.empty(size, dtype=np.uint8).data
        place = np.frombuffer(pages, dtype=np.uint8)
        # Views of it hold it; behind the last of them the pages are nobody's.
        weakref.finalize(place, self._give_back, pages).atexit = False
        return place[:size].data

    def copied(self, payload: bytes) -> bytes:
        """The same bytes, to be read only; those of a small cell as they are."""
        if len(payload) < LARGE_BYTES:
            return bytes(payload)
        place = self.take(len(payload))
        place[:] = payload
        return place.toreadonly()  # type: ignore[return-value]  # read like bytes

    def _give_back(self, pages: mmap.mmap) -> None:
        if self.free_bytes < FREE_BYTES_MAX:
            self._free[len(pages)].append(pages)
            self.free_bytes += len(pages)
