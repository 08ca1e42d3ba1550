"""The inner loop: AdamW steps between two rounds.

B sequences, W window (context + 1 bytes), T context, V vocabulary

The learning rate is a function of the manifest, the sealed clock and the local step only (R9), so
that a peer that joined late trains with the rate of everybody else. Moments stay on this machine:
they are neither averaged nor reset at a round.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from protocol.errors import CheckpointError
from protocol.manifest import InnerSpec, RunManifest

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def learning_rate(manifest: RunManifest, step: int) -> float:
    """The rate of global inner step `step` (0 is the first of the run).

    Linear warm-up, then a cosine down to `learning_rate_floor` (a share of the peak) at the end of
    the run, and the floor from there on.
    """
    inner = manifest.inner
    if step < inner.warmup_steps:
        return inner.learning_rate * (step + 1) / inner.warmup_steps
    span = max(1, manifest.total_inner_steps - inner.warmup_steps)
    progress = min(1.0, (step - inner.warmup_steps) / span)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    floor = inner.learning_rate_floor
    return inner.learning_rate * (floor + (1.0 - floor) * cosine)


def make_optimizer(model: nn.Module, inner: InnerSpec) -> torch.optim.Optimizer:
    """AdamW as the manifest says; matrices decay, norms (one axis) do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": inner.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
    )


def batch_loss(model: nn.Module, windows_BW: NDArray[np.uint8] | torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, nats per byte, of predicting each byte of the windows but the first."""
    if isinstance(windows_BW, np.ndarray):
        # int64 is what embeddings want, and a copy: windows may lie in a read-only mapping.
        windows_BW = torch.from_numpy(windows_BW.astype(np.int64))
    windows = windows_BW.to(next(model.parameters()).device, torch.int64)
    logits_BTV = model(windows[:, :-1])
    return functional.cross_entropy(logits_BTV.flatten(0, 1), windows[:, 1:].flatten())


def accumulate_gradient(
    model: nn.Module, optimizer: torch.optim.Optimizer, windows_BW: NDArray[np.uint8] | torch.Tensor
) -> float:
    """Fresh gradients of one batch into the parameters; returns its loss, nats per byte."""
    optimizer.zero_grad()
    loss = batch_loss(model, windows_BW)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return float(loss.detach())


def apply_gradient(
    model: nn.Module, optimizer: torch.optim.Optimizer, manifest: RunManifest, step: int
) -> None:
    """One inner step with the gradients at hand: clip, set the rate of global `step`, update."""
    if manifest.inner.clip_norm > 0.0:
        nn.utils.clip_grad_norm_(model.parameters(), manifest.inner.clip_norm)
    rate = learning_rate(manifest, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """The moments, named `<moment>/<parameter>`, for a checkpoint; empty before the first step."""
    return {
        f"{moment}/{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        for moment in _MOMENTS
        if moment in optimizer.state[parameter]
    }


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave; an empty mapping starts afresh.

    Raises CheckpointError where a name or shape does not fit the model; the optimizer is then
    unchanged.
    """
    parameters = dict(model.named_parameters())
    if tensors and sorted(tensors) != sorted(f"{m}/{n}" for m in _MOMENTS for n in parameters):
        raise CheckpointError("the inner state is not that of this model")
    for name, parameter in parameters.items():
        for moment in _MOMENTS[1:]:
            if tensors and tensors[f"{moment}/{name}"].shape != parameter.shape:
                raise CheckpointError(f"the inner state of {name} has another shape")
    optimizer.state.clear()
    if tensors:
        for name, parameter in parameters.items():
            optimizer.state[parameter] = {m: tensors[f"{m}/{name}"].clone() for m in _MOMENTS}
