"""Which run is meant, and where its checkpoints lie: for the commands that use what was trained."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node.reporting.shown import shown
from node.state.folder import (
    CHECKPOINTS_FOLDER,
    MANIFEST_FILE,
    RUNS_FOLDER,
    has_begun,
    run_folder,
)
from node.state.stored_manifest import ANY_SIGNER, check_run_folder, read_signed_manifest
from protocol.errors import ConfigError
from protocol.manifest import RunManifest, open_manifest
from protocol.wire import encode
from training.files.exported import OpenSigned

_RUN_FOLDER = re.compile(r"[0-9a-f]{12}")
_RUNS_SHOWN = 20

open_signed: OpenSigned = partial(open_manifest, signer=ANY_SIGNER)
"""The manifest in these bytes, if its founder signed them. Raises PeerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnDisk:
    """A run of a state folder: its manifest, checked, and the folder of its checkpoints."""

    manifest: RunManifest
    manifest_path: Path
    signed: bytes
    checkpoints: Path


def find_run(
    state: Path, *, run: str | None = None, manifest: Path | None = None, instead: str = ""
) -> RunOnDisk:
    """The run in the state folder that `run`, the first digits of its digest, names.

    Without `run` there must be one run only. `manifest` names the file where the folder lacks it.
    Raises ConfigError saying what is wrong or missing, and what to do; `instead` is what else the
    command takes.
    """
    runs = state / RUNS_FOLDER
    if not runs.is_dir():
        raise ConfigError(f"{state} holds no run: name a node's folder with --state{instead}")
    if manifest is not None:
        signed = read_signed_manifest(manifest, ANY_SIGNER)
        digest = signed.manifest.digest
        folder = run_folder(state, digest)
        if run is not None and not _is_meant(digest.hex(), run):
            raise ConfigError(f"{manifest} is of run {folder.name}, not of {shown(run)}")
        if not folder.is_dir():
            title = shown(signed.manifest.title)
            raise ConfigError(f"{state} holds nothing of run {folder.name}, {title}")
        check_run_folder(folder, digest)
    else:
        folder = _folder(runs, run)
        manifest = folder / MANIFEST_FILE
        if not manifest.exists():
            raise ConfigError(f"{folder} lacks its {MANIFEST_FILE}: name the file with --manifest")
        signed = read_signed_manifest(manifest, ANY_SIGNER)
        if run_folder(state, signed.manifest.digest) != folder:
            raise ConfigError(f"{manifest} is of another run, {shown(signed.manifest.title)}")
    return RunOnDisk(
        manifest=signed.manifest,
        manifest_path=manifest,
        signed=encode(signed),
        checkpoints=folder / CHECKPOINTS_FOLDER,
    )


def _folder(runs: Path, run: str | None) -> Path:
    """The one folder in `runs` that is meant."""
    folders = sorted(path for path in runs.iterdir() if _RUN_FOLDER.fullmatch(path.name))
    meant = [path for path in folders if run is None or _is_meant(path.name, run)]
    # A founding that was interrupted is no run, unless there is nothing else to speak of.
    meant = [path for path in meant if (path / MANIFEST_FILE).exists() or has_begun(path)] or meant
    if len(meant) == 1:
        return meant[0]
    here = "".join(f"\n  {path.name}  {_title(path)}" for path in folders[:_RUNS_SHOWN])
    if meant:
        raise ConfigError(f"{runs} holds several runs, name one with --run:{here}")
    raise ConfigError(f"{runs} holds no run {shown(run or '')}, but:{here or ' nothing'}")


def _is_meant(digest: str, run: str) -> bool:
    # A folder's name is shorter than the digest that may have been given.
    run = run.lower()
    return bool(run) and (digest.startswith(run) or run.startswith(digest))


def _title(folder: Path) -> str:
    try:
        return shown(read_signed_manifest(folder / MANIFEST_FILE, ANY_SIGNER).manifest.title)
    except ConfigError:
        return "(without a manifest)"
