"""Large writes past the system's page cache, where it lets us: Linux, and most file systems.

Bytes that are written once and read hardly ever need no copy in the cache. Each of its pages is
taken fresh, which in a virtual machine whose host takes free memory back costs several times as
much as the copy. What is written here is on its way to the device when the call returns; that it is
durable only a sync says.
"""

import errno
import mmap
import os
from collections import deque
from pathlib import Path

import numpy as np

BLOCK_BYTES = 4096
"""Places, sizes and memory of such writes are multiples of the device's block; none has more."""

DIRECT_BYTES_MIN = 1 << 20
"""A shorter write waits longer for the device than the cache costs."""

_STAGE_BYTES = 4 << 20
_STAGES_MAX = 4
_REFUSALS = frozenset((errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP))

_stages: deque[mmap.mmap] = deque(maxlen=_STAGES_MAX)
"""Memory that begins at a page; payloads do not. Shared by all files, from any thread."""


class PastCache:
    """A second way into a file that is open for writing elsewhere. Close it."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first large write."""
        self._path = path
        self._descriptor: int | None = None
        self._is_refused = not hasattr(os, "O_DIRECT")

    def put(self, start: int, view: memoryview) -> int:
        """Write from byte `start` on as much from the front of `view` as can go this way: that many
        bytes, 0 where none can. Raises OSError, on a full disk for instance.
        """
        left = len(view) - len(view) % BLOCK_BYTES
        if self._is_refused or left < DIRECT_BYTES_MIN or start % BLOCK_BYTES:
            return 0
        if not np.frombuffer(view, dtype=np.uint8).ctypes.data % BLOCK_BYTES:
            return self._put(start, view[:left], None)
        stage = _stages.pop() if _stages else mmap.mmap(-1, _STAGE_BYTES)
        try:
            return self._put(start, view[:left], stage)
        finally:
            _stages.append(stage)

    def _put(self, start: int, view: memoryview, stage: mmap.mmap | None) -> int:
        """The same of what begins at a block, from where it lies or by way of a stage."""
        done = 0
        while done < len(view):
            part = view[done : done + _STAGE_BYTES]
            if stage is not None:
                stage[: len(part)] = part
                part = memoryview(stage)[: len(part)]
            written = self._write(start + done, part)
            # A file system may stop at a block that is none of the device's.
            done += written - written % BLOCK_BYTES
            if written < len(part):
                break
        return done

    def _write(self, start: int, part: memoryview) -> int:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_DIRECT)
            return os.pwrite(self._descriptor, part, start)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._is_refused = True
            return 0

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
