"""The optimizers of a trainer are torch's, to the bit, but for what torch loads beside them."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.training.replicas import INNER, random_windows, small_manifest
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    make_optimizer,
    optimizer_tensors,
)
from training.models.building import build_model, read_fragment

ALONE = """
import sys
import torch
from torch import nn
from tests.training.replicas import random_windows, small_manifest
from training.device.inner import *
from training.models.building import build_model
manifest = small_manifest()
model = build_model(manifest)
optimizer = make_optimizer(model, manifest.inner)
accumulate_gradient(model, optimizer, random_windows(0, steps=1)[0])
apply_gradient(model, optimizer, manifest, 0)
load_optimizer_tensors(model, optimizer, optimizer_tensors(model, optimizer))
optimizer.zero_grad(set_to_none=True)
print("torch._dynamo" in sys.modules)
"""


def test_a_step_does_not_load_torchs_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, check=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_steps_and_moments_are_torchs_own_to_the_bit(optimizer: str, seed: int) -> None:
    manifest = small_manifest(inner=replace(INNER, optimizer=optimizer))
    found = []
    for is_torchs in (False, True):
        model = build_model(manifest)
        inner = make_optimizer(model, manifest.inner)
        if is_torchs:
            kind = type(inner).__mro__[1]
            assert kind in (torch.optim.AdamW, torch.optim.SGD)
            betas = {"betas": (manifest.inner.beta1, manifest.inner.beta2)}
            more: dict[str, Any] = betas if kind is torch.optim.AdamW else {}
            inner = kind(inner.param_groups, lr=manifest.inner.learning_rate, **more)
        for step, windows_BW in enumerate(random_windows(seed, steps=5)):
            accumulate_gradient(model, inner, windows_BW)
            apply_gradient(model, inner, manifest, step)
        assert not any(one.requires_grad for one in optimizer_tensors(model, inner).values())
        moments = {n: t.numpy().tobytes() for n, t in optimizer_tensors(model, inner).items()}
        weights = read_fragment(model, manifest.shards[0], 0).tobytes()
        found.append((type(inner).__name__, weights, moments))
    assert found[0] == found[1]
