"""The runs of a state folder: their signed manifests, and which run.toml founded which."""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node.settings.corpus_store import STORES_FOLDER, founders_store, kept_store
from node.settings.run_file import (
    Founder,
    build_manifest,
    first_changed_key,
    read_run_file,
    run_file_of,
)
from node.settings.sections import RunFile
from node.settings.toml_file import read_toml_bytes
from node.state.folder import (
    FOUNDED_FILE,
    MANIFEST_FILE,
    RUN_FILE,
    RUNS_FOLDER,
    has_begun,
    mark_unsigned,
    write_atomically,
)
from node.state.stored_manifest import make_run_folder, read_signed_manifest, store_manifest
from node.trainers.model_file import KEPT_FILE, changed_since, kept_model_file
from protocol.errors import ConfigError, VersionError
from protocol.hybrid_clock import WallClock
from protocol.identity import Ed25519Signer
from protocol.manifest import RunManifest, SignedManifest, sign_manifest

logger = logging.getLogger(__name__)

_FOUNDED_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class FoundedRun:
    """A run that this state folder founded."""

    folder: Path
    signed: SignedManifest
    parsed: RunFile
    source: str
    """The file that it was founded by, absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrutiny:
    """What is asked of a run before it is founded or resumed: `warn` is told what of a new one may
    not be meant, `check` raises what is in the way of either; `say` is told what takes long."""

    warn: Callable[[str], None] = logger.warning
    check: Callable[[RunManifest], None] = lambda manifest: None
    say: Callable[[str], None] = logger.info


def found_or_resume(
    path: Path,
    state: Path,
    signer: Ed25519Signer,
    wall_clock: WallClock,
    *,
    is_new: bool,
    scrutiny: Scrutiny = Scrutiny(),
) -> tuple[SignedManifest, bool]:
    """The run that the run.toml at `path` founded in this state folder, or founds now.

    Also says whether it was founded now, which `is_new` makes sure of. Raises ConfigError if the
    file, or the model file that it names, says something else than when it founded its run, or
    where a run that it may have founded is damaged.
    """
    # Read once: the run's own copy is what founded it, even of a pipe or a file being edited.
    text = read_toml_bytes(path)
    parsed = run_file_of(text, path)
    source = str(path.resolve())
    if not is_new:
        everything = read_founded(state, signer)
        earlier = _oldest_first(everything)
        same = [run for run in earlier if first_changed_key(run.parsed, parsed) is None]
        model_file = None if parsed.model.file is None else path.parent / parsed.model.file
        for run in reversed(same):
            if model_file is None or not changed_since(model_file, run.signed.manifest):
                scrutiny.check(run.signed.manifest)
                return run.signed, False
        if same:
            assert model_file is not None
            raise _changed_model_file(model_file, same[-1])
        changed = [run for run in earlier if run.source == source]
        if changed:
            raise _changed_file(path, changed[-1], parsed)
        for folder, found in everything.items():
            if isinstance(found, ConfigError):
                raise _damaged_run(path, folder, found)
    founder = Founder(signer.peer_id, int(wall_clock()))
    stores = state / STORES_FOLDER
    manifest = build_manifest(
        parsed, founder, path, warn=scrutiny.warn, stores=stores, say=scrutiny.say
    )
    scrutiny.check(manifest)
    signed = sign_manifest(manifest, signer)
    _store(signed, path, text, parsed, state)
    return signed, True


def _oldest_first(everything: Mapping[Path, FoundedRun | ConfigError]) -> list[FoundedRun]:
    runs = [found for found in everything.values() if isinstance(found, FoundedRun)]
    return sorted(runs, key=lambda run: run.signed.manifest.created_unix_s)


def read_founded(state: Path, signer: Ed25519Signer) -> dict[Path, FoundedRun | ConfigError]:
    """By folder each run that was founded here, or what is wrong with its files."""
    everything: dict[Path, FoundedRun | ConfigError] = {}
    for folder in sorted((state / RUNS_FOLDER).glob("*")):
        # The manifest is written last: without it nothing was founded, unless the run has begun.
        has_manifest = (folder / MANIFEST_FILE).exists()
        if (folder / FOUNDED_FILE).exists() and (has_manifest or has_begun(folder)):
            try:
                everything[folder] = _founded_run(folder, signer)
            except ConfigError as error:
                everything[folder] = error
    return everything


def _founded_run(folder: Path, signer: Ed25519Signer) -> FoundedRun:
    signed = read_signed_manifest(folder / MANIFEST_FILE, signer)
    parsed = read_run_file(folder / RUN_FILE)
    return FoundedRun(folder, signed, parsed, _read_source(folder / FOUNDED_FILE))


def _read_source(path: Path) -> str:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(_FOUNDED_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged") from error
    source = body.get("source") if isinstance(body, dict) else None
    if not isinstance(source, str):
        raise ConfigError(f"{path} is damaged")
    return source


def _store(signed: SignedManifest, path: Path, text: bytes, parsed: RunFile, state: Path) -> None:
    """Keep a run that was founded by `text`, the content of the file at `path`."""
    _remove_interrupted(state, str(path.resolve()))
    folder = make_run_folder(state, signed.manifest.digest)
    if parsed.model.file is not None:
        kept_model_file(signed.manifest, path.parent / parsed.model.file, folder)
    if parsed.corpus.path is not None:
        stores = state / STORES_FOLDER
        store = founders_store(parsed.corpus, path.parent, stores, logger.info)
        # A file of the text may have changed since the manifest was made: that is refused.
        kept_store(signed.manifest, store, folder)
    write_atomically(folder / RUN_FILE, text)
    source = json.dumps({"source": str(path.resolve())})
    write_atomically(folder / FOUNDED_FILE, source.encode() + b"\n")
    mark_unsigned(state, signed.manifest.digest)
    store_manifest(state, signed)


def _remove_interrupted(state: Path, source: str) -> None:
    """What foundings by the file `source` have left that did not come to their manifest."""
    for founded in (state / RUNS_FOLDER).glob(f"*/{FOUNDED_FILE}"):
        folder = founded.parent
        if (folder / MANIFEST_FILE).exists() or has_begun(folder):
            continue
        with suppress(ConfigError):
            if _read_source(founded) == source:
                shutil.rmtree(folder, ignore_errors=True)


def _damaged_run(path: Path, folder: Path, why: ConfigError) -> ConfigError:
    if isinstance(why.__cause__, VersionError):
        return ConfigError(
            f"{path} may have founded the run {folder.name}: {why}; or found another run with --new"
        )
    # Founded silently once more, it would begin at round 0 while the old one waits on the disk.
    return ConfigError(
        f"{path} may have founded the run {folder.name}, of which a file is damaged: {why}. Put a "
        "copy of it back; a manifest is also fetched from a peer by barnraise join; or found "
        "another run with --new"
    )


def _changed_model_file(path: Path, run: FoundedRun) -> ConfigError:
    digest = run.signed.manifest.digest.hex()[:12]
    return ConfigError(
        f"the model file {path} has changed since it founded the run {digest}, and peers train the "
        "model that it was then: undo the change to go on with that run, or found another one with "
        f"--new (as it was: {run.folder / KEPT_FILE})"
    )


def _changed_file(path: Path, run: FoundedRun, parsed: RunFile) -> ConfigError:
    change = first_changed_key(run.parsed, parsed)
    digest = run.signed.manifest.digest.hex()[:12]
    return ConfigError(
        f"{path} has changed since it founded the run {digest}: {change}. Peers train by what it "
        "said then: undo the change to go on with that run, or found another one with --new "
        f"(as it was: {run.folder / RUN_FILE})"
    )
