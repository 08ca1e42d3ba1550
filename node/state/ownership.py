"""Whose a folder or a secret file is: what somebody else may have put there is not taken.

Whoever may write to a state folder can exchange the key in it, and be this node, or have this node
be them. So a folder of another user is refused, and one that everybody may write to; what only the
group may change, or others may read, is said. Of systems without such rights nothing is asked, nor
of disks without them: everything on those belongs to whoever has mounted them.
"""

import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

import platformdirs

from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

ROOT_UID = 0

GROUP_WRITES, OTHERS_WRITE, OTHERS_READ = stat.S_IWGRP, stat.S_IWOTH, stat.S_IRGRP | stat.S_IROTH


def check_folder(folder: Path) -> None:
    """Raise ConfigError for a folder in which somebody else could exchange files."""
    if os.name != "posix":
        return
    found = folder.stat()
    if _is_foreign(found):
        raise ConfigError(
            f"{folder} belongs to {_name(found.st_uid)}, who could exchange the key in it: name a "
            "folder of your own with --state, or make this one yours with chown"
        )
    if found.st_mode & OTHERS_WRITE and _has_rights(folder):
        raise ConfigError(
            f"everybody on this machine may write to {folder}, and so exchange the key in it: name "
            "a folder within it with --state, or close it with chmod go-w"
        )
    if found.st_mode & GROUP_WRITES and _has_rights(folder):
        _warn(f"the group of {folder} may exchange the key in it: close it with chmod go-w")


def read_secret(path: Path, most: int, what: str) -> bytes:
    """At most `most` bytes and one more of a secret file; `what` names it to people.

    Raises ConfigError for a file that somebody else could have written, OSError where it cannot be
    read. One that others can read is said.
    """
    with path.open("rb") as file:
        if os.name == "posix":
            _check_secret(path, os.fstat(file.fileno()), what)
        return file.read(most + 1)


def _check_secret(path: Path, found: os.stat_result, what: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        return  # A pipe, as of a shell's <(...): made for this one reading.
    if _is_foreign(found):
        raise ConfigError(
            f"{what} {path} belongs to {_name(found.st_uid)}, who knows it: take one of your own, "
            "or make it yours with chown if you know where it is from"
        )
    if found.st_mode & (GROUP_WRITES | OTHERS_WRITE) and _has_rights(path.parent):
        raise ConfigError(
            f"others may write to {what} {path}, and may have exchanged it: if it is what you put "
            "there, close it with chmod 600"
        )
    if found.st_mode & OTHERS_READ and _has_rights(path.parent):
        _warn(f"others on this machine can read {what} {path}: close it with chmod 600")


def _is_foreign(found: os.stat_result) -> bool:
    """Whether somebody else owns it. The superuser may do everything anyway."""
    return found.st_uid not in (ROOT_UID, os.geteuid())


def _name(uid: int) -> str:
    import pwd  # Not on Windows.

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _has_rights(folder: Path) -> bool:
    """Whether the disk keeps whom a file is for: FAT and its like do not."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return not os.fstat(file.fileno()).st_mode & 0o077
    except OSError:
        return True  # Not ours to write to, so it is of a system with rights.


@cache
def _warn(words: str) -> None:
    """Once in a process, wherever warnings go."""
    logger.warning("%s", words)


# Usual place --------------------------------------------------------------------------------------
#
# Where a node keeps its state if nobody says otherwise. It loads little: help texts name it.


def default_state() -> Path:
    """The system's place for user data."""
    return Path(platformdirs.user_data_dir("barnraise", appauthor=False))


def shown_state(within: str = "") -> str:
    """That place, or a folder in it, as people write it."""
    path = default_state() / within
    home = Path.home()
    return str(Path("~") / path.relative_to(home)) if path.is_relative_to(home) else str(path)
