"""Genesis weights: a function of the manifest alone, equal to the bit on every machine.

numpy only, so that the network process can make the first anchor without torch. The values are
uniform, from raw Philox integers by one shift and single float32 operations: no library's normal
generator and no transcendental, whose last bit depends on version and processor.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import ConfigError, ManifestError
from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, RunManifest
from training.numeric import Registry

MODEL_FILE = "file"
"""The name of a model that is in a file, which the manifest names by its digest. Every peer has the
file from a person: a manifest never carries code. Its schema is the manifest's own shards."""

DIGEST_SETTING = "digest"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BLOCK = re.compile(r"(?:[^.]+\.)+?[0-9]{1,9}(?=\.)")
"""What the tensors of one block of a model have in common: `blocks.3` of `blocks.3.norm.weight`."""

VOCABULARY = 256
"""Of a model that does not say how many kinds of tokens it reads: bytes."""

VOCABULARY_SETTING = "vocab_size"

_LAYERS_MAX = 1024
_WIDTH_MAX = 65_536
_CONTEXT_MAX = 1 << 20
_VOCABULARY_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Initial:
    """Shape of one parameter, and its first values: `center` plus a uniform draw of +-`spread`."""

    shape: tuple[int, ...]
    center: float = 0.0
    spread: float = 0.0


SCHEMAS: Registry[Mapping[str, Initial]] = Registry("model")
"""Per model name, a function of the ModelSpec that gives the parameters by name."""


def shard_spec(model: ModelSpec, name: str = "model", *, fragments: int = 1) -> ShardSpec:
    """The whole model as one shard, tensors sorted by name; see `cut`.

    Raises ConfigError for an unknown model, ManifestError for a setting that it refuses.
    """
    schema = SCHEMAS[model.name](model)
    tensors = tuple(TensorSpec(key, schema[key].shape) for key in sorted(schema))
    return ShardSpec(name, tensors, cut(tensors, fragments))


def cut(tensors: Sequence[TensorSpec], count: int) -> tuple[tuple[int, ...], ...]:
    """The tensors, by number, in fragments that are synced in turn (Streaming DiLoCo).

    A block, all tensors that share a name up to its first number, is never cut. Blocks go to the
    fragments in turn, so that each has some from all depths; every tensor of no block, the largest
    first, to whichever is smallest by then. Raises ManifestError where a fragment would be empty.
    """
    blocks: dict[str, list[int]] = {}
    alone: list[int] = []
    for index, tensor in enumerate(tensors):
        found = _BLOCK.match(tensor.name)
        if found is None:
            alone.append(index)
        else:
            blocks.setdefault(found[0], []).append(index)
    pieces: list[list[int]] = [[] for _ in range(count)]
    for number, block in enumerate(sorted(blocks, key=_depth)):
        pieces[number % count] += blocks[block]
    for index in sorted(alone, key=lambda index: (-tensors[index].numel, index)):
        sizes = [sum(tensors[i].numel for i in piece) for piece in pieces]
        pieces[sizes.index(min(sizes))].append(index)
    if not all(pieces):
        most = len(blocks) + len(alone)
        raise ManifestError(
            f"[outer] fragments is {count}, and the model has {most} blocks and other tensors, "
            f"which are not cut: set it to {most} or less"
        )
    return tuple(tuple(sorted(piece)) for piece in pieces)


def _depth(block: str) -> tuple[str, int]:
    stem, _, number = block.rpartition(".")
    return stem, int(number)


def genesis_weights(manifest: RunManifest, shard: int = 0) -> tuple[NDArray[np.float32], ...]:
    """The first anchor: one flat float32 vector per fragment, tensors in the order of the schema.

    Raises ManifestError where the manifest's shard does not fit its model.
    """
    spec = manifest.shards[shard]
    schema = _schema(manifest.model, spec)
    values = [
        _draw(schema[tensor.name], f"{manifest.model.seed}/genesis/{tensor.name}")
        for tensor in spec.tensors
    ]
    return tuple(np.concatenate([values[i] for i in fragment]) for fragment in spec.fragments)


def _schema(model: ModelSpec, spec: ShardSpec) -> Mapping[str, Initial]:
    if model.name == MODEL_FILE:
        file_digest(model)
        return {tensor.name: file_initial(tensor) for tensor in spec.tensors}
    schema = SCHEMAS[model.name](model)
    for tensor in spec.tensors:
        if tensor.name not in schema or schema[tensor.name].shape != tensor.shape:
            raise ManifestError(f"shard {spec.name}: {tensor.name} is no tensor of the model")
    return schema


def _draw(initial: Initial, path: str) -> NDArray[np.float32]:
    numel = int(np.prod(initial.shape, dtype=np.int64))
    center = np.float32(initial.center)
    if initial.spread == 0.0:
        return np.full(numel, center, dtype=np.float32)
    key = int.from_bytes(blake3(path.encode()).digest(length=16), "little")
    raw = np.random.Philox(key=key).random_raw(numel)
    # 24 bits fit a float32 exactly, so the scaling to [-1, 1) rounds nothing.
    unit = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return unit * np.float32(initial.spread) + center


