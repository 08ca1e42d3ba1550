"""Keys on disk: the node's identity, 32 bytes, mode 0600, made on the first start; and the PSK."""

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from node.state.folder import KEY_FILE, make_folder, write_atomically
from node.state.ownership import read_secret
from protocol.errors import ConfigError
from protocol.identity import KEY_SEED_BYTES, Ed25519Signer


def has_identity(state: Path) -> bool:
    """Whether there is a key; asked before one is made."""
    return (state / KEY_FILE).exists()


def load_or_create_identity(state: Path) -> Ed25519Signer:
    """The identity in the state folder, made if need be; the caller holds the folder's lock.

    Raises ConfigError for a key file that is no key, or that somebody else may have put there.
    """
    make_folder(state)
    path = state / KEY_FILE
    if path.is_symlink() and not path.exists():
        raise ConfigError(
            f"{path} is a link to {path.readlink()}, which is not there: mount its disk, or remove "
            "the link and be a new peer"
        )
    if not path.exists():
        # Whole or not at all: a crash in between must not leave a key of no bytes.
        write_atomically(path, os.urandom(KEY_SEED_BYTES))
    seed = read_secret(path, KEY_SEED_BYTES, "the key")
    if len(seed) != KEY_SEED_BYTES:
        raise ConfigError(
            f"{path} is no key: a key has {KEY_SEED_BYTES} bytes; put back the copy that you have, "
            "or move it away and be a new peer"
        )
    return Ed25519Signer(seed)


# The PSK of a private swarm -----------------------------------------------------------------------
#
# A file in the form that libp2p's other programs have: `swarm.key`.
#
#     /key/swarm/psk/1.0.0/
#     /base16/
#     64 hexadecimal digits
#
# A run folder remembers which PSK its run was started under, as a digest: a run that began in
# private is not to be shown to the world because an option was left out.

PSK_BYTES = 32
MARK_FILE = "private"
"""In the folder of a run: the digest of its PSK."""

_DOMAIN = "barnraise 2026-11-22 psk mark"
_FILE_BYTES_MAX = 1024
_FILE = re.compile(rb"/key/swarm/psk/1\.0\.0/\s+/base16/\s+([0-9a-fA-F]{64})\s*")


def read_psk(path: Path) -> bytes:
    """The 32 bytes in a key file. Raises ConfigError, never with what stands in the file.

    Also for one that somebody else may have put there.
    """
    try:
        match = _FILE.fullmatch(read_secret(path, _FILE_BYTES_MAX, "the PSK"))
    except OSError as error:
        raise ConfigError(f"cannot read the PSK in {path}: {error.strerror}") from error
    if match is None:
        raise ConfigError(
            f"{path} is no PSK: it has the lines /key/swarm/psk/1.0.0/, /base16/ and 64 hexadecimal"
            " digits; `barnraise psk FILE` makes one"
        )
    return bytes.fromhex(match[1].decode())


def write_new_psk(path: Path) -> None:
    """A new PSK, for the user's eyes alone. Raises ConfigError if the file is there."""
    text = f"/key/swarm/psk/1.0.0/\n/base16/\n{secrets.token_bytes(PSK_BYTES).hex()}\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(
            f"{path} is there already, and a swarm whose PSK is lost is lost: name another file"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        # Half of a key would be taken for a swarm's the next time.
        with suppress(OSError):
            path.unlink()
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def check_private(folder: Path, psk: bytes | None) -> None:
    """Remember under which PSK the run of a folder is, or that it is under none.

    Raises ConfigError if it was begun under another one.
    """
    path = folder / MARK_FILE
    kept = b""
    with suppress(FileNotFoundError):
        kept = path.read_bytes()
    if psk is None:
        if kept:
            raise ConfigError("this run is private: start it with --psk FILE, as before")
        return
    mark = blake3(psk, derive_key_context=_DOMAIN).hexdigest().encode()
    if not kept:
        write_atomically(path, mark)
    elif kept != mark:
        raise ConfigError("this run is in a private swarm with another PSK: name that one")
