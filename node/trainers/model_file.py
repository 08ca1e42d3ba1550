"""Model files in a node: the founder's, turned into a manifest's model, and a joiner's, kept.

Nothing here runs a model file's code, nor loads torch: a child process does, for the founder; the
trainer does, from the copy in the run's folder.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node.processes.children import child_environment
from node.state.folder import write_atomically
from node.text.shown import shown
from protocol.errors import ConfigError
from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, RunManifest, Setting
from training.models.genesis import (
    DIGEST_SETTING,
    MODEL_FILE,
    ModelFile,
    Value,
    cut,
    file_digest,
    file_initial,
    named_model_file,
    read_model_file,
)

logger = logging.getLogger(__name__)

SCHEMA_COMMAND = (sys.executable, "-P", "-m", "training.model_schema_main")

KEPT_FILE = "model.py"

_BUILD_S = 300.0
"""Building a model on a busy machine, torch's import included."""

_TOLD_CHARACTERS_MAX = 4000
_NAMED_MAX = 4

DRAWN = "drawn"
"""Of `[model] first_values`: that the run's own are meant, whatever `build` has put there."""


def founders_model(
    path: Path,
    settings: Mapping[str, Value],
    *,
    seed: int,
    fragments: int = 1,
    is_drawn: bool = False,
    warn: Callable[[str], None] = logger.warning,
) -> tuple[ModelSpec, ShardSpec]:
    """The model and the shard of a manifest that names the file at `path`; blocks some seconds.

    A child process builds the model with `settings` and says which tensors it has. Raises
    ConfigError saying what to change in the file or in the settings; `warn` is told what can be,
    and may not be what its author thinks. `is_drawn` says that first values were thought of.
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
    described = _ask_child(file, settings)
    if not is_drawn:
        _judge_first_values(file, described, warn)
    if described.idle:
        warn(
            f"the model file {path}: no gradient reaches {_some(described.idle)}: they travel in "
            "each round and learn nothing"
        )
    return model, ShardSpec("model", described.tensors, cut(described.tensors, fragments))


def _judge_first_values(
    file: ModelFile, described: "_Described", warn: Callable[[str], None]
) -> None:
    """A run draws its first values by name and shape. Raises ConfigError where `build` gives values
    that would take work to get again; `warn` is told of constants."""
    initial = {tensor.name: file_initial(tensor) for tensor in described.tensors}
    lost = [name for name, common in described.given.items() if common is None]
    if lost:
        raise ConfigError(
            f"the model file {file.path} builds {_some(lost)} with the same values each time, as "
            "if they were pretrained, and a run begins with values that it draws itself: these "
            "would be lost. A run cannot begin with given weights yet. If none are meant (a "
            f'manual_seed in build looks alike), set [model] first_values = "{DRAWN}"'
        )
    other = []
    for name, common in described.given.items():
        drawn = initial[name]
        if common is not None and (drawn.spread or common != drawn.center):
            here = f"within {drawn.spread:.2g} of 0" if drawn.spread else f"{drawn.center:g}"
            other.append(f"{name} (all {common:g} in build, {here} in the run)")
    if other:
        warn(
            f"the model file {file.path}: the run draws first values itself, and not those of "
            f"{_some(other)}. If the model needs its own, write it so that these are a factor or "
            f'a term beside a constant; if not, set [model] first_values = "{DRAWN}"'
        )


def _some(names: Sequence[str]) -> str:
    first = ", ".join(shown(name, 160) for name in names[:_NAMED_MAX])
    return f"{first} and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else first


def changed_since(path: Path, manifest: RunManifest) -> bool:
    """Whether the model file at `path` is another by now than the one that the run names; one that
    is gone is not: the run's folder has a copy."""
    return path.exists() and read_model_file(path).digest != file_digest(manifest.model)


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


@dataclass(frozen=True, slots=True)
class _Described:
    """What `training.model_schema_main` says of a model; it ran code of whoever wrote the file."""

    tensors: tuple[TensorSpec, ...]
    given: Mapping[str, float | None]
    idle: tuple[str, ...]


def _ask_child(file: ModelFile, settings: Mapping[str, Value]) -> _Described:
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
    return _Described(
        tuple(TensorSpec(name, tuple(shape)) for name, shape in described["tensors"]),
        dict(described["given"]),
        tuple(described["idle"]),
    )


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
