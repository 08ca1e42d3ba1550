"""The network process's hand on the mapped file: which place is whose, and when it is free again.

N elements of the shard, B bytes
"""

import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from training.channel.channel_file import ChannelFile, memory_of_cells
from training.numeric.spare_vectors import SpareVectors, Vector

_REMOVE: int | None = getattr(mmap, "MADV_REMOVE", None)
"""Linux gives memory and blocks of a piece of a file back."""


class _Places:
    """Places of one size. One is free again by itself once nobody holds memory of it."""

    def __init__(self, channel: ChannelFile, offsets: Sequence[int], size: int, first: int) -> None:
        self._channel = channel
        self._offsets = offsets
        self._size = size
        self._free = deque(range(first, len(offsets)))
        self._reserved: set[int] = set()
        self._addresses: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Those that `take` could give."""
        return len(self._free)

    def take(self) -> int | None:
        """The first place that is free, or none. Raises OSError where the disk is full."""
        place = self._first()
        if place is None:
            return None
        if place not in self._reserved:
            self._channel.reserve(self._offsets[place], self._size)
            self._reserved.add(place)
            memory = self._channel.memory(self._offsets[place], self._size)
            self._addresses[place] = np.frombuffer(memory, np.uint8, 1).ctypes.data
        return place

    def _first(self) -> int | None:
        while self._free:
            with suppress(ValueError):  # Else somebody was faster.
                place = min(self._free)
                self._free.remove(place)
                return place
        return None

    def memory(self, place: int, numel: int, dtype: type[np.generic]) -> NDArray[np.generic]:
        """The memory of a place that was taken; free when it and all views of it are gone."""
        memory = self._channel.memory(self._offsets[place], self._size)
        memory_N = np.frombuffer(memory, dtype, numel)
        weakref.finalize(memory_N, self._free.append, place).atexit = False
        return memory_N

    def place_at(self, address: int) -> int | None:
        """The place whose memory begins there."""
        found = (place for place, begins in tuple(self._addresses.items()) if begins == address)
        return next(found, None)

    def trim(self) -> None:
        """Give back memory and blocks of what is free, where the system can do that: Linux."""
        if _REMOVE is None:
            return
        for place in tuple(self._free):
            try:
                self._free.remove(place)
            except ValueError:
                continue  # Somebody was faster.
            if place in self._reserved:
                memory = self._channel.memory(self._offsets[place], self._size)
                with suppress(OSError, ValueError):
                    memory.madvise(_REMOVE)
                    self._reserved.discard(place)
            self._free.append(place)


class AnchorPlaces:
    """VectorSource: anchors of the network process that its trainer can read where they lie.

    Beyond the places that there are vectors are those of `SpareVectors`.
    """

    def __init__(self, channel: ChannelFile) -> None:
        spec = channel.spec
        offsets = [spec.anchor_at(place) for place in range(spec.anchor_places)]
        self._places = _Places(channel, offsets, spec.anchor_bytes, first=1)
        self._channel, self._has_copy = channel, False
        self._numel = spec.numel
        self._elsewhere = SpareVectors(spec.numel, most=1)

    def take(self) -> Vector:
        """See VectorSource. Raises OSError where the disk is full."""
        place = self._places.take()
        if place is None:
            return self._elsewhere.take()
        return self._places.memory(place, self._numel, np.float32)  # type: ignore[return-value]

    def made(self, vector_N: Vector) -> bool:
        """See VectorSource."""
        return self.place_of(vector_N) is not None or self._elsewhere.made(vector_N)

    def trim(self) -> None:
        """See VectorSource."""
        self._places.trim()
        self._elsewhere.trim()

    def keep_copy(self, anchor_N: Vector) -> None:
        """Copy an anchor that lies elsewhere into the first place, until `forget_copy`. Raises
        OSError where the disk is full."""
        spec = self._channel.spec
        self._channel.reserve(spec.anchor_at(0), spec.anchor_bytes)
        self._channel.write_anchor(0, anchor_N)
        self._has_copy = True

    def forget_copy(self) -> None:
        """The copy was read for the last time."""
        if self._has_copy and _REMOVE is not None:
            spec = self._channel.spec
            with suppress(OSError, ValueError):
                self._channel.memory(spec.anchor_at(0), spec.anchor_bytes).madvise(_REMOVE)
        self._has_copy = False

    def place_of(self, vector_N: Vector) -> int | None:
        """Where a vector lies in the file; None of one that does not."""
        return self._places.place_at(vector_N.ctypes.data)


class PayloadPlaces:
    """The own contributions of the network process, where its trainer wrote them."""

    def __init__(self, channel: ChannelFile) -> None:
        spec = channel.spec
        self._channel = channel
        offsets = [spec.payloads_at(place) for place in range(spec.payload_places)]
        self._places = _Places(channel, offsets, spec.slot_bytes, first=0)
        self._granted: int | None = None
        """Where the trainer may write."""

    def grant(self) -> int:
        """A place for the next contribution, the same until that was `lent`. Raises OSError where
        the disk is full."""
        if self._granted is None:
            self._granted = self._places.take()
            assert self._granted is not None, "the last place was lent"
            self._places.trim()
        return self._granted

    def lent(self, lengths: Sequence[int]) -> tuple[bytes, ...]:
        """The cells of the contribution that was written where it was granted; in place, unless
        that was the last one. Raises TrainerError if they leave the place."""
        place, self._granted = self.grant(), None
        size = self._channel.spec.slot_bytes
        memory_B = self._places.memory(place, size, np.uint8)
        cells = memory_of_cells(memory_B, lengths)  # type: ignore[arg-type]
        if not self._places.num_free:
            return tuple(bytes(cell) for cell in cells)
        return cells  # type: ignore[return-value]  # read like bytes
