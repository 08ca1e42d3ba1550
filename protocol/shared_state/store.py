"""The replicated state on disk: one SQLite file with a write-ahead log.

An own entry is on the disk before `write_own` returns (synchronous FULL): whoever loses one that
others have seen must not sign its number again. Others' entries are written in batches that a power
cut may lose (NORMAL: the log is synced at checkpoints only); gossip brings them again. Both leave a
file that SQLite finds whole after `kill -9`.

A file that is damaged is set aside under another name, with a warning, and a new one begun. What
this node signed may be lost with it, so its book must ask others first (`must_ask`), also after the
next start. SQLite drops a torn or cut log without a word: so the highest own stamp stands in a
second file, and a database that knows less than that file has lost something.

All calls block and belong into a worker thread, one at a time.
"""

import errno
import logging
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from protocol import limits
from protocol.errors import StateError
from protocol.shared_state.book import Changes
from protocol.shared_state.own import WrittenEntry

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
DATABASE = "state.sqlite"
MARK = "state.mark"
DAMAGED = ".damaged"

_STAMP = "stamp"
_MUST_ASK = "must ask"
_BESIDE = ("", "-wal", "-shm", "-journal")
_MARK = struct.Struct(">Q16s")
_SUM_BYTES = 16
_LOG_BYTES_MAX = 8 * limits.MIB
_ROWS_AT_ONCE = 256
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE entries (id BLOB PRIMARY KEY, encoded BLOB NOT NULL, sum BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL, sum BLOB NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


_ERROR_NUMBERS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
}
"""What the system would have said; of everything else the disk is to blame."""


def _sum(*parts: bytes) -> bytes:
    """SQLite keeps no checksums: a bit that fell over in a row would be believed."""
    digest = blake3()
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest(_SUM_BYTES)


