"""SEAM ModelFactory: models by name, and their weights as flat fragments.

B sequences, T positions, C channels, V vocabulary, N elements of a fragment

A manifest names a model and its settings; it never carries code. The schema and first values of
each model are in `training.models.genesis`, which loads no torch. A model may be a file of the
user's that the manifest names by its digest.
"""

import importlib.util
import logging
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.abc import SourceLoader
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter

from protocol.errors import BarnraiseError, ConfigError, ManifestError, ManifestMismatch
from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, RunManifest
from training.device.inner import is_out_of_memory
from training.models.genesis import (
    MODEL_FILE,
    VOCABULARY,
    GptShape,
    ModelFile,
    build_settings,
    file_digest,
    genesis_weights,
    named_model_file,
    vocabulary_of,
)
from training.numeric import Registry

logger = logging.getLogger(__name__)

# What a model must be like to train in a run -----------------------------------------------------

_WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile and its kin put into the names of what they wrap."""

_SAME_MODEL = "build the model that the run's founder built, with the same settings"
_NAMED_MAX = 4


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DataParallel or DistributedDataParallel: the same parameters
    under the names that their author gave them."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside: object = model.module
        else:
            inside = getattr(model, "_orig_mod", None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def model_tensors(model: nn.Module) -> tuple[TensorSpec, ...]:
    """The tensors of a module as a founder fixes them, sorted by name.

    Raises ConfigError naming a parameter or buffer that cannot be trained together.
    """
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ConfigError("the model has no parameters")
    for name in parameters:
        if "_orig_mod" in name.split("."):
            raise ConfigError(
                f"the parameter {name!r} has its name from torch.compile(...), which wraps it: "
                "compile in place, model.compile(), and names stay as they are"
            )
    check_module(model, parameters)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(f"no parameter is trained: {name!r} and all others lack requires_grad")
    return tuple(TensorSpec(name, tuple(parameters[name].shape)) for name in sorted(parameters))


def check_module(model: nn.Module, trained: Collection[str]) -> None:
    """Raise ConfigError naming what of a module cannot be trained together.

    `trained` are the parameters that are the run's. Frozen ones beside them are the program's own.
    """
    for name in _persistent_buffers(model):
        raise ConfigError(
            f"the model has the buffer {name!r}, which peers do not synchronise: use a layer "
            "without running statistics (GroupNorm, LayerNorm), or register a constant with "
            "persistent=False"
        )
    parameters = {name: p for name, p in model.named_parameters() if name in trained}
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"the parameter {name!r} has no shape before the first forward")
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"the parameter {name!r} is {parameter.dtype}: weights stay torch.float32, use "
                "torch.autocast to compute in less"
            )
        if parameter.numel() == 0:
            raise ConfigError(f"the parameter {name!r} has no elements: {list(parameter.shape)}")
        # Of an expanded tensor many elements are one place in memory.
        places = zip(parameter.shape, parameter.stride(), strict=True)
        if any(size > 1 and stride == 0 for size, stride in places):
            raise ConfigError(f"the parameter {name!r} is expanded, make it of a clone()")
        if parameter.is_inference():
            raise ConfigError(
                f"the parameter {name!r} was made in inference mode and cannot be trained: build "
                "the model outside of torch.inference_mode()"
            )
    _check_memory(model)
    if any(parameter.requires_grad for parameter in parameters.values()):
        _check_frozen(parameters)


def _check_frozen(parameters: Mapping[str, nn.Parameter]) -> None:
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if frozen:
        raise ConfigError(
            f"the parameters {_some(frozen)} are frozen (requires_grad=False), and a run trains "
            "each parameter that it has, from first values of its own: what was pretrained would "
            "be lost. Unfreeze them with requires_grad_(True), or keep what is to stay as it is in "
            "buffers (register_buffer with persistent=False), which build() must fill with the "
            "same values on every peer"
        )


def _check_memory(model: nn.Module) -> None:
    """Raise ConfigError for two parameters over one memory: weights that are written for one of
    them would change the other, and the loop's weights would not be those that were agreed on."""
    places = [
        (str(p.device), p.data_ptr(), name, p)
        for name, p in model.named_parameters()
        if not isinstance(p, UninitializedParameter) and p.numel() and p.data_ptr()
    ]
    stretches: list[list[tuple[int, str, nn.Parameter]]] = []
    before, end = "", 0
    for device, start, name, parameter in sorted(places, key=lambda place: place[:2]):
        if device != before or start >= end:
            stretches.append([])
            before, end = device, start
        stretches[-1].append((start, name, parameter))
        end = max(end, start + parameter.element_size() * _extent(parameter))
    for stretch in stretches:
        if len(stretch) > 1:
            _check_apart(stretch)


