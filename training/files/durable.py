"""What must reach the disk, and in which order, so that a crash leaves whole files.

Nothing is promised by the system but this: a file's bytes are on the disk once the file was synced,
and a name once its folder was. What was not synced may be lost, torn, or there without what was
written before it. A sync that failed has lost what it was for: the next one succeeds without it.

Large writes go past the system's page cache where it lets us: Linux, and most file systems. Bytes
that are written once and read hardly ever need no copy there. Each of its pages is taken fresh,
which in a virtual machine whose host takes free memory back costs several times as much as the
copy. What is written so is on its way to the device when the call returns; that it is durable only
a sync says.
"""

import errno
import mmap
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Protocol

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


Bytes = bytes | memoryview

WRITING = ".writing-"
"""Names that begin so are unfinished: what a crash left of a write that never returned."""

_CHUNK_BYTES = 1 << 20
_FOLDERS_OF_OURS = 4
"""state/runs/run/results."""


class OpenFile(Protocol):
    """A file that is open for writing at its end."""

    def write(self, data: Bytes) -> None:
        """Append all of it; of a write that fails a part may be there."""
        ...

    def put(self, start: int, data: Bytes) -> None:
        """Write all of it from byte `start` on; a gap before it is zeros."""
        ...

    def sync(self) -> None:
        """Make what was written durable."""
        ...

    def relieve(self) -> None:
        """Have the disk write what the system still holds back, so that a later sync is short."""
        ...

    def truncate(self, size: int) -> None:
        """Cut off what stands behind the first `size` bytes."""
        ...

    def close(self) -> None:
        """Give the file back; syncs nothing."""
        ...


class Files(Protocol):
    """SEAM: the files of one machine; the system's, or the simulator's. All raise OSError."""

    def append(self, path: Path) -> OpenFile:
        """Open a file to write behind what it has; makes one that is missing."""
        ...

    def create(self, path: Path) -> OpenFile:
        """Open an empty file; what it had is gone."""
        ...

    def overwrite(self, path: Path, start: int, data: Bytes) -> None:
        """Write over bytes that the file has, from byte `start` on, and sync it."""
        ...

    def content(self, path: Path, start: int = 0, size: int = -1) -> bytes:
        """At most `size` bytes from byte `start` on; without a size all of them."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether there is a file or a folder of that name."""
        ...

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, sorted."""
        ...

    def rename(self, path: Path, to: Path) -> None:
        """Give a file another name in its folder; a file that has the name already is replaced."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        ...

    def make_folder(self, folder: Path) -> None:
        """Make a folder in one that is there; nothing happens if it is there already."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable, and that others are gone."""
        ...


class SystemFile:
    """OpenFile over a descriptor, without a buffer: bytes that failed are not tried again later.

    Of a file that is made anew large pieces go past the page cache (`training.files.durable`).
    """

    def __init__(self, path: Path, mode: str, start: int = 0) -> None:
        self._file, self._path = FileIO(path, mode), path
        self._past_cache = PastCache(path) if mode == "wb" else None
        self._has_cached = False
        if start:
            self._file.seek(start)

    def write(self, data: Bytes) -> None:
        """See OpenFile."""
        view = memoryview(data)
        if not view.nbytes:  # A view of no elements has no bytes to cast to.
            return
        try:
            self._write(view.cast("B"))
        except OSError as error:
            error.filename = error.filename or str(self._path)  # A descriptor's errors name none.
            raise

    def _write(self, view: memoryview) -> None:
        if self._past_cache is not None and view.nbytes >= DIRECT_BYTES_MIN:
            start = self._file.tell()
            head = -start % BLOCK_BYTES
            self._write_cached(view[:head])
            done = head + self._past_cache.put(start + head, view[head:])
            self._file.seek(start + done)
            view = view[done:]
        self._write_cached(view)

    def _write_cached(self, view: memoryview) -> None:
        self._has_cached = self._has_cached or bool(view)
        while view:
            view = view[self._file.write(view) :]

    def put(self, start: int, data: Bytes) -> None:
        """See OpenFile."""
        self._file.seek(start)
        self.write(data)

    def sync(self) -> None:
        """See OpenFile."""
        os.fsync(self._file.fileno())
        self._has_cached = False

    def relieve(self) -> None:
        """See OpenFile; what went past the cache is held back by nobody."""
        if self._has_cached:
            self.sync()

    def truncate(self, size: int) -> None:
        """See OpenFile."""
        self._file.truncate(size)

    def close(self) -> None:
        """See OpenFile."""
        if self._past_cache is not None:
            self._past_cache.close()
        self._file.close()


