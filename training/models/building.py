"""SEAM ModelFactory: models by name, and their weights as flat fragments.

B sequences, T positions, C channels, V vocabulary, N elements of a fragment

A manifest names a model and its settings; it never carries code. The schema and first values of
each model are in `training.models.genesis`, which loads no torch.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from protocol.grid import ShardSpec
from protocol.manifest import ModelSpec, RunManifest
from training.models.genesis import MODEL_FILE, GptShape, genesis_weights
from training.models.model_checks import check_parameters
from training.models.model_file import named_model_file
from training.models.model_from_file import build_from_file
from training.numeric.registry import Registry


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