def _extent(parameter: nn.Parameter) -> int:
    """Elements from the first to behind the last in memory."""
    places = zip(parameter.shape, parameter.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in places)


def _check_apart(stretch: list[tuple[int, str, nn.Parameter]]) -> None:
    """Of parameters whose stretches of memory overlap, no element may be another's: columns of one
    matrix, for instance, lie between each other."""
    first, bytes_each = stretch[0][0], stretch[0][2].element_size()
    begins = [(start - first) // bytes_each for start, _, _ in stretch]
    size = max(b + _extent(p) for b, (_, _, p) in zip(begins, stretch, strict=True))
    owner = torch.full((size,), -1)
    for number, (begin, (_, name, parameter)) in enumerate(zip(begins, stretch, strict=True)):
        own = owner.as_strided(parameter.shape, parameter.stride(), begin)
        other = int(own.max())
        if other >= 0:
            raise ConfigError(
                f"the parameters {stretch[other][1]} and {name} are two over one memory: tie the "
                "attribute itself (self.head.weight = self.embedding.weight), not its .data, so "
                "that they are one parameter, or give one of them a clone()"
            )
        own.fill_(number)


def check_parameters(model: nn.Module, manifest: RunManifest, shard: int = 0) -> None:
    """Raise ManifestMismatch naming the first tensor of the run that the model has not as it is.

    Raises ConfigError naming what `check_module` refuses, or what is trained beside the run.

    Weights are float32 on every device, so that an anchor comes through the model without losing a
    bit; `torch.autocast` makes a model compute in less.
    """
    parameters = dict(model.named_parameters())
    for tensor in manifest.shards[shard].tensors:
        parameter = parameters.get(tensor.name)
        shape = None if parameter is None else tuple(parameter.shape)
        if parameter is None:
            _refuse_wrapped(tensor.name, parameters)
        if shape != tensor.shape:
            ours = "not in the model" if shape is None else shape
            raise ManifestMismatch(
                f"the tensor {tensor.name}", ours, tensor.shape, advice=_SAME_MODEL
            )
    check_module(model, {tensor.name for tensor in manifest.shards[shard].tensors})
    known = {tensor.name for spec in manifest.shards for tensor in spec.tensors}
    beside = [name for name in parameters if name not in known]
    for name in beside:
        if parameters[name].requires_grad:
            raise ConfigError(
                f"the run does not train {name}, so each node would have its own: "
                "freeze it with requires_grad_(False)"
            )
    if beside:
        logger.warning(
            "the run has no %s: frozen here, they are this program's own, and nobody checks that "
            "other peers have the same",
            _some(beside),
        )


def _refuse_wrapped(wanted: str, names: Iterable[str]) -> None:
    """Raise ConfigError where the model has the tensor under the name that a wrapper gave it."""
    for name in names:
        parts = name.split(".")
        inside = [part for part in parts if part not in _WRAPPERS]
        if ".".join(inside) == wanted:
            wrapper = next(part for part in parts if part in _WRAPPERS)
            raise ConfigError(
                f"the run's tensor {wanted} is called {name} here, because something wraps the "
                f"model ({wrapper}): hand over the model inside; torch.compile keeps names where "
                "it compiles in place, layer.compile()"
            )


def check_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, manifest: RunManifest, shard: int = 0
) -> None:
    """Raise ConfigError where the optimizer trains something else than the run, or at own rates.

    The rate itself is the run's: a function of the sealed clock, equal on all peers.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if any(one not in names for one in given):
        raise ConfigError(
            "the optimizer has tensors that are no parameters of this model: make it of "
            "model.parameters(), when the model is complete and on its device"
        )
    has = {names[one] for one in given}
    missing = [one.name for one in manifest.shards[shard].tensors if one.name not in has]
    if missing:
        raise ConfigError(
            f"the optimizer lacks {_some(missing)}, which the run trains, so that this node would "
            "hold all others back there: make it of model.parameters()"
        )
    rates = {float(group["lr"]) for group in optimizer.param_groups if "lr" in group}
    if len(rates) > 1:
        raise ConfigError(
            f"the optimizer has groups with the learning rates {', '.join(map(str, sorted(rates)))}"
            ", and a run sets one for all of them: give all groups the same. Other settings of "
            "groups, such as weight_decay, are yours"
        )
    if any("initial_lr" in group for group in optimizer.param_groups):
        logger.warning(
            "the learning-rate scheduler of this optimizer has no effect: the run sets the rate, "
            "the same on every peer"
        )


def _persistent_buffers(model: nn.Module) -> Iterator[str]:
    """Names of the buffers that are part of the module's state."""
    state = model.state_dict(keep_vars=True)
    return (name for name, _ in model.named_buffers() if name in state)