def setting_int(model: ModelSpec, name: str, most: int) -> int:
    """A setting that must be an integer of 1..`most`. Raises ManifestError naming it."""
    value = model.setting(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ManifestError(f"model {model.name}: {name} is {value!r}, not 1..{most}")
    return value


def vocabulary_of(model: ModelSpec) -> int:
    """Of how many kinds of tokens the model gives logits. Raises ManifestError for a number that
    is none."""
    if all(setting.name != VOCABULARY_SETTING for setting in model.settings):
        return VOCABULARY
    return setting_int(model, VOCABULARY_SETTING, _VOCABULARY_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptShape:
    """The settings of a GPT, checked."""

    width: int
    layers: int
    heads: int
    context: int
    vocabulary: int

    @classmethod
    def of(cls, model: ModelSpec) -> "GptShape":
        """Read a ModelSpec. Raises ManifestError naming the setting that is wrong."""
        shape = cls(
            width=setting_int(model, "width", _WIDTH_MAX),
            layers=setting_int(model, "layers", _LAYERS_MAX),
            heads=setting_int(model, "heads", _WIDTH_MAX),
            context=setting_int(model, "context", _CONTEXT_MAX),
            vocabulary=vocabulary_of(model),
        )
        if shape.width % shape.heads:
            raise ManifestError(f"model {model.name}: heads does not divide width")
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSize:
    """A GPT that is known by its number of parameters, and the learning rate that suits it."""

    layers: int
    width: int
    heads: int
    context: int
    learning_rate: float

    @property
    def settings(self) -> dict[str, int]:
        """Of the model, as run.toml has them."""
        return {
            "context": self.context,
            "heads": self.heads,
            "layers": self.layers,
            "width": self.width,
        }


GPT_SIZES: Mapping[str, GptSize] = {
    "120k": GptSize(layers=2, width=64, heads=4, context=64, learning_rate=8e-3),
    "10m": GptSize(layers=6, width=384, heads=6, context=256, learning_rate=1e-3),
    "50m": GptSize(layers=10, width=640, heads=10, context=512, learning_rate=8e-4),
    "124m": GptSize(layers=16, width=800, heads=8, context=1024, learning_rate=6e-4),
    "350m": GptSize(layers=28, width=1024, heads=16, context=1024, learning_rate=3e-4),
    "1b": GptSize(layers=20, width=2048, heads=16, context=1024, learning_rate=2e-4),
}
"""By name. Rates from 124m on are those of GPT-3 (Brown et al. 2020, table 2.1) for the next larger
size, 10m is nanoGPT's character model. A table of 256 bytes takes hardly any of the parameters, so
these have more or wider layers than models of words of the same size."""


def gpt_schema(model: ModelSpec) -> dict[str, Initial]:
    """Parameters of the GPT of `training.models.building`."""
    shape = GptShape.of(model)
    width = shape.width
    into = _spread(width)
    # Each block adds two branches to the residual stream; scaled so, its size does not grow
    # with depth (GPT-2, section 2.3).
    branch = _spread(width * 2 * shape.layers)
    parameters = {
        "embedding.weight": Initial((shape.vocabulary, width), spread=into),
        "positions.weight": Initial((shape.context, width), spread=into),
        "norm.weight": Initial((width,), center=1.0),
    }
    for layer in range(shape.layers):
        block = f"blocks.{layer}"
        parameters |= {
            f"{block}.attention_norm.weight": Initial((width,), center=1.0),
            f"{block}.attention.query_key_value.weight": Initial((3 * width, width), spread=into),
            f"{block}.attention.output.weight": Initial((width, width), spread=branch),
            f"{block}.feed_forward_norm.weight": Initial((width,), center=1.0),
            f"{block}.feed_forward.up.weight": Initial((4 * width, width), spread=into),
            f"{block}.feed_forward.down.weight": Initial((width, 4 * width), spread=branch),
        }
    return parameters


SCHEMAS.register("gpt", gpt_schema)


def file_initial(tensor: TensorSpec) -> Initial:
    """First values of a parameter of a model file, which is known by name and shape alone.

    Vectors and scalars: zeros where the last part of the name has `bias` in it, else ones, so that
    norms and gains begin as the identity. All else: uniform within +-1 / sqrt(fan_in), fan_in being
    the elements behind the first axis, as for the rows of nn.Linear, nn.Embedding and convolutions.
    """
    if len(tensor.shape) < 2:
        is_bias = "bias" in tensor.name.rpartition(".")[2]
        return Initial(tensor.shape, center=0.0 if is_bias else 1.0)
    return Initial(tensor.shape, spread=_spread(tensor.numel // tensor.shape[0]))


def file_digest(model: ModelSpec) -> str:
    """The digest, 64 hexadecimal digits, of the file that holds the model; its settings checked.

    Raises ManifestError for a model that is none in a file, and naming the setting that is wrong.
    """
    if model.name != MODEL_FILE:
        raise ManifestError(f"the model {model.name} is built in, it needs no file")
    setting_int(model, "context", _CONTEXT_MAX)
    digest = model.setting(DIGEST_SETTING)
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise ManifestError(f"model {model.name}: {DIGEST_SETTING} is {digest!r:.80}")
    return digest


def _spread(fan_in: int) -> float:
    """Half-width of a uniform draw with variance 1 / (3 fan_in); square roots are exact IEEE."""
    return float(np.sqrt(np.float64(1.0 / fan_in)))


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
