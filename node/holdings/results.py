"""Files of encoded results: one for each certified LIST, the cells behind one another.

    results/round-000042-<LIST>.bin    the cells, then size and root of each, how many, and BLAKE3
                                       over what follows the cells

A cell's root is known when it comes here: it is in a proof. So nothing large is hashed again while
a SEAL waits.

A SEAL waits for its result to be on the disk, and every node of a round writes one at the same
time. So cells are written ahead as they come, in any order, and what is left to do at the end is
little. Until it is whole a file has a name that the next start removes.
"""

import logging
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from operator import itemgetter
from pathlib import Path

from blake3 import blake3

from protocol import limits
from protocol.grid import cell_root
from training.files.durable import WRITING, Files, OpenFile, make_folder_durably, replace_durably

logger = logging.getLogger(__name__)

SYNC_BYTES = 16 * limits.MIB
"""Of what is written ahead the disk is given so much at a time: the sync at the end waits for the
last of them only, and the syncs of other files for one."""

JOINED_BYTES = 1 * limits.MIB
"""Cells behind one another are written together until they have so many bytes."""

_DIGEST_BYTES = 32
_LINE, _COUNT = struct.Struct("!I32s"), struct.Struct("!I")
_NAME = re.compile(r"round-(\d{6,12})-([0-9a-f]{64})\.bin")

ReadBack = Callable[[int, int], bytes]
"""Bytes of a result, from a byte on, so many; fewer at the end of its file. Raises OSError."""

Placed = tuple[int, bytes]
"""Where a cell begins in its file, and its bytes."""


