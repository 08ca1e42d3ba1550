"""The node's identity key on disk: 32 bytes, mode 0600, made on the first start."""

import os
from pathlib import Path

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
