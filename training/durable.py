"""What must reach the disk, and in which order, so that a crash leaves whole files."""

import os
from collections.abc import Iterable
from pathlib import Path

WRITING = ".writing-"
"""Names that begin so are unfinished: what a crash left of a write that never returned."""


def replace_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write `parts` as the file `path`, on the disk under its name when this returns.

    A crash leaves the old file or the new one, and at most an unfinished one beside it. Raises
    OSError, on a full disk for instance: then the old file stands and nothing is left of the new.
    """
    writing = path.with_name(WRITING + path.name)
    try:
        with writing.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        writing.replace(path)
    except OSError:
        # It would take the space that the disk has not got.
        writing.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


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