class _Unfinished:
    """The file of one result while it is written. Raises OSError; then it is to be dropped."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._writing = path.with_name(WRITING + path.name)
        self._file: OpenFile = files.create(self._writing)
        self._placed: dict[int, bytes] = {}
        self._unsynced_bytes = 0

    def place(self, cells: Iterable[Placed]) -> None:
        """Write cells, but for those whose very bytes stand there."""
        for start, payload in _joined(self._missing(cells)):
            self._file.put(start, payload)
            self._unsynced_bytes += len(payload)
            if self._unsynced_bytes >= SYNC_BYTES:
                self._unsynced_bytes = 0
                self._file.relieve()

    def _missing(self, cells: Iterable[Placed]) -> Iterator[Placed]:
        for start, payload in cells:
            if self._placed.get(start) is not payload:
                # Held as well as written: another object in its place would be other bytes.
                self._placed[start] = payload
                yield start, payload

    def finish(self, cells: Sequence[bytes], index: bytes) -> None:
        """All cells are known: the file, `index` at its end, is on the disk when this returns."""
        starts = list(accumulate((len(payload) for payload in cells), initial=0))
        if not self._placed.keys() <= set(starts[:-1]):
            self._file.truncate(0)  # Written ahead for another grid.
            self._placed.clear()
        self.place(zip(starts, cells, strict=False))
        self._file.put(starts[-1], index)
        self._file.sync()
        self._file.close()
        self._files.rename(self._writing, self.path)
        self._files.sync_folder(self.path.parent)

    def drop(self) -> None:
        """Leave nothing of it: it would take the space that the disk may not have."""
        self._file.close()
        with suppress(OSError):  # The next start removes it.
            self._files.unlink(self._writing)


class ResultFiles:
    """The results in one folder. Its methods block, and may be called from several threads."""

    def __init__(self, folder: Path, files: Files) -> None:
        """Removes what a crash has left unfinished. Raises OSError."""
        self._folder, self._files = folder, files
        self._lock = threading.Lock()
        self._unfinished: _Unfinished | None = None
        self._whole: set[str] = set()
        """Names of results that this process wrote, or read and found whole."""
        make_folder_durably(folder, files)
        for name in files.names(folder):
            if name.startswith(WRITING):
                files.unlink(folder / name)
        files.sync_folder(folder)

    def write_ahead(self, round_index: int, digest: bytes, cells: Iterable[Placed]) -> None:
        """Cells of a result that may have to be kept. At most one result is written ahead.

        A disk that does not take them is no loss: `keep` tries again, and says so.
        """
        name = _name(round_index, digest)
        with self._lock:
            if name in self._whole:
                return
            try:
                self._open(name).place(cells)
            except OSError as error:
                # A sync that failed has lost bytes, and the next one would not say so.
                self._drop()
                logger.warning("result not written ahead reason=%s", error)

    def keep(
        self, round_index: int, digest: bytes, cells: Sequence[bytes], roots: Sequence[bytes] = ()
    ) -> None:
        """On the disk when it returns; `roots` of the cells, where known. Raises OSError."""
        name, index = _name(round_index, digest), _index(cells, roots)
        with self._lock:
            if name in self._whole:
                return
            unfinished, path = self._unfinished, self._folder / name
            if unfinished is None or unfinished.path != path:
                replace_durably(path, [*cells, index], self._files)
            else:
                try:
                    unfinished.finish(cells, index)
                except OSError:
                    self._drop()
                    raise
                self._unfinished = None
            self._whole.add(name)

    def _open(self, name: str) -> _Unfinished:
        path = self._folder / name
        if self._unfinished is None or self._unfinished.path != path:
            self._drop()
            self._unfinished = _Unfinished(path, self._files)
        return self._unfinished

    def _drop(self) -> None:
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished.drop()

    def remove_before(self, round_index: int) -> None:
        """Those of older rounds go, but for the last ones, which others step through."""
        names = self._files.names(self._folder)
        rounds = {name: int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        newest = max(rounds.values(), default=0)
        first = min(round_index, newest - limits.RESULT_ROUNDS_KEPT + 1)
        for name, of_round in rounds.items():
            if of_round < first:
                self._whole.discard(name)
                self._files.unlink(self._folder / name)

    def of_round(self, round_index: int) -> Mapping[bytes, bytes]:
        """By LIST digest all cells behind one another; what is not whole or cannot be read is left
        out, and named."""
        found = {}
        for name in self._files.names(self._folder):
            match = _NAME.fullmatch(name)
            if match is None or int(match[1]) != round_index:
                continue
            path = self._folder / name
            body, reason = None, "not what was written"
            try:
                body = _body(self._files.content(path))
            except OSError as error:
                reason = str(error)
            if body is not None:
                found[bytes.fromhex(match[2])] = body
                self._whole.add(name)
            else:
                self._whole.discard(name)
                logger.warning("result skipped path=%s reason=%s", path, reason)
        return found

    def reader(self, round_index: int, digest: bytes) -> ReadBack | None:
        """Of the file of a result; None unless this process has written it or found it whole."""
        name = _name(round_index, digest)
        return partial(self._files.content, self._folder / name) if name in self._whole else None

    def close(self) -> None:
        """What is unfinished goes."""
        with self._lock:
            self._drop()


def _joined(cells: Iterable[Placed]) -> Iterator[Placed]:
    """The same bytes in order, with what is small joined to its neighbours: a short write goes
    through the system's cache, which costs more than the copy."""
    run: list[bytes] = []
    first = size = 0
    for start, payload in sorted(cells, key=itemgetter(0)):
        if run and (start != first + size or size >= JOINED_BYTES):
            yield first, run[0] if len(run) == 1 else b"".join(run)
            run, size = [], 0
        if not run:
            first = start
        run.append(payload)
        size += len(payload)
    if run:
        yield first, run[0] if len(run) == 1 else b"".join(run)


def _index(cells: Sequence[bytes], roots: Sequence[bytes]) -> bytes:
    """What stands behind the cells; roots of 32 bytes each, made here where none are given."""
    if not roots:
        roots = [cell_root(payload) for payload in cells]
    lines = zip(cells, roots, strict=True)
    said = b"".join(_LINE.pack(len(payload), root) for payload, root in lines)
    said += _COUNT.pack(len(cells))
    return said + blake3(said).digest()


def _body(data: bytes) -> bytes | None:
    """The cells behind one another, from a whole file; None if it is not as it was written."""
    view, counted = memoryview(data), len(data) - _DIGEST_BYTES - _COUNT.size
    if counted < 0:
        return None
    (count,) = _COUNT.unpack_from(view, counted)
    stop = counted - count * _LINE.size
    if stop < 0 or blake3(view[stop:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        return None
    start = 0
    for size, root in _LINE.iter_unpack(view[stop:counted]):
        if start + size > stop or cell_root(view[start : start + size]) != root:
            return None
        start += size
    return data[:stop] if start == stop else None


def _name(round_index: int, digest: bytes) -> str:
    return f"round-{round_index:06d}-{digest.hex()}.bin"
