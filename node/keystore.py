"""The node's identity key on disk: 32 bytes, mode 0600, made on the first start."""

import os
from pathlib import Path

from protocol.errors import ConfigError
from protocol.identity import KEY_SEED_BYTES, Ed25519Signer

KEY_FILE = "identity.key"


def load_or_create_identity(state: Path) -> Ed25519Signer:
    """The identity in the state folder; a new one if there is none.

    Raises ConfigError for a key file that is no key.
    """
    state.mkdir(parents=True, exist_ok=True)
    path = state / KEY_FILE
    if not path.exists():
        _create(path)
    seed = path.read_bytes()
    if len(seed) != KEY_SEED_BYTES:
        raise ConfigError(f"{path} has {len(seed)} bytes, a key has {KEY_SEED_BYTES}: remove it")
    return Ed25519Signer(seed)


def _create(path: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return  # Another process of ours was quicker; its key is as good.
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(KEY_SEED_BYTES))
        file.flush()
        os.fsync(file.fileno())
