"""An append-only file of records that a crash at any moment leaves readable.

Each record is a 4-byte length, 8 bytes of its BLAKE3 digest, and its bytes; the highest bit of the
length says that it came with the record before, in one append. A torn tail is what the crash left
of an append that never returned; a bad record with a later append behind it is a damaged disk, and
that is something else: records are missing that were promised.

Of an append of several records the disk may have kept a later one without an earlier one. That is
why whole records behind a bad one are no proof of damage: one of them must have begun an append.

What a damaged disk would take away is set aside (`keep_log`, `keep_later`).
"""

import errno
import shutil
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from training.files.durable import (
    SYSTEM_FILES,
    WRITING,
    Files,
    fsync_folder,
    make_folder_durably,
    replace_durably,
)
from training.files.state import checkpoint_folders, round_of

_HEADER = struct.Struct(">I8s")
_CONTINUES = 1 << 31
_CONTINUED = b"continues"
RECORD_BYTES_MAX = 1 << 20
"""The longest record, a seal of the largest roster, has 34 KiB."""


class RecordLog:
    """One writer. Opening it cuts a torn tail off; `take_opened` gives what stood in it then.

    `on_cut` is called before anything is cut off that has a whole record in it, `on_damage` then if
    it is more than a torn tail.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_cut: Callable[[], None] = lambda: None,
        on_damage: Callable[[], None] = lambda: None,
        files: Files = SYSTEM_FILES,
        pack: "PackRecord | None" = None,
    ) -> None:
        self.path, self._pack = path, pack or packed_record
        self._files = files
        files.unlink(path.with_name(WRITING + path.name))
        self._file = files.append(path)
        self._is_broken = False
        data = files.content(path)
        self._opened, self._size, self.is_damaged = _read(data, self._pack)
        self._sizes = array("I", map(len, self._opened))
        if self.is_damaged or _has_record(data, self._size + 1, continues=True):
            on_cut()
        if self.is_damaged:
            on_damage()
        if len(data) > self._size:
            # What is appended behind a torn record could never be read again.
            self._file.truncate(self._size)
        # All this is believed from now on, and a process that was killed may have left the name or
        # its last append in the system's cache alone. If that was after a sync that failed, another
        # one does nothing: so the same bytes are written over themselves.
        start = self._last_append(data)
        if start < self._size:
            files.overwrite(path, start, data[start : self._size])
        files.sync_folder(path.parent)

    def _last_append(self, data: bytes) -> int:
        position = self._size
        for size in reversed(self._sizes):
            position -= _HEADER.size + size
            (length, _) = _HEADER.unpack_from(data, position)
            if length < _CONTINUES:
                break
        return position

    def take_opened(self) -> list[bytes]:
        """The whole records that stood in the file when it was opened; asked once."""
        opened, self._opened = self._opened, []
        return opened

    def read(self, index: int, count: int | None = None) -> list[bytes]:
        """At most `count` records from number `index` on; not behind the first bad one.

        Raises OSError, also where a `replace` failed.
        """
        self._raise_if_broken()
        start = sum(self._sizes[:index]) + index * _HEADER.size
        wanted = self._sizes[index:] if count is None else self._sizes[index : index + count]
        size = sum(wanted) + len(wanted) * _HEADER.size
        return list(_records(self._files.content(self.path, start, size), self._pack))

    def __len__(self) -> int:
        """Number of records in the file."""
        return len(self._sizes)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._size

    def append(self, records: Sequence[bytes]) -> None:
        """Write the records; on the disk when this returns. Raises OSError on a full disk.

        A failed append leaves nothing of itself behind: a later one is not lost behind its rest. If
        not even that can be done, every later one fails too.
        """
        self._raise_if_broken()
        packed = b"".join(
            [self._pack(record, continues=index > 0) for index, record in enumerate(records)]
        )
        self._is_broken = True
        try:
            self._file.write(packed)
            self._file.sync()
        except OSError:
            self._file.truncate(self._size)
            self._is_broken = False
            raise
        self._is_broken = False
        self._size += len(packed)
        self._sizes.extend(map(len, records))

    def replace(self, records: Sequence[bytes]) -> None:
        """Keep only these records; a crash leaves either the old file or the new one.

        Raises OSError; which of the two stands is then known to the next process only.
        """
        self._raise_if_broken()
        self._is_broken = True
        self._file.close()
        replace_durably(
            self.path, (self._pack(record, continues=False) for record in records), self._files
        )
        self._file = self._files.append(self.path)
        self._is_broken = False
        self._sizes = array("I", map(len, records))
        self._size = sum(self._sizes) + len(records) * _HEADER.size

    def _raise_if_broken(self) -> None:
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier write failed, start again", str(self.path))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: Path, files: Files = SYSTEM_FILES) -> tuple[list[bytes], int, bool]:
    """The whole records up to the first bad one, their bytes in the file, and is it damaged.

    It is damaged where a later append follows a bad record: a torn tail has nothing behind it.
    """
    return _read(files.content(path), packed_record)


def stream_records(path: Path, *, size: int, is_plain: bool = False) -> Iterator[bytes]:
    """The whole records in the first `size` bytes of a file, one in memory at a time; ends before
    the first bad one. `is_plain` files have no record that continues an append.

    Raises OSError.
    """
    with path.open("rb") as file:
        while size >= _HEADER.size:
            header = file.read(_HEADER.size)
            length = _HEADER.unpack(header)[0] % _CONTINUES if len(header) == _HEADER.size else -1
            size -= _HEADER.size + length
            if not 0 <= length <= RECORD_BYTES_MAX or size < 0:
                return
            data = header + file.read(length)
            whole = next(_records(data, packed_record), None)
            if whole is None or (is_plain and pack_record(whole) != data):
                return
            yield whole


def pack_record(record: bytes) -> bytes:
    """A record as a file of records has it that was written at once."""
    return packed_record(record, continues=False)


def _read(data: bytes, pack: "PackRecord") -> tuple[list[bytes], int, bool]:
    records = list(_records(data, pack))
    position = sum(map(len, records)) + len(records) * _HEADER.size
    return records, position, _has_record(data, position + 1, continues=False)


class PackRecord(Protocol):
    """SEAM: `packed_record`, or in a simulated world what packs each record once for all nodes."""

    def __call__(self, record: bytes, *, continues: bool) -> bytes:
        """The record as it stands in a file."""
        ...


def packed_record(record: bytes, *, continues: bool) -> bytes:
    """A record as it stands in a file; `continues` what the same append began."""
    length = len(record) | (_CONTINUES if continues else 0)
    return _HEADER.pack(length, _digest(record, continues=continues)) + record


def _digest(record: bytes | memoryview, *, continues: bool) -> bytes:
    # The bit is under the digest like all else.
    return blake3(b"".join((record, _CONTINUED)) if continues else record).digest(8)


def _records(data: bytes, pack: "PackRecord") -> Iterator[bytes]:
    """The whole records: each stands in the file as `pack` would have it."""
    start, header_bytes, size = 0, _HEADER.size, len(data)
    while start + header_bytes <= size:
        length = int.from_bytes(data[start : start + 4], "big")
        continues, length = length >= _CONTINUES, length % _CONTINUES
        stop = start + header_bytes + length
        if length > RECORD_BYTES_MAX or stop > size:
            return
        record = data[start + header_bytes : stop]
        if pack(record, continues=continues) != data[start:stop]:
            return
        yield record
        start = stop


def _has_record(data: bytes, position: int, *, continues: bool) -> bool:
    """Whether a whole record stands anywhere behind `position` that begins an append, or that
    continues one.

    Byte by byte: where the next record begins was said by a length that may be what is bad.
    """
    view = memoryview(data)
    # A length of at most 1 MiB begins with a zero byte, but for the bit.
    first = b"\x80" if continues else b"\0"
    while 0 <= (position := data.find(first, position)) <= len(data) - _HEADER.size:
        length, digest = _HEADER.unpack_from(data, position)
        length, start = length % _CONTINUES, position + _HEADER.size
        if 0 < length <= min(RECORD_BYTES_MAX, len(data) - start):
            record = view[start : start + length]
            if _digest(record, continues=continues) == digest:
                return True
        position += 1
    return False


# Set aside ----------------------------------------------------------------------------------------
#
# What would be lost for good is kept beside the run's files until it is of no use any more.
#
#     set-aside/chain.log       a log with records missing, as it was before it was cut; the longest
#     set-aside/chain.log.1     the last one that was not longer than that
#     set-aside/round-000050    a checkpoint of later rounds than those that the node goes on from
#
# Both come of a damaged disk. Peers give such a node what it lacks; where there are none, these
# files are all that is left of its later rounds.

SET_ASIDE_FOLDER = "set-aside"


def keep_log(path: Path, files: Files) -> Path:
    """Copy a log that is about to be cut, beside a longer one that was kept before. Raises OSError
    where the disk is full: it is not to be cut then."""
    folder = path.parent / SET_ASIDE_FOLDER
    kept, data = folder / path.name, files.content(path)
    before = files.content(kept) if files.exists(kept) else b""
    if before == data:
        return kept
    if len(before) >= len(data):
        kept = kept.with_name(f"{path.name}.1")
    files.make_folder(folder)
    replace_durably(kept, [data], files)
    files.sync_folder(path.parent)
    return kept


def keep_later(checkpoints: Path, round_index: int) -> Path | None:
    """Move the newest checkpoint away if it starts a later round than the one that is about to be
    written: it would be removed with that. Raises OSError."""
    newest = next(iter(checkpoint_folders(checkpoints)), None)
    if newest is None or round_of(newest) <= round_index:
        return None
    folder = checkpoints.parent / SET_ASIDE_FOLDER
    make_folder_durably(folder)
    for kept in _kept(folder):
        if round_of(kept) > round_of(newest):
            return None
        shutil.rmtree(kept)
    to = newest.rename(folder / newest.name)
    fsync_folder(folder)
    fsync_folder(checkpoints)
    return to


def forget_before(checkpoints: Path, round_index: int) -> None:
    """Remove what was kept of rounds that are on the disk again. Raises OSError."""
    folder = checkpoints.parent / SET_ASIDE_FOLDER
    for kept in _kept(folder):
        if round_of(kept) <= round_index:
            shutil.rmtree(kept)


def _kept(folder: Path) -> list[Path]:
    return checkpoint_folders(folder) if folder.is_dir() else []
