"""The mapped file between a trainer and the network process: anchors and contributions, in place.

    0      header: magic, version, slots, sizes, run digest
    ...    places for anchors, float32, one fragment     written by the network process
           behind the other
    ...    places for payloads; a contribution's cells   written by the trainer
           lie behind one another in one of them

With one round in flight neither end copies. The state of the network process lies in the places for
anchors, and a trainer of one fragment reads it there; the own contribution stays where the trainer
wrote it, and is sent from there. A place is used again once nobody holds memory of it: a slow peer
that still reads a contribution, a trainer that still works from an anchor, keep theirs. Which place
holds what, the frames say; only the network process gives them out. With two rounds in flight (R5)
there is one place for the anchor and one for each contribution, and both ends copy.

Where the system has files without a name (Linux) and memory for it, the file is one of those, and
reaches no disk: on one, the system writes back what changes every round. It is gone with the last
process that has it. Else it lies in a folder. Places take memory, or blocks, once they are used,
and what was not needed goes back.
"""

import errno
import mmap
import os
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import TrainerError
from protocol.manifest import RunManifest
from training.compression import make_codec
from training.numeric.memory import SpareVectors, Vector

_MAGIC = b"BARNCHAN"
_VERSION = 2
_HEADER = struct.Struct(">8sIIQQ32s")
_PLACE_BYTES = 64 * limits.KIB
"""Places begin at multiples of this: each is mapped by itself, and no system maps finer or coarser
than a divisor of it."""

_ANCHOR_PLACES = 4
"""One for copies, the state, the next one, and one more that somebody holds."""

_PAYLOAD_PLACES = 3
"""The round under way and, in open runs, the one before; one to write the next contribution in."""

CHANNEL_SUFFIX = ".channel"

MEMORY_SHARE = 4
"""A file without a name cannot leave memory where there is no swap: it may take a quarter of what
is free."""


@dataclass(frozen=True)
class ChannelSpec:
    """Sizes of a channel: a function of the manifest alone, so both ends compute the same."""

    run: bytes
    fragment_numels: tuple[int, ...]
    slot_bytes: int
    slots: int
    """Rounds in flight."""

    @property
    def numel(self) -> int:
        """Elements of the shard."""
        return sum(self.fragment_numels)

    @property
    def is_read_in_place(self) -> bool:
        """Whether the trainer reads its anchor where the network process has it. Of several
        fragments it holds those that did not change, from seals long gone."""
        return self.slots == 1 and len(self.fragment_numels) == 1

    @property
    def anchor_places(self) -> int:
        """Places for anchors; the first is for those that are copied."""
        return _ANCHOR_PLACES if self.is_read_in_place else 1

    @property
    def payload_places(self) -> int:
        """Places for contributions."""
        return _PAYLOAD_PLACES if self.slots == 1 else self.slots

    @cached_property
    def anchor_offsets(self) -> tuple[int, ...]:
        """Where each fragment's anchor begins in its place."""
        offsets, offset = [], 0
        for numel in self.fragment_numels:
            offsets.append(offset)
            offset += 4 * numel
        return tuple(offsets)

    @property
    def anchor_bytes(self) -> int:
        """Of one place for anchors."""
        return _rounded(4 * self.numel)

    def anchor_at(self, place: int) -> int:
        """Where a place for anchors begins in the file."""
        return _PLACE_BYTES + place * self.anchor_bytes

    def payloads_at(self, place: int) -> int:
        """Where a place for payloads begins in the file."""
        return self.anchor_at(self.anchor_places) + place * self.slot_bytes

    @property
    def file_bytes(self) -> int:
        """Size of the whole file; only what is used of it takes blocks."""
        return self.payloads_at(self.payload_places)

    @property
    def used_bytes(self) -> int:
        """Of it what a node uses all the time: an anchor, and a contribution for each round in
        flight."""
        return _PLACE_BYTES + self.anchor_bytes + self.slots * self.slot_bytes

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        anchor_bytes = 4 * self.numel
        return _HEADER.pack(_MAGIC, _VERSION, self.slots, anchor_bytes, self.slot_bytes, self.run)


