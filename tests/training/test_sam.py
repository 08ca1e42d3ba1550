"""Sharpness-aware minimization: the gradient a little uphill, and weights that come back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.replicas import random_windows, small_manifest
from training.device.device import open_device
from training.device.inner import (
    MicroBatch,
    accumulate_gradient,
    apply_gradient,
    batch_loss,
    make_optimizer,
)
from training.models.building import build_model

MANIFEST = small_manifest()
CPU = open_device("cpu")
RADIUS = 0.05


def bits(model: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = build_model(MANIFEST)
    return model, make_optimizer(model, MANIFEST.inner)


def test_gradient_is_that_of_weights_so_far_uphill(seed: int) -> None:
    windows_BW = random_windows(seed, 1)[0]
    model, optimizer = fresh()
    before = bits(model)
    loss = accumulate_gradient(model, optimizer, windows_BW, sam_radius=RADIUS)
    assert bits(model) == before, "to the bit"
    # By the definition, in a model of its own.
    other, _ = fresh()
    plain = batch_loss(other, windows_BW)
    plain.backward()
    assert loss == float(plain.detach()), "the loss is that of the weights, not that uphill"
    slopes = gradients(other)
    norm = sum(float((slope.double() ** 2).sum()) for slope in slopes) ** 0.5
    moved = 0.0
    with torch.no_grad():
        for parameter, slope in zip(other.parameters(), slopes, strict=True):
            step = RADIUS / norm * slope
            parameter.add_(step)
            moved += float((step.double() ** 2).sum())
    assert moved**0.5 == pytest.approx(RADIUS, rel=1e-5)
    other.zero_grad()
    uphill = batch_loss(other, windows_BW)
    uphill.backward()
    assert float(uphill.detach()) > loss
    for ours, theirs, plainly in zip(gradients(model), gradients(other), slopes, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(ours, plainly, rtol=1e-3, atol=1e-6)


def test_radius_of_nothing_is_the_plain_gradient_to_the_bit(seed: int) -> None:
    windows_BW = random_windows(seed, 1)[0]
    (one, first), (other, second) = fresh(), fresh()
    accumulate_gradient(one, first, windows_BW, sam_radius=0.0)
    accumulate_gradient(other, second, windows_BW)
    assert all(map(torch.equal, gradients(one), gradients(other)))


def test_where_there_is_no_slope_there_is_no_uphill(seed: int) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(3))

        def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*tokens_BT.shape, 256) + 0.0 * self.x.sum()

    model = Flat()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulate_gradient(model, optimizer, random_windows(seed, 1)[0], sam_radius=RADIUS)
    assert model.x.grad is not None
    assert torch.equal(model.x.grad, torch.zeros(3))
    assert torch.equal(model.x.detach(), torch.ones(3))


def test_memory_that_is_refused_uphill_is_tried_again_from_the_weights(seed: int) -> None:
    windows_BW = random_windows(seed, 1)[0]
    model, optimizer = fresh()
    passes = 0

    def refuse(module: nn.Module, given: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise RuntimeError("CUDA out of memory, says a test")

    handle = model.register_forward_pre_hook(refuse)
    before = bits(model)
    micro_batch = MicroBatch(CPU, len(windows_BW), sam_radius=RADIUS)
    loss = micro_batch.gradient(model, optimizer, windows_BW)
    handle.remove()
    assert bits(model) == before
    assert micro_batch.size == len(windows_BW) // 2
    other, second = fresh()
    expected = accumulate_gradient(other, second, windows_BW, sam_radius=RADIUS)
    assert loss == pytest.approx(expected, rel=1e-6)
    for ours, theirs in zip(gradients(model), gradients(other), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_steps_uphill_train(seed: int) -> None:
    manifest = replace(MANIFEST, inner=replace(MANIFEST.inner, sam_radius=RADIUS))
    model, optimizer = fresh()
    windows_BW = random_windows(seed, 1)[0]
    losses = []
    for step in range(30):
        losses.append(
            accumulate_gradient(model, optimizer, windows_BW, sam_radius=manifest.inner.sam_radius)
        )
        apply_gradient(model, optimizer, manifest, step)
    assert losses[-1] < losses[0] - 0.3
    assert np.isfinite(losses).all()
