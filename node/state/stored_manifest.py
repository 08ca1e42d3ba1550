"""Signed manifests as files."""

import logging
from pathlib import Path

from node.state.folder import MANIFEST_FILE, make_folder, run_folder, write_atomically
from node.text.shown import shown
from protocol import limits
from protocol.errors import ConfigError, PeerError, VersionError, WireVersionError
from protocol.identity import KEY_SEED_BYTES, Ed25519Signer, Signer
from protocol.manifest import WIRE_VERSION, RunManifest, SignedManifest, open_manifest
from protocol.wire import decode, encode

logger = logging.getLogger(__name__)

ANY_SIGNER = Ed25519Signer(bytes(KEY_SEED_BYTES))
"""Any key will do to check signatures; this one signs nothing."""


def read_signed_manifest(path: Path, signer: Signer) -> SignedManifest:
    """The manifest in a file, its signature checked. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the manifest {path}: {error.strerror}") from error
    try:
        open_manifest(data, signer)
    except WireVersionError as error:
        raise ConfigError(
            f"{path} is of a run of wire version {error.theirs}, this barnraise speaks "
            f"{WIRE_VERSION}: a run goes on with the barnraise that founded it"
        ) from error
    except VersionError as error:
        raise ConfigError(f"{path}: {error}") from error
    except PeerError as error:
        raise ConfigError(f"{path} is no manifest of a run: {error}") from error
    return decode(SignedManifest, data, max_bytes=limits.MANIFEST_BYTES_MAX)


def make_run_folder(state: Path, run: bytes) -> Path:
    """The folder of a run, made if need be. Raises ConfigError as `check_run_folder` does."""
    folder = run_folder(state, run)
    make_folder(folder)
    check_run_folder(folder, run)
    return folder


def check_run_folder(folder: Path, run: bytes) -> None:
    """Raise ConfigError where another run has the folder.

    It is named by the first digits of a digest, and whoever founds a run can look for some that
    begin as another's do. What was signed and trained in the one is nothing to the other.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return
    try:
        other = read_signed_manifest(path, ANY_SIGNER).manifest
    except ConfigError:
        return  # A damaged one is had again, from any peer of the run.
    if other.digest != run:
        raise _taken(folder, other, run)


def _taken(folder: Path, other: RunManifest, run: bytes) -> ConfigError:
    return ConfigError(
        f"{folder} belongs to another run, {shown(other.title)}, whose digest "
        f"{other.digest.hex()[:24]}... begins as that of this one, {run.hex()[:24]}...: that is no "
        "accident, so ask who gave you the link; to take part in both, name another folder with "
        "--state"
    )


def store_manifest(state: Path, signed: SignedManifest) -> Path:
    """Write a manifest into its run's folder; where it lies. Raises as `make_run_folder` does."""
    folder = make_run_folder(state, signed.manifest.digest)
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