def channel_spec(manifest: RunManifest, shard: int) -> ChannelSpec:
    """The channel for shard number `shard`."""
    layout = manifest.layout(shard)
    codec = make_codec(manifest.outer)
    slot_bytes = max(
        sum(
            codec.payload_bytes(layout.cell_numel(fragment, cell))
            for cell in range(layout.num_cells(fragment))
        )
        for fragment in range(len(layout.fragment_numels))
    )
    return ChannelSpec(
        run=manifest.digest,
        fragment_numels=layout.fragment_numels,
        slot_bytes=_rounded(slot_bytes),
        slots=manifest.outer.overlap,
    )


class ChannelFile:
    """The mapped file, as either end has it."""

    def __init__(self, path: Path, spec: ChannelSpec) -> None:
        self.path = path
        self.spec = spec
        self._maps: dict[tuple[int, bool], mmap.mmap] = {}
        self._mapping = Lock()
        self._give_back: Callable[[], object] = lambda: None
        """Lets go of a file without a name."""
        # Of each fragment one: that which the trainer has done with when the next is here.
        self._spare = [SpareVectors(numel, most=1) for numel in spec.fragment_numels]

    @classmethod
    def create(cls, path: Path, spec: ChannelSpec) -> "ChannelFile":
        """A fresh file of zeros at `path`, which must not exist; readable by this user alone.

        Raises OSError where the disk is full.
        """
        with open(path, "x+b", opener=_open_private) as file:
            return cls._begin(file, path, spec)

    @classmethod
    def create_in_memory(cls, spec: ChannelSpec, free_bytes: int) -> "ChannelFile | None":
        """The same without a name; its path is good for processes of this user, while this one
        lives. None where the system has no such files, or `free_bytes`, memory without swapping,
        are not `MEMORY_SHARE` times what it takes."""
        if not hasattr(os, "memfd_create") or MEMORY_SHARE * spec.used_bytes > free_bytes:
            return None
        try:
            descriptor = os.memfd_create("barnraise" + CHANNEL_SUFFIX)
        except OSError:
            return None
        try:
            os.fchmod(descriptor, 0o600)
            path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
            with open(descriptor, "r+b", closefd=False) as file:
                made = cls._begin(file, path, spec)
        except OSError:  # Refused, as where a container has less than the machine; or no /proc.
            os.close(descriptor)
            return None
        made._give_back = weakref.finalize(made, os.close, descriptor)
        return made

    @classmethod
    def _begin(cls, file: BinaryIO, path: Path, spec: ChannelSpec) -> "ChannelFile":
        file.truncate(spec.file_bytes)
        file.write(spec.header)
        file.flush()
        made = cls(path, spec)
        if not spec.is_read_in_place:
            made.reserve(spec.anchor_at(0), spec.anchor_bytes)
        for place in range(spec.slots):
            made.reserve(spec.payloads_at(place), spec.slot_bytes)
        return made

    @classmethod
    def open(cls, path: Path, spec: ChannelSpec) -> "ChannelFile":
        """The file that the other process made. Raises TrainerError if it is not one for `spec`."""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size != spec.file_bytes or file.read(_HEADER.size) != spec.header:
                raise TrainerError(f"{path} is no channel of this run and version")
        return cls(path, spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap what nobody holds memory of, the rest once it is let go of; a file with a name
        stays."""
        for mapping in self._maps.values():
            with suppress(BufferError):
                mapping.close()
        self._maps.clear()
        self._give_back()

    def reserve(self, offset: int, size: int) -> None:
        """Allocate the blocks of a place: a hole that does not fit on a full disk would kill
        whichever process touches it first. Raises OSError where the disk is full."""
        with self.path.open("r+b") as file:
            _allocate(file, offset, size)

    def memory(self, offset: int, size: int, *, is_read_only: bool = False) -> mmap.mmap:
        """The memory of a place; mapped when it is first asked for. Raises OSError where the file
        is gone."""
        with self._mapping:
            mapping = self._maps.get((offset, is_read_only))
            if mapping is None:
                access = mmap.ACCESS_READ if is_read_only else mmap.ACCESS_WRITE
                with self.path.open("r+b") as file:
                    mapping = mmap.mmap(file.fileno(), size, access=access, offset=offset)
                self._maps[offset, is_read_only] = mapping
            return mapping

    # Anchors ------------------------------------------------------------------------------------

    def write_anchor(self, fragment: int, anchor_N: Vector) -> None:
        """Copy the anchor of one fragment into the first place."""
        numel = self.spec.fragment_numels[fragment]
        assert anchor_N.dtype == np.float32
        assert anchor_N.shape == (numel,)
        memory = self.memory(self.spec.anchor_at(0), self.spec.anchor_bytes)
        offset = self.spec.anchor_offsets[fragment]
        np.frombuffer(memory, np.float32, numel, offset)[:] = anchor_N

    def read_anchor(self, fragment: int, *, place: int = 0) -> Vector:
        """A copy of one fragment's anchor, not writable. Its memory is that of a later one once
        nobody holds it, or a view of it. Raises TrainerError for no such place."""
        anchor_N = self._spare[fragment].take()
        anchor_N[:] = self.anchor(fragment, place=place)
        anchor_N.flags.writeable = False
        return anchor_N

    def anchor(self, fragment: int, *, place: int) -> Vector:
        """One fragment's anchor where it lies, not writable. Raises TrainerError for no such
        place."""
        spec = self.spec
        if not 0 <= place < spec.anchor_places:
            raise TrainerError(f"an anchor in place {place} of {spec.anchor_places}")
        memory = self.memory(spec.anchor_at(place), spec.anchor_bytes, is_read_only=True)
        numel, offset = spec.fragment_numels[fragment], spec.anchor_offsets[fragment]
        anchor_N = np.frombuffer(memory, np.float32, numel, offset)
        anchor_N.flags.writeable = False
        return anchor_N

    # Payloads -----------------------------------------------------------------------------------

    def payload_memory(self, place: int) -> NDArray[np.uint8]:
        """The place for a contribution. Raises TrainerError for no such place."""
        spec = self.spec
        if not 0 <= place < spec.payload_places:
            raise TrainerError(f"a contribution in place {place} of {spec.payload_places}")
        memory = self.memory(spec.payloads_at(place), spec.slot_bytes)
        return np.frombuffer(memory, np.uint8)

    def write_payloads(self, place: int, payloads: Sequence[bytes]) -> None:
        """Have a contribution in its place: what does not lie there is copied there. Raises
        TrainerError if it is larger than a place, or there is none such."""
        total = sum(len(payload) for payload in payloads)
        if total > self.spec.slot_bytes or len(payloads) > limits.CELLS_MAX:
            raise TrainerError(f"a contribution of {total} bytes, {self.spec.slot_bytes} at most")
        memory_B = self.payload_memory(place)
        start, offset = memory_B.ctypes.data, 0
        for payload in payloads:
            given_B = np.frombuffer(payload, np.uint8)
            if len(given_B) and given_B.ctypes.data != start + offset:
                memory_B[offset : offset + len(given_B)] = given_B
            offset += len(given_B)

    def read_payloads(self, place: int, lengths: Sequence[int]) -> tuple[bytes, ...]:
        """Copies of a contribution's cells. Raises TrainerError if they leave the place."""
        memory = memory_of_cells(self.payload_memory(place), lengths)
        return tuple(bytes(cell) for cell in memory)


def memory_of_cells(memory_B: NDArray[np.uint8], lengths: Sequence[int]) -> tuple[memoryview, ...]:
    """A contribution's cells where they lie, to be read only; each holds the whole place.

    Raises TrainerError if they leave it.
    """
    if sum(lengths) > len(memory_B) or min(lengths, default=0) < 0:
        raise TrainerError(f"a contribution claims {sum(lengths)} bytes of its place")
    view = memory_B.data.toreadonly()
    cells, offset = [], 0
    for length in lengths:
        cells.append(view[offset : offset + length])
        offset += length
    return tuple(cells)


def _rounded(size: int) -> int:
    return -(-size // _PLACE_BYTES) * _PLACE_BYTES


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _allocate(file: BinaryIO, offset: int, size: int) -> None:
    if sys.platform == "linux":
        try:
            os.posix_fallocate(file.fileno(), offset, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            return
    zeros = bytes(limits.MIB)
    file.seek(offset)
    file.writelines(zeros[: size - start] for start in range(0, size, limits.MIB))
    file.flush()


_REMOVE: int | None = getattr(mmap, "MADV_REMOVE", None)
"""Linux gives memory and blocks of a piece of a file back."""


# The hand of the network process on it: which place is whose, and when it is free again ----------


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
