"""SEAM ModelFactory: models by name, and their weights as flat fragments.

B sequences, T positions, C channels, V vocabulary, N elements of a fragment

A manifest names a model and its settings; it never carries code. The schema and first values of
each model are in `training.models.genesis`, which loads no torch.
"""

import importlib.util
import sys
import traceback
from importlib.abc import SourceLoader
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from protocol.errors import BarnraiseError, ConfigError
from protocol.grid import ShardSpec
from protocol.manifest import ModelSpec, RunManifest
from training.device.inner import is_out_of_memory
from training.models.genesis import (
    MODEL_FILE,
    GptShape,
    ModelFile,
    build_settings,
    file_digest,
    genesis_weights,
    named_model_file,
)
from training.models.model_checks import check_parameters
from training.numeric.registry import Registry

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


class ModelFactory(Protocol):
    """SEAM: makes a module from its settings; called once by the trainer, at its start.

    The parameters of the module have exactly the names and shapes of `SCHEMAS[name]`; their values
    may be anything, the caller fills them in. `forward` takes byte values (B, T), int64, and
    returns logits (B, T, 256).
    """

    def __call__(self, model: ModelSpec) -> nn.Module:
        """The module. Raises ManifestError for a setting that it refuses."""
        ...


MODELS: Registry[nn.Module] = Registry("model")


def build_model(
    manifest: RunManifest, shard: int = 0, *, model_file: Path | None = None
) -> nn.Module:
    """The manifest's model, in training mode, holding the genesis weights.

    `model_file` is where the file lies that the manifest names, if it names one. Raises ConfigError
    for another file or none, before anything of it runs, and what its own code raises.
    """
    if manifest.model.name == MODEL_FILE:
        model = build_from_file(named_model_file(model_file, manifest.model), manifest.model)
        check_parameters(model, manifest, shard)
    else:
        factory: ModelFactory = MODELS[manifest.model.name]
        model = factory(manifest.model)
    for fragment, weights_N in enumerate(genesis_weights(manifest, shard)):
        write_fragment(model, manifest.shards[shard], fragment, weights_N)
    return model.train()


def read_fragment(model: nn.Module, shard: ShardSpec, fragment: int) -> NDArray[np.float32]:
    """A new flat float32 vector with the fragment's working weights, from whatever device."""
    parameters = dict(model.named_parameters())
    flat = [
        parameters[shard.tensors[index].name].detach().to("cpu", torch.float32).flatten()
        for index in shard.fragments[fragment]
    ]
    weights_N: NDArray[np.float32] = torch.cat(flat).numpy()
    return weights_N


def write_fragment(
    model: nn.Module, shard: ShardSpec, fragment: int, weights_N: NDArray[np.float32]
) -> None:
    """Copy a flat vector into the working weights, in place: optimizers keep their parameters.

    Float32 weights then hold it to the bit, on whatever device.
    """
    parameters = dict(model.named_parameters())
    start = 0
    with torch.no_grad():
        for index in shard.fragments[fragment]:
            spec = shard.tensors[index]
            part = np.array(weights_N[start : start + spec.numel], dtype=np.float32)
            parameters[spec.name].copy_(torch.from_numpy(part).reshape(spec.shape))
            start += spec.numel
    assert start == len(weights_N), f"fragment {fragment} has {start} elements"


class _Matrix(nn.Module):
    """A linear map without bias, or the rows of a table; its values are left to the caller.

    nn.Linear and nn.Embedding would draw values that the genesis overwrites; to build them on the
    meta device instead costs a second of imports.
    """

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))

    def forward(self, x_BTC: Tensor) -> Tensor:
        return functional.linear(x_BTC, self.weight)


class _Attention(nn.Module):
    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key_value = _Matrix(3 * shape.width, shape.width)
        self.output = _Matrix(shape.width, shape.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        parts = self.query_key_value(x_BTC).chunk(3, dim=-1)
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out_BTC: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out_BTC


class _FeedForward(nn.Module):
    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.up = _Matrix(4 * shape.width, shape.width)
        self.down = _Matrix(shape.width, 4 * shape.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out_BTC: Tensor = self.down(functional.gelu(self.up(x_BTC)))
        return out_BTC


class _Block(nn.Module):
    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = _Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = _FeedForward(shape)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC))
        x_BTC = x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))
        return x_BTC


class Gpt(nn.Module):
    """Byte-level GPT: pre-norm, learned positions, output tied to the embedding.

    Settings: width, layers, heads (divides width), context (most positions of one call).
    """

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        shape = GptShape.of(model)
        self.context = shape.context
        self.embedding = _Matrix(256, shape.width)
        self.positions = _Matrix(shape.context, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)

    def forward(self, bytes_BT: Tensor) -> Tensor:
        """Logits (B, T, 256) of the byte after each position; T is at most `context`."""
        x_BTC = functional.embedding(bytes_BT, self.embedding.weight)
        x_BTC = x_BTC + self.positions.weight[: bytes_BT.shape[1]]
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV: Tensor = self.embedding(self.norm(x_BTC))
        return logits_BTV


MODELS.register("gpt", Gpt)


def tokens_per_sample(manifest: RunManifest) -> int:
    """Bytes predicted per training window: the model's context.

    Raises ManifestError where the model has no such setting.
    """
    context = manifest.model.setting("context")
    assert isinstance(context, int), "checked when the model was built"
    return context
