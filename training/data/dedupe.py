"""What a pack remembers on the disk: which texts it has seen, and how far it has come.

Both are in one database of SQLite, so that one commit makes both durable. It keeps what does not
fit into a bounded cache on the disk; a text takes some 40 bytes there.

A text is taken where it was seen first. What is remembered is therefore its place, and not only
that it was seen: whoever reads on after an interruption, or reads a source a second time for its
weight, comes to the same places and finds the same texts new.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import CorpusError

_CACHE_KIB = 32 * 1024


class PackJournal:
    """The memory of one pack. Only one process at a time has it. Close it."""

    def __init__(self, path: Path) -> None:
        """Raises CorpusError if another process has it, or it is torn."""
        self._path = path
        with self._told():
            self._database = sqlite3.connect(path, timeout=0.0, isolation_level=None)
            for line in (
                "PRAGMA locking_mode = EXCLUSIVE",
                "PRAGMA journal_mode = WAL",
                "PRAGMA synchronous = NORMAL",
                f"PRAGMA cache_size = -{_CACHE_KIB}",
                "CREATE TABLE IF NOT EXISTS seen (digest BLOB PRIMARY KEY, place INTEGER) "
                "WITHOUT ROWID",
                "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, text TEXT)",
                "BEGIN IMMEDIATE",
            ):
                self._database.execute(line)

    def is_first(self, digest: bytes, place: int) -> bool:
        """Whether the text of this digest is first seen at this place; it is remembered."""
        with self._told():
            put = self._database.execute(
                "INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, place)
            )
            if put.rowcount:
                return True
            found = self._database.execute("SELECT place FROM seen WHERE digest = ?", (digest,))
            return bool(found.fetchone()[0] == place)

    def load(self, name: str) -> str | None:
        """What was last saved under a name."""
        with self._told():
            found = self._database.execute("SELECT text FROM state WHERE name = ?", (name,))
            row = found.fetchone()
        return None if row is None else str(row[0])

    def save(self, name: str, text: str) -> None:
        """Make it, and all texts that were seen so far, durable."""
        with self._told():
            self._database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, text))
            self._commit()

    def forget(self) -> None:
        """Have seen nothing, and have come nowhere, durably."""
        with self._told():
            self._database.execute("DELETE FROM seen")
            self._database.execute("DELETE FROM state")
            self._commit()

    def close(self) -> None:
        """Give the file back; what was not saved is forgotten."""
        self._database.close()

    def _commit(self) -> None:
        self._database.execute("COMMIT")
        self._database.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CorpusError(
                f"{self._path} cannot be used: {error}; is another pack at work in this folder, "
                "or is the disk full?"
            ) from error
        except sqlite3.DatabaseError as error:
            raise CorpusError(
                f"{self._path} is torn: {error}; delete {self._path.parent} and pack again"
            ) from error