class Store:
    """The state of one run in one folder, held by one process.

    `floor` is the highest own stamp ever written, `must_ask` whether some may be missing. Raises
    OSError, with the file's name, if the disk does not let us read or write it.
    """

    def __init__(self, folder: Path, run: bytes) -> None:
        self._folder = folder
        self._path = folder / DATABASE
        self.was_damaged = False
        marked = self._read_mark()
        try:
            try:
                self._database, rows = self._opened(run)
            except _Damaged as damage:
                self._set_aside(str(damage))
                self._database, rows = self._opened(run)
        except sqlite3.OperationalError as error:
            number = _ERROR_NUMBERS.get(error.sqlite_errorcode & 0xFF, errno.EIO)
            raise OSError(number, str(error), str(self._path)) from error
        self._rows = rows
        self.floor = int.from_bytes(self._fact(_STAMP), "big")
        # A mark that was lost says nothing of what it stood for.
        is_behind = self.floor > 0 if marked is None else marked > self.floor
        self.must_ask = self.was_damaged or is_behind or bool(self._fact(_MUST_ASK))
        self.floor = max(self.floor, marked or 0)
        if self.must_ask:
            logger.warning(
                "what this node signed may be missing on its disk: it writes no entries until "
                "others were asked folder=%s",
                folder,
            )
            with self._writing("FULL"):
                self._put_fact(_MUST_ASK, b"\x01")
        self._write_mark(self.floor)

    def take_rows(self) -> list[tuple[bytes, bytes]]:
        """Ids and bytes of what was stored, for `SharedState.restore`; asked once."""
        rows, self._rows = self._rows, []
        return rows

    def write_own(self, written: Sequence[WrittenEntry]) -> None:
        """Make own entries durable. Only then may they be released.

        Raises StateError, with nothing written, if the disk does not take them.
        """
        floor = max([self.floor, *(one.stamp for one in written)])
        with self._writing("FULL"):
            self._put_entries([(one.entry_id, one.encoded) for one in written])
            self._put_fact(_STAMP, floor.to_bytes(8, "big"))
        self.floor = floor
        try:
            self._write_mark(floor)
        except OSError as error:
            raise StateError(f"cannot write {self._folder / MARK}: {error}") from error

    def apply(self, changes: Changes) -> None:
        """Write what the book has learned, in one transaction. Raises StateError."""
        with self._writing("NORMAL"):
            self._database.executemany(
                "DELETE FROM entries WHERE id = ?", [(entry_id,) for entry_id in changes.dropped]
            )
            self._put_entries(changes.stored)

    def asked(self) -> None:
        """Others have told what they hold of this node: it may write again."""
        with self._writing("FULL"):
            self._database.execute("DELETE FROM facts WHERE name = ?", (_MUST_ASK,))
        self.must_ask = False

    def close(self) -> None:
        """Give the file back. What was written is written."""
        self._database.close()

    def _opened(self, run: bytes) -> tuple[sqlite3.Connection, list[tuple[bytes, bytes]]]:
        """The database with all its rows. Raises _Damaged for one that is not as we left it."""
        is_new = not self._path.exists()
        if is_new and (self._folder / MARK).exists():
            # It was there once: set aside just before the process ended, or deleted.
            self.was_damaged = True
        if not is_new and self._path.stat().st_size > limits.STATE_FILE_BYTES_MAX:
            raise _Damaged("larger than it can have become")
        # A log without its database was written by another one.
        if is_new:
            self._remove_beside()
        database = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=5.0
        )
        try:
            self._prepare(database)
            self._database = database
            if is_new:
                database.executescript(_SCHEMA)
                with self._writing("FULL"):
                    self._put_fact("run", run)
                    if self.was_damaged:
                        self._put_fact(_MUST_ASK, b"\x01")
            return database, self._checked_rows(database, run)
        except sqlite3.DatabaseError as error:
            database.close()
            # A full or read-only disk says nothing about the file.
            if isinstance(error, sqlite3.OperationalError) and not _is_damage(error):
                raise
            raise _Damaged(str(error)) from error
        except (_Damaged, OverflowError, UnicodeDecodeError) as error:
            database.close()
            raise _Damaged(str(error)) from error

    def _prepare(self, database: sqlite3.Connection) -> None:
        # Text that is no UTF-8 is damage like any other, and found by its sum.
        database.text_factory = bytes
        # No other process reads it, so that no file of shared memory is needed.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES_MAX}")
        database.execute("PRAGMA trusted_schema = OFF")

    def _checked_rows(self, database: sqlite3.Connection, run: bytes) -> list[tuple[bytes, bytes]]:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise _Damaged(f"of version {version} instead of {SCHEMA_VERSION}")
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict not in (b"ok", "ok"):
            raise _Damaged(str(verdict)[:200])
        if self._fact("run") != run:
            raise _Damaged("of another run")
        for name in (_STAMP, _MUST_ASK):
            self._fact(name)
        rows: list[tuple[bytes, bytes]] = []
        cursor = database.execute("SELECT id, encoded, sum FROM entries")
        while batch := cursor.fetchmany(_ROWS_AT_ONCE):
            for entry_id, encoded, check in batch:
                _raise_unless_sound(entry_id, encoded, check)
                rows.append((entry_id, encoded))
            if len(rows) > limits.STATE_ROWS_MAX:
                raise _Damaged("more rows than there can be")
        return rows

    def _fact(self, name: str) -> bytes:
        row = self._database.execute(
            "SELECT value, sum FROM facts WHERE name = ?", (name,)
        ).fetchone()
        if row is None:
            return b""
        _raise_unless_sound(name.encode(), row[0], row[1])
        return bytes(row[0])

    def _put_fact(self, name: str, value: bytes) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)",
            (name, value, _sum(name.encode(), value)),
        )

    def _put_entries(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)",
            [(entry_id, encoded, _sum(entry_id, encoded)) for entry_id, encoded in rows],
        )

    @contextmanager
    def _writing(self, synchronous: str) -> Iterator[None]:
        """One transaction, all or nothing."""
        try:
            self._database.execute(f"PRAGMA synchronous = {synchronous}")
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise StateError(f"cannot write {self._path}: {error}") from error

    def _set_aside(self, reason: str) -> None:
        self.was_damaged = True
        aside = self._path.with_name(DATABASE + DAMAGED)
        logger.warning(
            "replicated state is damaged and set aside as %s: %s; others have what is needed of it",
            aside,
            reason,
        )
        # The mark says to the next start that there was one, whatever happens in between.
        if not (self._folder / MARK).exists():
            self._write_mark(0)
        for suffix in _BESIDE:
            path = self._path.with_name(DATABASE + suffix)
            if path.exists():
                os.replace(path, aside.with_name(DATABASE + DAMAGED + suffix))

    def _remove_beside(self) -> None:
        for suffix in _BESIDE[1:]:
            self._path.with_name(DATABASE + suffix).unlink(missing_ok=True)

    def _read_mark(self) -> int | None:
        """The highest own stamp by the second file; 0 if there is none, None if it is torn."""
        try:
            with (self._folder / MARK).open("rb") as file:
                data = file.read(_MARK.size + 1)
        except FileNotFoundError:
            return 0
        if len(data) != _MARK.size:
            return None
        stamp, check = _MARK.unpack(data)
        return stamp if check == _sum(data[:8]) else None

    def _write_mark(self, stamp: int) -> None:
        """Written over in place and not synced: a process that is killed leaves it whole, and if
        power fails together with the log, the clock still leads to a higher number."""
        data = stamp.to_bytes(8, "big")
        descriptor = os.open(self._folder / MARK, os.O_WRONLY | os.O_CREAT | _BINARY, 0o600)
        try:
            os.write(descriptor, data + _sum(data))
            os.ftruncate(descriptor, _MARK.size)
        finally:
            os.close(descriptor)


_BINARY = getattr(os, "O_BINARY", 0)


class _Damaged(Exception):
    """The database is not as this class left it; the message says how that shows."""


def _is_damage(error: sqlite3.OperationalError) -> bool:
    """Whether it is the file's contents that SQLite cannot work with: a table or a column that is
    not there, a page that makes no sense."""
    code = error.sqlite_errorcode & 0xFF
    return code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _raise_unless_sound(name: object, value: object, check: object) -> None:
    if not (isinstance(name, bytes) and isinstance(value, bytes) and check == _sum(name, value)):
        raise _Damaged("a row is not what was written")