def _some(names: Collection[str]) -> str:
    """The first of them, and how many more there are."""
    first = ", ".join(list(names)[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    return f"{first} and {more} more" if more > 0 else first


# A model from a file -----------------------------------------------------------------------------

_MODULE = "barnraise_model_file"
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


def check_forward(model: nn.Module, context: int, vocab_size: int = VOCABULARY) -> None:
    """Raise ConfigError unless `model` maps (B, T) tokens to (B, T, V) logits, T the context."""
    with torch.no_grad():
        logits = model(torch.zeros(2, context, dtype=torch.int64))
    shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    wanted = (2, context, vocab_size)
    if shape != wanted:
        is_tensor = isinstance(logits, torch.Tensor)
        kinds = "byte values" if vocab_size == VOCABULARY else "tokens"
        why = f"each predicts the next of {vocab_size} {kinds}"
        why = why if is_tensor else "return a tensor alone"
        raise ConfigError(f"the model must give logits of shape {wanted}, it gave {shape}: {why}")


def check_backward(model: nn.Module, context: int, vocab_size: int = VOCABULARY) -> tuple[str, ...]:
    """The parameters that no gradient reaches. Raises ConfigError where none reaches any.

    For a model that `check_forward` has passed.
    """
    tokens_BT = torch.arange(context).remainder(vocab_size).unsqueeze(0)
    logits_BTV = model.train()(tokens_BT).float()
    if not logits_BTV.requires_grad:
        raise ConfigError(
            "the model cannot be trained: its logits carry no gradient. Does forward run under "
            "no_grad or inference_mode, or detach what it computes?"
        )
    functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten()).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return tuple(name for name, one in model.named_parameters() if one.grad is None)


# Models by name, and their weights as flat fragments ---------------------------------------------


class ModelFactory(Protocol):
    """SEAM: makes a module from its settings; called once by the trainer, at its start.

    The parameters of the module have exactly the names and shapes of `SCHEMAS[name]`; their values
    may be anything, the caller fills them in. `forward` takes tokens (B, T), int64, and returns
    logits (B, T, V), V the vocabulary that the settings say (`vocabulary_of`).
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
    if manifest.corpus.vocab_size > vocabulary_of(manifest.model):
        raise ManifestError(
            f"the run's text has {manifest.corpus.vocab_size} kinds of tokens, and its model reads "
            f"{vocabulary_of(manifest.model)}"
        )
    if manifest.model.name == MODEL_FILE:
        model = build_from_file(named_model_file(model_file, manifest.model), manifest.model)
        check_parameters(model, manifest, shard)
    else:
        factory: ModelFactory = MODELS[manifest.model.name]
        model = factory(manifest.model)
    write_fragments(model, manifest.shards[shard], genesis_weights(manifest, shard))
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


def read_fragments(model: nn.Module, shard: ShardSpec) -> list[NDArray[np.float32]]:
    """New vectors with the working weights of all fragments, by fragment."""
    return [read_fragment(model, shard, fragment) for fragment in range(len(shard.fragments))]


def write_fragments(
    model: nn.Module, shard: ShardSpec, weights: Iterable[NDArray[np.float32]]
) -> None:
    """Inverse of `read_fragments`."""
    for fragment, weights_N in enumerate(weights):
        write_fragment(model, shard, fragment, weights_N)


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
    """GPT: pre-norm, learned positions, output tied to the embedding.

    Settings: width, layers, heads (divides width), context (most positions of one call), and
    vocab_size where tokens are not bytes.
    """

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        shape = GptShape.of(model)
        self.context = shape.context
        self.embedding = _Matrix(shape.vocabulary, shape.width)
        self.positions = _Matrix(shape.context, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (B, T, V) of the token after each position; T is at most `context`."""
        x_BTC = functional.embedding(tokens_BT, self.embedding.weight)
        x_BTC = x_BTC + self.positions.weight[: tokens_BT.shape[1]]
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
