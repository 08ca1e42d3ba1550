"""Model files in a node: the founder's, turned into a manifest's model, and a joiner's, kept.

Nothing here runs a model file's code, nor loads torch: a child process does, for the founder; the
trainer does, from the copy in the run's folder.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from node.processes.children import child_environment
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, RunManifest, Setting
from training.genesis import DIGEST_SETTING, MODEL_FILE, cut, file_digest
from training.model_file import ModelFile, Value, named_model_file, read_model_file

SCHEMA_COMMAND = (sys.executable, "-P", "-m", "training.model_schema_main")

KEPT_FILE = "model.py"

_BUILD_S = 300.0
"""Building a model on a busy machine, torch's import included."""

_TOLD_CHARACTERS_MAX = 4000


def founders_model(
    path: Path, settings: Mapping[str, Value], *, seed: int, fragments: int = 1
) -> tuple[ModelSpec, ShardSpec]:
    """The model and the shard of a manifest that names the file at `path`; blocks some seconds.

    A child process builds the model with `settings` and says which tensors it has. Raises
    ConfigError saying what to change in the file or in the settings.
    """
    file = read_model_file(path)
    if DIGEST_SETTING in settings:
        raise ConfigError(f"[model.settings] {DIGEST_SETTING} is computed from the file: remove it")
    everything = {**settings, DIGEST_SETTING: file.digest}
    model = ModelSpec(
        name=MODEL_FILE,
        settings=tuple(Setting(name, everything[name]) for name in sorted(everything)),
        seed=seed,
    )
    file_digest(model)
    tensors = _ask_child(file, settings)
    return model, ShardSpec("model", tensors, cut(tensors, fragments))


def refuse_needless(given: Path | None, manifest: RunManifest) -> None:
    """Raise ConfigError where a file is named and the run's model is in none."""
    if given is not None and manifest.model.name != MODEL_FILE:
        raise ConfigError(
            f"the run's model {manifest.model.name} is built in: leave --model-file out"
        )


def kept_model_file(manifest: RunManifest, given: Path | None, folder: Path) -> Path | None:
    """Where the trainer finds the run's model file; None for a built-in model.

    `given` is what the user named. The verified bytes are kept in the run's `folder`, so that the
    next start, or an export, does without the option. Raises ConfigError for a file that is not the
    one that the manifest names, and without any; OSError where it cannot be kept.
    """
    refuse_needless(given, manifest)
    if manifest.model.name != MODEL_FILE:
        return None
    kept = folder / KEPT_FILE
    if given is None and kept.exists():
        given = kept
    file = named_model_file(given, manifest.model)
    if given != kept:
        write_atomically(kept, file.source)
    return kept


def _ask_child(file: ModelFile, settings: Mapping[str, Value]) -> tuple[TensorSpec, ...]:
    command = [*SCHEMA_COMMAND, "--file", str(file.path.absolute()), "--digest", file.digest]
    try:
        done = _run_child(command, json.dumps(dict(settings)).encode() + b"\n")
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the model file {file.path} was not built within {_BUILD_S:.0f} s"
        ) from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-_TOLD_CHARACTERS_MAX:]
        why = said or f"building it ended with status {done.returncode}"
        raise ConfigError(why if str(file.path) in why else f"the model file {file.path}: {why}")
    if not done.stdout:
        raise ConfigError(f"the model file {file.path} ended its process, with status 0")
    described = json.loads(done.stdout)
    return tuple(TensorSpec(name, tuple(shape)) for name, shape in described["tensors"])


def _run_child(command: list[str], line: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run a child that is given a line, and ends when its standard input closes: with us."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=child_environment(), bufsize=0
    ) as child:
        # `communicate` would close it at once.
        stdin, child.stdin = child.stdin, None
        assert stdin is not None
        try:
            with suppress(OSError):  # It is gone already; its status says so.
                stdin.write(line)
            out, said = child.communicate(timeout=_BUILD_S)
        finally:
            child.kill()
            stdin.close()
    return subprocess.CompletedProcess(command, child.returncode, out, said)
