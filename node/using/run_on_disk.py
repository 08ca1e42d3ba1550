"""A run in a state folder: which one is meant, where its checkpoints lie, and its weights.

The format of an exported file is in `training.files.exported`; here is who may read what it says,
and what people read of it.
"""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from node.holdings.checkpoints import ROUNDS_APART
from node.holdings.journal import CHAIN_FILE
from node.holdings.record_log import stream_records
from node.processes.version import version
from node.state.folder import (
    CHECKPOINTS_FOLDER,
    MANIFEST_FILE,
    RUNS_FOLDER,
    has_begun,
    run_folder,
)
from node.state.stored_manifest import ANY_SIGNER, check_run_folder, read_signed_manifest
from node.text.shown import shown
from protocol import limits
from protocol.errors import CheckpointError, ConfigError, DecodeError
from protocol.identity import peer_id_text
from protocol.manifest import RunManifest, open_manifest
from protocol.messages import SealCertificate
from protocol.wire import decode, encode
from training.files.exported import (
    OpenSigned,
    Provenance,
    read_provenance,
    require_whole_model,
    tensors_digest,
    write_export,
)
from training.files.state import Tell, named_tensors, newest_whole

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


def newest_sealed(run: RunOnDisk) -> int | None:
    """The last final round that the node here knows of, whose weights need not be on the disk yet;
    None where it never sealed one, or the file cannot be read. A node may be running."""
    chain, last = run.checkpoints.parent / CHAIN_FILE, b""
    with suppress(OSError, DecodeError):
        for record in stream_records(chain, size=chain.stat().st_size):
            last = record
        limit = limits.CONTROL_FRAME_BYTES_MAX
        return decode(SealCertificate, last, max_bytes=limit).value.round
    return None


def age_text(sealed_round: int, newest_round: int | None) -> str:
    """For people, that weights are older than the run is here, and why; nothing where they are
    not."""
    if newest_round is None or newest_round <= sealed_round:
        return ""
    return (
        f"these are the weights of round {sealed_round}, and the run is at round {newest_round}:"
        f" a node writes them behind the rounds, of a large model every {ROUNDS_APART}th, and the"
        " last ones when it ends"
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


def refuse_taken(out: Path, *, force: bool) -> None:
    """Raise ConfigError for a path that is no file's, and for a file that is there, unless it may
    be replaced. A device or a pipe is never replaced: a file would stand in its place."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name a file with --out")
    if not out.exists():
        return
    if not out.is_file():
        raise ConfigError(f"{out} is a device or a pipe: name a file with --out")
    if not force:
        raise ConfigError(f"{out} exists: name another file with --out, or replace it with --force")


_VERSION = "barnraise"
_FROM_MANIFEST = ("title", "model", "settings", "founder", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """An exported file."""

    path: Path
    provenance: Provenance
    parameters: int
    num_bytes: int
    newest_round: int | None
    """See `newest_sealed`; None where a round was asked for."""


def export_run(
    run: RunOnDisk, out: Path, tell: Tell, *, round_index: int | None = None, force: bool = False
) -> ExportedFile:
    """Write the weights that a round sealed, by default the newest that are whole here.

    Two exports of one checkpoint by one version are equal to the bit. Raises ConfigError if `out`
    exists and not `force`, or cannot be written; what `newest_whole` and `require_whole_model` do.
    """
    refuse_taken(out, force=force)
    manifest = run.manifest
    require_whole_model(manifest)
    checkpoint = newest_whole(run.checkpoints, manifest, tell, round_index=round_index)
    tensors = named_tensors(manifest.shards[0], checkpoint.state.anchors)
    provenance = Provenance(
        manifest=manifest,
        signed=run.signed,
        clock=checkpoint.meta.clock,
        seal=checkpoint.meta.seal,
        tensors=tensors_digest(tensors),
        about=_about(manifest) | {_VERSION: version()},
    )
    # Loading took a while: somebody may have written there meanwhile.
    refuse_taken(out, force=force)
    try:
        write_export(out, provenance, tensors)
        num_bytes = out.stat().st_size
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from error
    return ExportedFile(
        path=out,
        provenance=provenance,
        parameters=sum(tensor.size for tensor in tensors.values()),
        num_bytes=num_bytes,
        newest_round=newest_sealed(run) if round_index is None else None,
    )


def open_export(path: Path) -> Provenance:
    """What an exported file says about itself, as far as the founder's signature bears it out.

    Raises ConfigError and CheckpointError as `read_provenance` does; CheckpointError also where
    what people read of it is not what the signed manifest says.
    """
    provenance = read_provenance(path, open_signed)
    expected = _about(provenance.manifest)
    for key in _FROM_MANIFEST:
        if provenance.about.get(key) != expected[key]:
            raise CheckpointError(f"the header of {path} was changed: its {key} is not the run's")
    return provenance


def _about(manifest: RunManifest) -> dict[str, str]:
    """What people want to know of a run at a glance, from its manifest alone."""
    settings = {setting.name: setting.value for setting in manifest.model.settings}
    return {
        "title": manifest.title,
        "model": manifest.model.name,
        "settings": json.dumps(settings, sort_keys=True),
        "founder": peer_id_text(manifest.founder),
        "created": _utc(manifest.created_unix_s),
    }


def _utc(unix_s: int) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        # A founder may write any number; it is no reason to keep the weights from anybody.
        return f"{unix_s} s after 1970"
