"""`barnraise export`: the newest whole checkpoint of a run as one file that says where it is from.

The format is in `training.files.exported`; here is who may read what it says, and what people read
of it.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from node.processes.version import version
from node.using.checkpoint_find import RunOnDisk, open_signed
from node.using.out_file import refuse_taken
from protocol.errors import CheckpointError, ConfigError
from protocol.identity import peer_id_text
from protocol.manifest import RunManifest
from training.files.exported import (
    Provenance,
    read_provenance,
    require_whole_model,
    tensors_digest,
    write_export,
)
from training.files.state import Tell, named_tensors, newest_whole

_VERSION = "barnraise"
_FROM_MANIFEST = ("title", "model", "settings", "founder", "created")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """An exported file."""

    path: Path
    provenance: Provenance
    parameters: int
    num_bytes: int


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
