"""An append-only file of records that a crash at any moment leaves readable.

Each record is a 4-byte length, 8 bytes of its BLAKE3 digest, and its bytes. A torn tail is what the
crash left of an append that never returned; a bad record with whole ones behind it is a damaged
disk, and that is something else: records are missing that were promised.
"""

import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from blake3 import blake3

from training.durable import fsync_folder, replace_durably

_HEADER = struct.Struct(">I8s")
RECORD_BYTES_MAX = 1 << 20
"""The longest record, a seal of the largest roster, has 34 KiB."""


class RecordLog:
    """One writer. Opening it cuts a torn tail off; `take_opened` gives what stood in it then.

    `on_damage` is called before anything is cut off that is more than a torn tail.
    """

    def __init__(self, path: Path, *, on_damage: Callable[[], None] = lambda: None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        is_new = not path.exists()
        self._file = path.open("ab")
        records, whole_bytes, self.is_damaged = read_records(path)
        self._opened = records
        self._sizes = array("I", map(len, records))
        if self.is_damaged:
            on_damage()
        if self._file.tell() > whole_bytes:
            # What is appended behind a torn record could never be read again.
            self._file.truncate(whole_bytes)
            os.fsync(self._file.fileno())
        if is_new:
            fsync_folder(path.parent)

    def take_opened(self) -> list[bytes]:
        """The whole records that stood in the file when it was opened; asked once."""
        opened, self._opened = self._opened, []
        return opened

    def read(self, index: int, count: int | None = None) -> list[bytes]:
        """At most `count` records from number `index` on; not behind the first bad one."""
        start = sum(self._sizes[:index]) + index * _HEADER.size
        wanted = self._sizes[index:] if count is None else self._sizes[index : index + count]
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(sum(wanted) + len(wanted) * _HEADER.size)
        return list(_records(data, 0))

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._file.tell()

    def append(self, records: Sequence[bytes]) -> None:
        """Write the records; on the disk when this returns. Raises OSError on a full disk.

        A failed append leaves nothing of itself behind: a later one is not lost behind its rest.
        """
        start = self._file.tell()
        try:
            self._file.write(b"".join(map(_packed, records)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file.close()
            os.truncate(self.path, start)
            raise
        self._sizes.extend(map(len, records))

    def replace(self, records: Sequence[bytes]) -> None:
        """Keep only these records; a crash leaves either the old file or the new one."""
        self._file.close()
        replace_durably(self.path, map(_packed, records))
        self._file = self.path.open("ab")
        self._sizes = array("I", map(len, records))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_records(path: Path) -> tuple[list[bytes], int, bool]:
    """The whole records up to the first bad one, their bytes in the file, and is it damaged.

    It is damaged where a whole record follows a bad one: a torn tail has nothing behind it.
    """
    data = path.read_bytes()
    records, position = [], 0
    for record in _records(data, 0):
        records.append(record)
        position += _HEADER.size + len(record)
    is_damaged = False
    if position + _HEADER.size <= len(data):
        (length, _) = _HEADER.unpack_from(data, position)
        behind = position + _HEADER.size + length
        is_damaged = any(True for _ in _records(data, behind)) if behind < len(data) else False
    return records, position, is_damaged


def _packed(record: bytes) -> bytes:
    return _HEADER.pack(len(record), blake3(record).digest(length=8)) + record


def _records(data: bytes, position: int) -> Iterator[bytes]:
    while position + _HEADER.size <= len(data):
        length, digest = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        record = data[position : position + length]
        is_whole = len(record) == length <= RECORD_BYTES_MAX
        if not is_whole or blake3(record).digest(length=8) != digest:
            return
        yield record
        position += length
