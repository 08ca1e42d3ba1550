"""How errors end a process: what the user is told, and the exit status.

0 done, 1 failed, 2 bad usage or configuration, 3 no peer reachable, 4 refused or banned, or two
histories of one run; 128 and the signal's number where a signal ended it.
"""

import errno
from pathlib import Path

from protocol.errors import (
    BarnraiseError,
    ConfigError,
    ManifestMismatch,
    NetworkError,
    PeerError,
    first_of,
)

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_REFUSED = 0, 1, 2, 3, 4
EXIT_INTERRUPTED = 130


def exit_status(error: BarnraiseError) -> int:
    """What a process ends with that raised `error`."""
    if isinstance(error, ManifestMismatch | PeerError):
        return EXIT_REFUSED
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    return EXIT_UNREACHABLE if isinstance(error, NetworkError) else EXIT_FAILED


def user_error(group: BaseExceptionGroup[BaseException], state: Path) -> BarnraiseError:
    """What to tell the user: the first error, that of a disk with what can be done about it.

    Sockets are not behind it: their errors are NetworkErrors.
    """
    error = first_of(group)
    if isinstance(error, BarnraiseError):
        return error
    return _of_the_system(error, state)


def command_error(error: BaseException) -> BarnraiseError | None:
    """What to tell the user of an error that no command took care of: the same, where the system
    refused something; None for a bug, which is to be shown as it is."""
    first = first_of(error) if isinstance(error, BaseExceptionGroup) else error
    if isinstance(first, BarnraiseError):
        return first
    return _of_the_system(first, None) if isinstance(first, OSError) else None


def _of_the_system(error: BaseException, state: Path | None) -> ConfigError:
    where = getattr(error, "filename", None) or state
    why = getattr(error, "strerror", None) or str(error)
    number = getattr(error, "errno", None)
    cure = ""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cure = "; make room and start again: what was sealed is safe"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        cure = "; name a folder that you may write to with --state"
    elif number == errno.EIO:
        cure = (
            "; the disk is failing: copy the state folder to another one and name that with "
            "--state. Logs that cannot be copied may be left out: peers have what was in them"
        )
    elif number in (errno.EMFILE, errno.ENFILE):
        cure = "; let it have more open files at a time (ulimit -n 4096), and start again"
    refused = "the system refuses" if where is None else f"cannot use {where}"
    return ConfigError(f"{refused}: {why}{cure}")
