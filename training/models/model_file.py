"""A model in a file of the user's, known to the run by its digest. Loads no torch.

The file defines `build(**settings) -> nn.Module`, where `settings` are those of the manifest's
model but for `digest`; `context` is always one of them. The module takes byte values (B, T), int64,
T at most `context`, and returns logits (B, T, 256).

Whoever joins reads the file, compares its digest and hands on the very bytes that were compared: no
second look at the disk decides what runs, and nothing runs that the manifest does not name.
"""

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from protocol import limits
from protocol.errors import ConfigError, ManifestError
from protocol.manifest import ModelSpec
from training.models.genesis import DIGEST_SETTING, file_digest

Value = int | float | str | bool
"""Of a setting."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The bytes of a model file, and the path that they were read from, for messages."""

    path: Path
    source: bytes

    @property
    def digest(self) -> str:
        """BLAKE3 of the bytes, hexadecimal."""
        return blake3(self.source).hexdigest()


def read_model_file(path: Path) -> ModelFile:
    """Read a model file; nothing of it is executed. Raises ConfigError saying what to change."""
    try:
        with path.open("rb") as file:
            source = file.read(limits.MODEL_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the model file {path}: {error.strerror}") from error
    if len(source) > limits.MODEL_FILE_BYTES_MAX:
        raise ConfigError(f"the model file {path} is over {limits.MODEL_FILE_BYTES_MAX} bytes")
    return ModelFile(path, source)


def named_model_file(path: Path | None, model: ModelSpec) -> ModelFile:
    """The file at `path`, if it is the one that the run's manifest names.

    Raises ConfigError without a path or file, ManifestError for another file: both say what to do.
    """
    digest = file_digest(model)
    if path is None:
        raise ConfigError(
            f"the run's model is in a file with digest {digest}: ask the founder for it and give "
            "its path with --model-file; a link never brings code"
        )
    file = read_model_file(path)
    if file.digest != digest:
        raise ManifestError(
            f"the model file {path} has digest {file.digest}, the run names {digest}: ask the "
            "founder for the file; a link never brings code"
        )
    return file


def build_settings(model: ModelSpec) -> dict[str, Value]:
    """What `build` of the file is called with."""
    return {one.name: one.value for one in model.settings if one.name != DIGEST_SETTING}
