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
    where = getattr(error, "filename", None) or state
    why = getattr(error, "strerror", None) or str(error)
    cure = ""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        cure = "; make room and start again: what was sealed is safe"
    elif getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS):
        cure = "; name a folder that you may write to with --state"
    elif getattr(error, "errno", None) == errno.EIO:
        cure = (
            "; the disk is failing: copy the state folder to another one and name that with "
            "--state. Logs that cannot be copied may be left out: peers have what was in them"
        )
    return ConfigError(f"cannot use {where}: {why}{cure}")
