"""What a swarm is held against: its own first weights, and one node that trains alone.

B sequences, W window (context + 1 bytes)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from protocol.manifest import RunManifest
from training.data.corpus import Dataset
from training.device.inner import accumulate_gradient, apply_gradient, make_optimizer
from training.loop.evaluation import validation_loss
from training.loop.trainer_loop import VALIDATION_WINDOWS
from training.models.building import build_model, tokens_per_sample, write_fragment

YARDSTICK_WINDOWS = 1024
"""Held-out windows behind the numbers of methods that are compared."""


@dataclass(frozen=True, slots=True)
class Point:
    """Validation loss, nats per byte, after `step` inner steps."""

    step: int
    loss: float


def held_out(manifest: RunManifest, dataset: Dataset) -> NDArray[np.uint8]:
    """The large fixed sample of held-out text."""
    return dataset.held_out_windows(YARDSTICK_WINDOWS, tokens_per_sample(manifest))


def curve_sample(manifest: RunManifest, dataset: Dataset) -> NDArray[np.uint8]:
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
    for fragment, anchor_N in enumerate(anchors):
        write_fragment(model, manifest.shards[0], fragment, anchor_N)
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
