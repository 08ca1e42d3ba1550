"""Builds the model of a model file. Runs its code: only ever bytes whose digest was compared.

B sequences, T positions, V vocabulary
"""

import importlib.util
import sys
import traceback
from importlib.abc import SourceLoader
from types import TracebackType

import torch
from torch import nn
from torch.nn import functional

from protocol.errors import BarnraiseError, ConfigError
from protocol.manifest import ModelSpec
from training.device.micro_batch import is_out_of_memory
from training.models.genesis import file_digest
from training.models.model_file import ModelFile, build_settings

_MODULE = "barnraise_model_file"
_VOCABULARY = 256
_WHY_CHARACTERS_MAX = 400

ALONE = "a model file goes to each peer alone, and nothing beside it is found there"


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


class ModelCode:
    """A block that runs code of a model file: what that raises becomes a ConfigError, a sentence
    with the line of the file. Memory that is refused is nobody's slip, and stays what it is."""

    def __init__(self, file: ModelFile, hint: str = "") -> None:
        """`hint` says what the block expects of the code."""
        self._file, self._hint = file, hint

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        path = self._file.path
        if isinstance(error, SystemExit):
            raise ConfigError(
                f"the model file {path} ended its process, with status {error.code}: what a "
                "program does when it is started belongs under if __name__ == '__main__'"
            ) from error
        is_memory = isinstance(error, RuntimeError) and is_out_of_memory(error)
        if not isinstance(error, Exception) or isinstance(error, BarnraiseError) or is_memory:
            return
        lines = [
            frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == str(path)
        ]
        if isinstance(error, SyntaxError):
            lines.append(error.lineno)
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        why = " ".join(said.split())[:_WHY_CHARACTERS_MAX]
        hint = self._advice(error) or self._hint
        raise ConfigError(
            f"the model file {where}: {type(error).__name__}: {why}" + (f"; {hint}" if hint else "")
        ) from error

    def _advice(self, error: Exception) -> str:
        """On what a file of its own knows, and one that goes to peers does not."""
        if isinstance(error, NameError) and error.name == "__file__":
            return f"{ALONE}: it has no __file__"
        if isinstance(error, FileNotFoundError):
            return ALONE
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            beside = self._file.path.parent / error.name.partition(".")[0]
            if beside.exists() or beside.with_suffix(".py").exists():
                return f"{ALONE}: put what it imports into the file itself"
            return "install it here, and on every peer"
        return ""


def build_from_file(file: ModelFile, model: ModelSpec) -> nn.Module:
    """What the file's `build` makes of the settings.

    Raises ConfigError where the file is not the one that `model` names, has no `build` that gives a
    module, or where its own code raises.
    """
    if file.digest != file_digest(model):
        raise ConfigError(f"the model file {file.path} is not the one that the run names")
    loader = _BytesLoader(file)
    spec = importlib.util.spec_from_loader(_MODULE, loader, origin=str(file.path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[_MODULE] = module
    with ModelCode(file):
        loader.exec_module(module)
    build = getattr(module, "build", None)
    if not callable(build):
        raise ConfigError(f"the model file {file.path} defines no function build(**settings)")
    settings = build_settings(model)
    named = ", ".join(settings)
    with ModelCode(file, f"build is called with what [model.settings] has: {named}"):
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
        is_tensor = isinstance(logits, torch.Tensor)
        why = "each predicts the next of 256 byte values" if is_tensor else "return a tensor alone"
        raise ConfigError(f"the model must give logits of shape {wanted}, it gave {shape}: {why}")


def check_backward(model: nn.Module, context: int) -> tuple[str, ...]:
    """The parameters that no gradient reaches. Raises ConfigError where none reaches any.

    For a model that `check_forward` has passed.
    """
    bytes_BT = torch.arange(context).remainder(_VOCABULARY).unsqueeze(0)
    logits_BTV = model.train()(bytes_BT).float()
    if not logits_BTV.requires_grad:
        raise ConfigError(
            "the model cannot be trained: its logits carry no gradient. Does forward run under "
            "no_grad or inference_mode, or detach what it computes?"
        )
    functional.cross_entropy(logits_BTV.flatten(0, 1), bytes_BT.flatten()).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return tuple(name for name, one in model.named_parameters() if one.grad is None)
