"""One node per state folder: two with one key would fill the same slots twice, and be convicted."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from node.state.folder import make_folder
from protocol.errors import ConfigError

LOCK_FILE = "lock"

_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)

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
    make_folder(folder)
    try:
        file = (folder / LOCK_FILE).open("ab")
    except OSError as error:
        raise ConfigError(
            f"cannot use {folder / LOCK_FILE}: {error.strerror}; name another folder with --state"
        ) from error
    with file:
        try:
            _lock(file)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise ConfigError(
                    f"cannot lock {folder}: {error.strerror}; name a folder on a local disk with "
                    "--state"
                ) from error
            raise ConfigError(
                f"another node runs in {folder}, and one identity is one node: stop that one "
                "first, or give this one a folder of its own with --state"
            ) from error
        yield
