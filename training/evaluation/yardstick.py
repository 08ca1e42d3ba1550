"""What a swarm is held against: its own first weights, and one node that trains alone; and text out
of a model, one byte after the other, drawn from what it expects next.

B sequences, W window (context + 1 bytes), V vocabulary
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protocol.errors import StateError
from protocol.manifest import RunManifest
from training.data.sampling import Dataset
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    make_optimizer,
    validation_loss,
)
from training.evaluation import Sampling
from training.loop.idle_validation import VALIDATION_WINDOWS
from training.models.building import build_model, tokens_per_sample, write_fragments
from training.numeric import Tokens

YARDSTICK_WINDOWS = 1024
"""Held-out windows behind the numbers of methods that are compared."""


@dataclass(frozen=True, slots=True)
class Point:
    """Validation loss, nats per byte, after `step` inner steps."""

    step: int
    loss: float


def held_out(manifest: RunManifest, dataset: Dataset) -> Tokens:
    """The large fixed sample of held-out text."""
    return dataset.held_out_windows(YARDSTICK_WINDOWS, tokens_per_sample(manifest))


def curve_sample(manifest: RunManifest, dataset: Dataset) -> Tokens:
    """What nodes measure their anchors on after each round: with another sample a curve would end
    at one number, and the sentence about it would tell another."""
    return dataset.held_out_windows(VALIDATION_WINDOWS, tokens_per_sample(manifest))


def genesis_loss(manifest: RunManifest, dataset: Dataset) -> float:
    """Validation loss of the weights that the run started from."""
    return validation_loss(build_model(manifest), curve_sample(manifest, dataset))


def model_of(
    manifest: RunManifest,
    anchors: Sequence[NDArray[np.float32]],
    *,
    model_file: Path | None = None,
) -> nn.Module:
    """The run's model with the weights of a checkpoint. Raises what `build_model` does."""
    model = build_model(manifest, model_file=model_file)
    write_fragments(model, manifest.shards[0], anchors)
    return model


def train_alone(
    manifest: RunManifest, dataset: Dataset, show: Callable[[Point], None]
) -> nn.Module:
    """One node without a swarm: the run's inner loop, from its genesis, for all of its steps.

    It takes the samples in the order of the permutation. `show` gets a validation point before the
    first step and after every H.
    """
    context, batch = tokens_per_sample(manifest), manifest.inner.batch
    curve_BW = curve_sample(manifest, dataset)
    model = build_model(manifest)
    optimizer = make_optimizer(model, manifest.inner)
    show(Point(0, validation_loss(model, curve_BW)))
    for step in range(manifest.total_inner_steps):
        samples_B = np.arange(step * batch, (step + 1) * batch)
        windows_BW = dataset.windows(samples_B, context)
        accumulate_gradient(model, optimizer, windows_BW, sam_radius=manifest.inner.sam_radius)
        apply_gradient(model, optimizer, manifest, step)
        if (step + 1) % manifest.inner.inner_steps == 0:
            show(Point(step + 1, validation_loss(model, curve_BW)))
    return model


_START = b"\n"
"""What an empty prompt stands for: the text goes on at the beginning of a line."""


def generate(
    model: nn.Module, prompt: Sequence[int], num_tokens: int, sampling: Sampling
) -> Generator[int, None, None]:
    """`num_tokens` sampled tokens that continue `prompt`, each as soon as it is drawn.

    The model sees the last `model.context` tokens. Equal arguments give equal tokens on one machine
    and device. The model's mode is put back at the end. Raises StateError for weights that predict
    nothing.
    """
    context = model.context
    assert isinstance(context, int)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    window = list((prompt or _START)[-context:])
    was_training = model.training
    model.eval()
    try:
        for _ in range(num_tokens):
            # Not around the loop: between two tokens our caller runs, whose gradients are its own.
            with torch.no_grad():
                logits_V = model(torch.tensor([window], device=device))[0, -1]
                token = _draw(logits_V.to("cpu", torch.float64), sampling, generator)
            window = [*window, token][-context:]
            yield token
    finally:
        model.train(was_training)


def sample_text(manifest: RunManifest, model: nn.Module, prompt: bytes, num_bytes: int) -> str:
    """The prompt and what the model writes behind it; the same for the same weights."""
    sampling = Sampling(seed=manifest.model.seed)
    text = prompt + bytes(generate(model, prompt, num_bytes, sampling))
    return text.decode("utf-8", "replace")


def _draw(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    if not math.isfinite(float(logits_V.sum())):
        raise StateError("these weights predict nothing: the model's output is not finite")
    if sampling.temperature == 0.0:
        return int(logits_V.argmax())
    if sampling.top_k:
        kept = logits_V.topk(min(sampling.top_k, len(logits_V)))
        drawn = _multinomial(kept.values, sampling.temperature, generator)
        return int(kept.indices[drawn])
    return _multinomial(logits_V, sampling.temperature, generator)


def _multinomial(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    # Before the division: a tiny temperature would make infinities of large logits, whose
    # differences are no numbers.
    logits_V = (logits_V - logits_V.max()) / temperature
    return int(torch.multinomial(torch.softmax(logits_V, dim=0), 1, generator=generator))
