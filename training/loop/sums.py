"""The numbers that one contribution is encoded from (drift plus residual), on the disk.

    round-000042.sums    little-endian float32, one fragment

They make payload and residual again: the one is what they encode to, the other what is missing
there. So of a large model they are kept in the place of both, and here is which model is large. A
thread writes them while the cells behind are still encoded; what is left to wait for at the end is
little. Without torch: whoever says what a run takes of the disk reads it too.
"""

import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import CheckpointError
from protocol.manifest import RunManifest
from training.files.durable import SYSTEM_FILES

SUMS_SUFFIX = ".sums"

INNER_STATES_KEPT = 3
"""Rounds whose files stay (`training.loop.inner_state`)."""

MOMENTS_FILE = "moments.safetensors"
"""Those of a large model (`training.loop.moments`)."""

MOMENTS_APART_S = 300.0
"""From one write of them to the next: what a crash costs at most, beside the round in hand. A write
takes eight bytes per parameter of the disk, with AdamW."""

LARGE_BYTES = 32 * limits.MIB
"""A model whose float32 weights are so many is large: what is little wears no disk, and is whole in
each file."""


def is_large(manifest: RunManifest, shard: int = 0) -> bool:
    """Whether of this shard's rounds little is written before a contribution leaves."""
    return 4 * manifest.layout(shard).numel >= LARGE_BYTES and not manifest.audits.rate


_CHUNK_BYTES = 2 * limits.MIB
_CHUNKS = 4
"""What the encoder may be ahead of the disk; beyond that it waits."""


class SumsWriter:
    """One file while it is written. Raises OSError, also of what was added before: then drop it."""

    def __init__(self, path: Path) -> None:
        """What the file had is gone."""
        self.path = path
        self._file = SYSTEM_FILES.create(path)
        self._hasher = blake3()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sums")
        # Memory that begins at a page is written from where it lies.
        self._free = deque(mmap.mmap(-1, _CHUNK_BYTES) for _ in range(_CHUNKS))
        self._chunk, self._filled = self._free.popleft(), 0
        self._waiting: deque[Future[mmap.mmap]] = deque()

    def add(self, cell_N: NDArray[np.float32]) -> None:
        """The next cell, which is copied."""
        left = cell_N.astype("<f4", copy=False).data.cast("B")
        while left:
            part = left[: _CHUNK_BYTES - self._filled]
            self._chunk[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            left = left[len(part) :]
            if self._filled == _CHUNK_BYTES:
                self._pass_on()
                self._chunk = self._free.popleft() if self._free else self._written()

    def _pass_on(self) -> None:
        self._waiting.append(self._pool.submit(self._write, self._chunk, self._filled))
        self._filled = 0

    def _written(self) -> mmap.mmap:
        """Memory that may be filled again."""
        return self._waiting.popleft().result()

    def _write(self, chunk: mmap.mmap, size: int) -> mmap.mmap:
        with memoryview(chunk) as whole, whole[:size] as view:
            self._hasher.update(view)
            self._file.write(view)
        return chunk

    def finish(self) -> bytes:
        """On the disk but for the file's name when it returns; BLAKE3 of all of it."""
        self._pass_on()
        while self._waiting:
            self._written()
        self._file.sync()
        self._end()
        return self._hasher.digest()

    def drop(self) -> None:
        """Leave nothing of it: it would take the space that the disk may not have."""
        self._end()
        with suppress(OSError):
            os.unlink(self.path)

    def _end(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._file.close()


def read_sums(path: Path, numel: int, digest: bytes) -> NDArray[np.float32]:
    """All cells of a fragment of `numel` elements, one behind the other. Raises CheckpointError
    unless the file is what was written."""
    try:
        if path.stat().st_size != 4 * numel:
            raise CheckpointError(f"{path} has another size")
        sums_N = np.fromfile(path, dtype="<f4")
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if blake3(sums_N.data.cast("B")).digest() != digest:
        raise CheckpointError(f"{path} is not the file that was written")
    return sums_N
