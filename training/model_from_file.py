"""Builds the model of a model file. Runs its code: only ever bytes whose digest was compared.

B sequences, T positions, V vocabulary
"""

import importlib.util
import sys
from importlib.abc import SourceLoader

import torch
from torch import nn

from protocol.errors import ConfigError
from protocol.manifest import ModelSpec
from training.genesis import file_digest
from training.model_file import ModelFile, build_settings

_MODULE = "barnraise_model_file"
_VOCABULARY = 256


class _BytesLoader(SourceLoader):
    """Loads a module from bytes in memory.

    The loader of files would read the path once more, or a cached compilation beside it: then what
    runs might not be what was digested.
    """

    def __init__(self, file: ModelFile) -> None:
        self._file = file

    def get_filename(self, fullname: str) -> str:
        """The name that tracebacks show."""
        del fullname
        return str(self._file.path)

    def get_data(self, path: str | bytes) -> bytes:
        """The source; asked for nothing else, since without a time stamp there is no cache."""
        assert path == str(self._file.path)
        return self._file.source


def build_from_file(file: ModelFile, model: ModelSpec) -> nn.Module:
    """What the file's `build` makes of the settings. What the file's own code raises propagates.

    Raises ConfigError where the file is not the one that `model` names, or has no `build` that
    gives a module.
    """
    if file.digest != file_digest(model):
        raise ConfigError(f"the model file {file.path} is not the one that the run names")
    loader = _BytesLoader(file)
    spec = importlib.util.spec_from_loader(_MODULE, loader, origin=str(file.path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[_MODULE] = module
    loader.exec_module(module)
    build = getattr(module, "build", None)
    if not callable(build):
        raise ConfigError(f"the model file {file.path} defines no function build(**settings)")
    settings = build_settings(model)
    built = build(**settings)
    if not isinstance(built, nn.Module):
        kind = type(built).__name__
        raise ConfigError(f"build of the model file {file.path} returned a {kind}, no nn.Module")
    # Whoever samples from a model asks it how far it can look back.
    if not hasattr(built, "context"):
        setattr(built, "context", settings["context"])  # noqa: B010 - a module's fields are typed
    return built


def check_forward(model: nn.Module, context: int) -> None:
    """Raise ConfigError unless `model` maps (B, T) bytes to (B, T, 256) logits, T the context."""
    with torch.no_grad():
        logits = model(torch.zeros(2, context, dtype=torch.int64))
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if shape != (2, context, _VOCABULARY):
        wanted = (2, context, _VOCABULARY)
        raise ConfigError(f"the model must give logits of shape {wanted}, it gave {shape}")