class SystemFiles:
    """Files of the operating system."""

    def append(self, path: Path) -> SystemFile:
        """See Files."""
        return SystemFile(path, "ab")

    def create(self, path: Path) -> SystemFile:
        """See Files."""
        return SystemFile(path, "wb")

    def overwrite(self, path: Path, start: int, data: Bytes) -> None:
        """See Files."""
        file = SystemFile(path, "r+b", start)
        try:
            file.write(data)
            file.sync()
        finally:
            file.close()

    def content(self, path: Path, start: int = 0, size: int = -1) -> bytes:
        """See Files."""
        with path.open("rb") as file:
            try:
                file.seek(start)
                return file.read(size)
            except OSError as error:
                error.filename = error.filename or str(path)  # As above.
                raise

    def exists(self, path: Path) -> bool:
        """See Files."""
        return path.exists()

    def names(self, folder: Path) -> list[str]:
        """See Files."""
        return sorted(os.listdir(folder))

    def rename(self, path: Path, to: Path) -> None:
        """See Files."""
        path.replace(to)

    def unlink(self, path: Path) -> None:
        """See Files."""
        path.unlink(missing_ok=True)

    def make_folder(self, folder: Path) -> None:
        """See Files."""
        folder.mkdir(exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """See Files."""
        fsync_folder(folder)


SYSTEM_FILES = SystemFiles()


def replace_durably(path: Path, parts: Iterable[Bytes], files: Files = SYSTEM_FILES) -> None:
    """Write `parts` as the file `path`, on the disk under its name when this returns.

    A crash leaves the old file or the new one, and at most an unfinished one beside it. Raises
    OSError, on a full disk for instance: then the old file stands and nothing is left of the new;
    only if the folder could not be synced, the new one may stand.
    """
    writing = path.with_name(WRITING + path.name)
    try:
        file = files.create(writing)
        try:
            for chunk in in_blocks(parts):
                file.write(chunk)
            file.sync()
        finally:
            file.close()
        files.rename(writing, path)
    except OSError:
        # It would take the space that the disk has not got.
        files.unlink(writing)
        raise
    files.sync_folder(path.parent)


def in_blocks(parts: Iterable[Bytes]) -> Iterator[Bytes]:
    """The same bytes in few writes: small parts joined, large ones as they are.

    All but the last are of whole blocks, so that each begins at one.
    """
    small = bytearray()
    for part in parts:
        view = memoryview(part)
        if not view.nbytes:
            continue
        view = view.cast("B")
        if len(small) + len(view) >= _CHUNK_BYTES:
            if small:
                missing = -len(small) % BLOCK_BYTES
                if len(view) - missing < _CHUNK_BYTES:
                    missing = max(0, _CHUNK_BYTES - len(small))
                small += view[:missing]
                view = view[missing:]
                yield bytes(small)
                small.clear()
            whole = len(view) - len(view) % BLOCK_BYTES
            if whole >= _CHUNK_BYTES:
                yield view[:whole]
                view = view[whole:]
        small += view
    if small:
        yield bytes(small)


def make_folder_durably(folder: Path, files: Files = SYSTEM_FILES) -> None:
    """Make a folder and those above it; on the disk under their names when this returns.

    The names of those that are there are synced too, as far up as a node makes folders: who made
    them may not have lived to do so.
    """
    places = _places(folder)
    missing = [place for place in places if not files.exists(place)]
    for place in reversed(missing):
        files.make_folder(place)
        files.sync_folder(place.parent)
    for number in range(len(missing), min(len(places), _FOLDERS_OF_OURS)):
        with suppress(PermissionError):  # Who may not read a folder has made nothing in it.
            files.sync_folder(places[min(number + 1, len(places) - 1)])


@lru_cache(maxsize=64)
def _places(folder: Path) -> tuple[Path, ...]:
    """The folder, and all above it."""
    return (folder, *folder.parents)


def fsync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "nt":
        return  # Windows opens no folders; its rename is in the journal.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
