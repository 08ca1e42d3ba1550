"""Signed manifests as files."""

import logging
from pathlib import Path

from node.state.folder import MANIFEST_FILE, make_folder, run_folder, write_atomically
from protocol import limits
from protocol.errors import ConfigError, PeerError, VersionError
from protocol.identity import Signer
from protocol.manifest import SignedManifest, open_manifest
from protocol.wire import decode, encode

logger = logging.getLogger(__name__)


def read_signed_manifest(path: Path, signer: Signer) -> SignedManifest:
    """The manifest in a file, its signature checked. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the manifest {path}: {error.strerror}") from error
    try:
        open_manifest(data, signer)
    except VersionError as error:
        raise ConfigError(f"{path}: {error}") from error
    except PeerError as error:
        raise ConfigError(f"{path} is no manifest of a run: {error}") from error
    return decode(SignedManifest, data, max_bytes=limits.MANIFEST_BYTES_MAX)


def store_manifest(state: Path, signed: SignedManifest) -> Path:
    """Write a manifest into its run's folder; where it lies."""
    folder = run_folder(state, signed.manifest.digest)
    make_folder(folder)
    write_atomically(folder / MANIFEST_FILE, encode(signed))
    return folder / MANIFEST_FILE


def stored_manifest(state: Path, run: bytes, signer: Signer) -> SignedManifest | None:
    """The manifest of a run that this folder knows; None if not, or if the file is damaged.

    A damaged one can be had again: from any peer of the run.
    """
    path = run_folder(state, run) / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        signed = read_signed_manifest(path, signer)
    except ConfigError as error:
        logger.warning("stored manifest ignored reason=%s", error)
        return None
    return signed if signed.manifest.digest == run else None
