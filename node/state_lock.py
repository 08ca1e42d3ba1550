"""One node per state folder: two with one key would fill the same slots twice, and be convicted."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from protocol.errors import ConfigError

LOCK_FILE = "lock"

if sys.platform == "win32":
    import msvcrt

    def _lock(file: BinaryIO) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: BinaryIO) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked_state(folder: Path) -> Iterator[None]:
    """Hold the folder, made if need be. Raises ConfigError where another process holds it.

    The system lets go of it when this process ends, however it ends; the empty file stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("ab") as file:
        try:
            _lock(file)
        except OSError as error:
            raise ConfigError(
                f"another node runs in {folder}: give this one a folder of its own with --state"
            ) from error
        yield
