"""The state folder: which file lies where, and writes that a crash leaves whole.

identity.key  node.toml  known_peers.json  port  lock
runs/<digest12>/  manifest.msgpack  run.toml  founded.json  unsigned (founders)  node.log  ...
                  set-aside/ (what a damaged disk would lose, `node.holdings.checkpoints`)
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from node.state.ownership import check_folder
from node.state.ownership import default_state as default_state
from protocol.errors import ConfigError
from training.files.durable import fsync_folder, make_folder_durably

KEY_FILE = "identity.key"
NODE_FILE = "node.toml"
KNOWN_PEERS_FILE = "known_peers.json"
PORT_FILE = "port"
RUNS_FOLDER = "runs"
MANIFEST_FILE = "manifest.msgpack"
RUN_FILE = "run.toml"
FOUNDED_FILE = "founded.json"
UNSIGNED_FILE = "unsigned"
"""There from the founding of a run until its founder begins to sign; see `mark_unsigned`."""

CHECKPOINTS_FOLDER = "checkpoints"

_DIGITS = 12
"""Hexadecimal digits of a run's digest in its folder's name: no two runs of one disk share them."""

_PORT_BYTES_MAX = 8


def run_folder(state: Path, run: bytes) -> Path:
    """Where a state folder keeps a run, named by the first twelve digits of its digest."""
    return state / RUNS_FOLDER / run.hex()[:_DIGITS]


def make_folder(folder: Path) -> None:
    """Make a folder for the user alone; one that is there and ours becomes so.

    Raises ConfigError saying why it cannot be used, also where somebody else could change what is
    in it.
    """
    try:
        make_folder_durably(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)
        make_folder_durably(folder)
        # The mode of mkdir is for a new folder alone. One that holds other things than a node's is
        # somebody's on purpose: its mode is theirs, and each secret file has its own.
        if os.name == "posix" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
            names = os.listdir(folder)
            if folder.stat().st_uid == os.geteuid() and (not names or KEY_FILE in names):
                folder.chmod(0o700)
        check_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot use the folder {folder}: {error.strerror}; name another with --state"
        ) from error


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file whole: after a crash there is the old content or the new, on the disk.

    Raises OSError naming `path`, and then the old content stands and no other file is left.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(fresh, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        # Of what is written the system names none, and people know nothing of the other name.
        error.filename, error.filename2 = str(path), None
        raise
    fsync_folder(path.parent)


def read_port(state: Path) -> int:
    """The TCP port of the last start; 0 if there was none, or the file says nothing sound."""
    try:
        with (state / PORT_FILE).open("rb") as file:
            text = file.read(_PORT_BYTES_MAX + 1)
    except OSError:
        return 0
    # A port that only the superuser may take would never have been given to us.
    is_number = len(text) <= _PORT_BYTES_MAX and text.strip().isdigit()
    port = int(text) if is_number else 0
    return port if 1024 <= port <= 65_535 else 0


def keep_port(state: Path, port: int) -> None:
    """Remember the port for the next start: peers look for this node where it was."""
    if read_port(state) != port:
        write_atomically(state / PORT_FILE, b"%d\n" % port)


def has_history(folder: Path) -> bool:
    """Whether a node took part in a run before: it then waits for its peers, however long."""
    logs = (folder / name for name in ("slots.log", "chain.log"))
    has_logs = any(path.exists() and path.stat().st_size > 0 for path in logs)
    return has_logs or any((folder / CHECKPOINTS_FOLDER).glob("round-*"))


def has_begun(folder: Path) -> bool:
    """Whether a journal was ever begun in a run's folder, even if nothing was signed yet."""
    return (folder / "slots.log").exists() or has_history(folder)


def mark_unsigned(state: Path, run: bytes) -> None:
    """Say that this state folder has just founded a run, so that nothing in it is signed yet.

    A founder has nobody to ask what it signed in its first round. So where the mark is missing and
    there is no journal either, the folder was deleted: signatures may be lost (R12).
    """
    folder = run_folder(state, run)
    make_folder(folder)
    write_atomically(folder / UNSIGNED_FILE, b"")


def is_unsigned(folder: Path) -> bool:
    """Whether the run was founded here, and its journal was never begun."""
    return (folder / UNSIGNED_FILE).exists()


def unmark_unsigned(folder: Path) -> None:
    """The journal is on the disk: from now on its absence is a loss."""
    if is_unsigned(folder):
        (folder / UNSIGNED_FILE).unlink()
        fsync_folder(folder)
